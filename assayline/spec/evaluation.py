"""EvalSpec: everything that decides a run's answers, in one pydantic model.

The same model is the YAML file, the flow's parameter and so the form in Prefect's UI. What a machine decides
(folders, time-outs, tokens) is in `settings.py`. Reading from YAML, with errors for people: `file.py`.
"""

import operator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from assayline.spec.answers import OutputSpec, ReasoningSpec
from assayline.spec.engine import EngineSpec, refuse_secrets
from assayline.spec.gate import GateSpec
from assayline.spec.load import LoadSpec, SloSpec
from assayline.spec.part import SpecPart
from assayline.spec.price import PriceSpec
from assayline.spec.prompts import ChatSpec, PromptSpec
from assayline.spec.scorers import Loglikelihood, Scorer, name_scorers
from assayline.spec.sources import LmEvalSource, OpenAiBatchSource, SyntheticSource, TraceSource

OPTION_SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
"""How the likelihood of an option is asked for: the option is part of the prompt, whose tokens' log-probabilities come
back (0: of the prompt's own tokens alone), and the one token that vLLM insists on generating is not looked at."""


MOST_WORKERS = 4096
"""Each has an engine and a device of its own."""


def _check_workers(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and 1 <= value <= MOST_WORKERS):
        return value
    raise ValueError(f"expected a number from 1 to {MOST_WORKERS}, or auto")


def _list_one(value: object) -> object:
    """A scorer by itself is a list of one: the form in Prefect's UI makes that of a kind."""
    return [value] if isinstance(value, dict) else value


class EvalSpec(SpecPart):
    """One evaluation: a model, at these settings, on these prompts."""

    name: str = Field("evaluation", min_length=1, description="What the run is called.")
    model: str = Field(min_length=1, description="Hugging Face id, or a folder.")
    revision: str | None = Field(None, description="Hub branch, tag or commit; resolved to a commit and stored.")
    prompts: PromptSpec = Field(description="What is asked.")
    chat: ChatSpec = Field(ChatSpec(), description="How it is rendered.")
    sampling: dict[str, Any] = Field(default_factory=dict, description="Any argument of vllm.SamplingParams.")
    output: OutputSpec | None = Field(None, description="A form that every answer must have.")
    reasoning: ReasoningSpec | None = Field(None, description="For models that think before they answer.")
    scorers: Annotated[list[Scorer] | None, BeforeValidator(_list_one)] = Field(
        None, description="How answers are scored, the most important one first (default: exact_match, given targets)."
    )
    engine: EngineSpec = Field(EngineSpec(), description="What answers, and how it is fed.")
    load: LoadSpec | None = Field(
        None, description="When requests are sent (default: as many at once as engine.window allows)."
    )
    slos: list[SloSpec] = Field(default_factory=list, description="What counts as good enough, for goodput.")
    workers: Annotated[int | Literal["auto"], BeforeValidator(_check_workers)] = Field(
        1,
        description="Engines side by side, each on its own device; auto: as many as this machine or the Ray cluster "
        "has devices for, each of as many GPUs as an engine spans (tensor x pipeline parallel), and one on a CPU.",
    )
    runner: Literal["local", "ray"] = Field("local", description="Where workers run: this machine, or a Ray cluster.")
    ray_address: str | None = Field(None, description="Address of a running Ray cluster; unset: a local one.")
    max_error_fraction: float = Field(
        0.5, ge=0, le=1, description="Largest share of requests that may be error rows; beyond it the run fails."
    )
    shard_requests: int = Field(256, ge=1, le=1_000_000, description="Requests per part file.")
    gate: GateSpec = Field(GateSpec(), description="How much worse than a baseline a run may be.")
    price: PriceSpec | None = Field(
        None,
        exclude_if=operator.not_,  # so that a spec without it is the same spec as ever
        description="What hardware, power or tokens cost (default: the setting ASSAYLINE_PRICE, if there is one).",
    )

    @model_validator(mode="after")
    def _check_secrets(self) -> "EvalSpec":
        refuse_secrets(self.model_dump(mode="json"))
        return self

    @model_validator(mode="after")
    def _check_scorers(self) -> "EvalSpec":
        name_scorers(self.scorers or [])
        if self.asks_for_options and any(not isinstance(scorer, Loglikelihood) for scorer in self.scorers or []):
            raise ValueError(
                "the scorer loglikelihood asks for the likelihood of given answers, and then there is no generated "
                "text for other scorers. Make two specs"
            )
        if self.asks_for_options and not self.prompts.columns.options:
            raise ValueError("the scorer loglikelihood needs prompts.columns.options: a column with a list of answers")
        return self

    @model_validator(mode="after")
    def _check_load(self) -> "EvalSpec":
        names = [slo.name for slo in self.slos]
        if len(set(names)) < len(names):
            raise ValueError(f"slos: two have the same name, given {names}. Give each a name of its own")
        if self.load and not self.engine.is_streaming:
            raise ValueError(
                f"load: the backend {self.engine.backend} takes requests as fast as it can and has no arrival pattern. "
                "Set engine.backend to async or server"
            )
        if self.load and self.workers != 1:
            raise ValueError(
                f"load: one worker keeps a pattern, given workers {self.workers}. Set workers to 1; a server may have "
                "as many GPUs as it likes"
            )
        self._check_own_trace()
        if self.engine.order == "longest_first" and self.load and not self._load_takes_any_order:
            raise ValueError(
                "engine.order longest_first: a load that sends requests at times of its own, or only some of them, "
                "would measure other requests than those given. Remove it, or take arrival concurrency without limits"
            )
        if self.engine.kind.is_served and self.asks_for_options:
            raise ValueError("the scorer loglikelihood needs the engine itself. Set engine.backend to offline or async")
        return self

    @model_validator(mode="after")
    def _check_turns(self) -> "EvalSpec":
        if not self.prompts.asks_each_turn:
            return self
        if self.asks_for_options:
            raise ValueError(
                "the scorer loglikelihood: with prompts.turns each, the model answers in its own words. Remove one of "
                "the two"
            )
        if self.engine.order == "longest_first":
            raise ValueError(
                "engine.order longest_first: with prompts.turns each, turns come in the order of their conversation. "
                "Remove it"
            )
        if self.load and self.load.is_open_loop:
            raise ValueError(
                f"load.arrival {self.load.arrival.kind}: with prompts.turns each, a turn is sent when the one before "
                "is answered, at no time of a pattern. Take arrival concurrency"
            )
        return self

    def _check_own_trace(self) -> None:
        if self.load is None or self.load.trace_speed is None:
            return
        if not isinstance(self.prompts.source, TraceSource):
            raise ValueError(
                f"load.arrival: a trace without path is that of prompts.source, which is {self.prompts.source.kind}. "
                "Give load.arrival.path, or a source of kind trace"
            )
        if self.prompts.shuffle_seed is not None:
            raise ValueError(
                "prompts.shuffle_seed: requests are sent at their trace's times, and so in its order. Remove it, or "
                "give load.arrival.path"
            )

    @model_validator(mode="after")
    def _check_media(self) -> "EvalSpec":
        source = self.prompts.source
        is_made = isinstance(source, SyntheticSource) and bool(source.media_kinds)
        if self.engine.kind.is_served and is_made:
            raise ValueError(
                "synthetic images and sounds are for the engine itself. Set engine.backend to offline or async"
            )
        if self.engine.kind.is_served and self.prompts.columns.media and not self.engine.sends_messages:
            raise ValueError(
                "images, sounds and videos can be sent to chat completions alone. Set engine.server.endpoint to chat"
            )
        return self

    @model_validator(mode="after")
    def _check_task(self) -> "EvalSpec":
        if not isinstance(self.prompts.source, LmEvalSource):
            return self
        if self.asks_for_options:
            raise ValueError("the scorer loglikelihood is not for source lm_eval, whose tasks ask for likelihoods")
        if self.engine.sends_messages:
            raise ValueError(
                "a task of lm-evaluation-harness writes whole prompts, which the endpoint chat does not take. Set "
                "engine.server.endpoint to completions"
            )
        if self.chat.prefill:
            raise ValueError("chat.prefill: with source lm_eval, the task decides how answers begin. Remove it")
        if "n" in self.sampling:
            raise ValueError("sampling.n: with source lm_eval, the task decides how often it asks. Remove it")
        return self

    @model_validator(mode="after")
    def _check_special_tokens(self) -> "EvalSpec":
        is_task = isinstance(self.prompts.source, LmEvalSource)
        if self.chat.special_tokens != "control" and (self.asks_for_options or is_task):
            what = "source lm_eval" if is_task else "the scorer loglikelihood"
            raise ValueError(
                f"chat.special_tokens {self.chat.special_tokens}: {what} reads a whole prompt as one text. Remove it"
            )
        return self

    @model_validator(mode="after")
    def _check_batch(self) -> "EvalSpec":
        if not isinstance(self.prompts.source, OpenAiBatchSource):
            return self
        if self.asks_for_options:
            raise ValueError("the scorer loglikelihood is not for source openai_batch, whose lines ask for texts")
        for name, value in {"sampling.n": self.sampling.get("n"), "chat.prefill": self.chat.prefill}.items():
            if value:
                raise ValueError(f"{name}: with source openai_batch, each line's body decides that. Remove it")
        return self

    @model_validator(mode="after")
    def _check_answers(self) -> "EvalSpec":
        forms = [name for name in ("output", "reasoning") if getattr(self, name) is not None]
        if self.asks_for_options and forms:
            raise ValueError(f"the scorer loglikelihood generates no answer that {' or '.join(forms)} could be about")
        if self.output and "structured_outputs" in self.sampling:
            raise ValueError("output and sampling.structured_outputs both say what an answer looks like. Remove one")
        engine_config = self.engine.args.get("structured_outputs_config")
        in_config = isinstance(engine_config, dict) and engine_config.get("reasoning_parser")
        has_form = self.output is not None or self.sampling.get("structured_outputs") is not None
        if has_form and self.reasoning and not (in_config or self.engine.args.get("reasoning_parser")):
            raise ValueError(
                "with a form of the output and reasoning, vLLM holds the thinking to it, unless it knows where that "
                "ends. Set engine.args.reasoning_parser to vLLM's name for this model's, such as qwen3"
            )
        return self

    @property
    def asks_for_options(self) -> bool:
        """Whether each prompt becomes one request per option, whose likelihood is wanted and not an answer."""
        return any(isinstance(scorer, Loglikelihood) for scorer in self.scorers or [])

    @property
    def is_longest_first(self) -> bool:
        """Whether requests are ordered by what is expected of their answers' lengths."""
        if self.engine.order == "auto":
            has_own_order = self.asks_for_options or self.prompts.asks_each_turn
            return self.engine.mode == "continuous" and self._load_takes_any_order and not has_own_order
        return self.engine.order == "longest_first"

    @property
    def _load_takes_any_order(self) -> bool:
        """Whether all requests are sent, each when there is room for it."""
        load = self.load
        if load is None:
            return True
        limits = (load.max_requests, load.max_duration_s, load.max_errors)
        has_windows = load.warmup_s > 0 or load.cooldown_s > 0
        return not load.is_open_loop and not has_windows and all(limit is None for limit in limits)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Arguments of `vllm.SamplingParams` before a row's overrides.

        max_tokens unset means the room left in the context, not vLLM's 16. `n` is left out: each sample is a request
        of its own, so that each has its own timings. Where options are asked for, `sampling` has no say.
        """
        if self.asks_for_options:
            return dict(OPTION_SAMPLING)
        given = {name: value for name, value in self.sampling.items() if name != "n"}
        form = {"structured_outputs": self.output.structured_outputs} if self.output else {}
        return {"max_tokens": None, **given, **form}
