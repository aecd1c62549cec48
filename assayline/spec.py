"""EvalSpec: everything that decides a run's answers, in one pydantic model.

The same model is the YAML file, the flow's parameter and so the form in Prefect's UI. What a machine decides
(folders, time-outs, tokens) is in `settings.py`. Reading from YAML, with errors for people: `spec_file.py`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from assayline.answer_spec import OutputSpec, ReasoningSpec
from assayline.engine_spec import EngineSpec
from assayline.gate_spec import GateSpec
from assayline.load_spec import LoadSpec
from assayline.scorer_spec import Loglikelihood, Scorer, name_scorers
from assayline.slo_spec import SloSpec
from assayline.spec_part import SpecPart

OPTION_SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
"""How the likelihood of an option is asked for: the option is part of the prompt, whose tokens' log-probabilities come
back (0: of the prompt's own tokens alone), and the one token that vLLM insists on generating is not looked at."""


class FileSource(SpecPart):
    """Rows of local files, read by streaming."""

    kind: Literal["file"] = "file"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    format: Literal["auto", "jsonl", "csv", "parquet"] = Field("auto", description="auto: by the file's ending.")


class InlineSource(SpecPart):
    """Rows written in the spec."""

    kind: Literal["inline"] = "inline"
    rows: list[dict[str, Any]] = Field(min_length=1, description="Mappings from column to value.")


class HubSource(SpecPart):
    """A Hugging Face dataset, streamed. Needs the extra `hub`."""

    kind: Literal["hub"] = "hub"
    dataset: str = Field(description="Id on the hub, such as openai/gsm8k.")
    subset: str | None = Field(None, description="Configuration of the dataset.")
    split: str = Field("test", description="Split to read.")
    revision: str | None = Field(None, description="Branch, tag or commit.")


class TokenLength(SpecPart):
    """A length in tokens: fixed, or normal with bounds."""

    mean: int = Field(ge=1, description="Tokens on average; a plain number in the spec is a fixed length.")
    stdev: float = Field(0.0, ge=0, description="Standard deviation, in tokens.")
    min: int | None = Field(None, ge=1, description="Fewest tokens.")
    max: int | None = Field(None, ge=1, description="Most tokens.")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _check_bounds(self) -> "TokenLength":
        if (self.min or 1) > self.mean or (self.max or self.mean) < self.mean:
            raise ValueError(f"expected min <= mean <= max, given min={self.min} mean={self.mean} max={self.max}")
        return self


class SyntheticSource(SpecPart):
    """Random prompts of exact length, for speed: token counts hold under the model's own tokenizer."""

    kind: Literal["synthetic"] = "synthetic"
    count: int = Field(ge=1, description="Prompts to make.")
    prompt_tokens: TokenLength = Field(description="Length of the prompts.")
    output_tokens: TokenLength = Field(description="Generated exactly: sets max_tokens, min_tokens and ignore_eos.")
    shared_prefix_tokens: int = Field(
        0, ge=0, description="Leading tokens that all prompts share; 0: no two share any."
    )
    seed: int = Field(0, description="Same seed, same prompts.")


AnySource = Annotated[FileSource | InlineSource | HubSource | SyntheticSource, Field(discriminator="kind")]


class Columns(SpecPart):
    """Which columns mean what. A column named here must exist; unnamed defaults are used if present."""

    messages: str | None = Field(None, description="Column with chat messages (default: `messages`, if present).")
    prompt: str | None = Field(None, description="Column with one user message (default: `prompt`, if present).")
    target: str | None = Field(None, description="Column with the expected answer (default: `target`, if present).")
    id: str | None = Field(None, description="Column with the row's id (default: `id`, if present).")
    metadata: list[str] = Field(default_factory=list, description="Columns to keep beside the prompt.")
    sampling: str | None = Field(None, description="Column with an object of sampling overrides.")
    options: str | None = Field(
        None, description="Column with a list of answers to choose from, for the scorer loglikelihood."
    )


class MessageTemplate(SpecPart):
    """One chat message whose content is a Jinja2 template over the row's columns."""

    role: str = Field(description="system, user or assistant; what the chat template knows.")
    content: str = Field(description="Jinja2 over the row's columns.")


class FewShotSpec(SpecPart):
    """Examples before the question: turns of the chat, drawn from a file, a split or the prompt set itself."""

    count: int = Field(ge=1, description="Examples per prompt.")
    source: Annotated[FileSource | InlineSource | HubSource, Field(discriminator="kind")] | None = Field(
        None, description="Rows to draw from (default: the prompt set itself). The prompt itself is never drawn."
    )
    answer: str | None = Field(
        None, description="Jinja2 over the example's columns: what the assistant says (default: its target)."
    )
    seed: int = Field(0, description="Same seed, same examples.")
    per_prompt: bool = Field(
        False, description="Draw anew for each prompt. Off: the same examples for all, which the prefix cache likes."
    )


class PromptSpec(SpecPart):
    """Where prompts come from and which of them are asked, how often."""

    name: str | None = Field(None, description="Name of the prompt set (default: from the source).")
    source: AnySource = Field(description="Rows: one of the kinds below.")
    columns: Columns = Field(Columns(), description="Which columns mean what.")
    template: str | list[MessageTemplate] | None = Field(
        None, description="Jinja2 over the row's columns: text for one user message, or a list of messages."
    )
    few_shot: FewShotSpec | None = Field(None, description="Examples before each question.")
    limit: int | None = Field(None, ge=1, description="At most this many rows, after shuffling.")
    shuffle_seed: int | None = Field(None, description="Shuffle with this seed; unset: the source's order.")
    repeats: int = Field(1, ge=1, description="How often each prompt is asked.")

    @property
    def set_name(self) -> str:
        """The name given, or one made from the source."""
        match self.source:
            case _ if self.name:
                return self.name
            case FileSource(path=path):
                return Path(path).stem
            case HubSource(dataset=dataset):
                return dataset
            case source:
                return source.kind


class ChatSpec(SpecPart):
    """How messages become the text that the model reads."""

    template: str = Field(
        "default",
        description="default (the tokenizer's), plain (contents joined by a space), a Jinja2 file, or inline Jinja2.",
    )
    system: str | None = Field(None, description="System message put before each conversation without one.")
    prefill: str | None = Field(None, description="Beginning of the assistant's answer, which the model continues.")
    add_generation_prompt: bool = Field(True, description="End with the opening of the assistant's turn.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="More variables for the template.")


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
    scorers: list[Scorer] | None = Field(
        None, description="How answers are scored, the most important one first (default: exact_match, given targets)."
    )
    engine: EngineSpec = Field(EngineSpec(), description="What answers, and how it is fed.")
    load: LoadSpec | None = Field(
        None, description="When requests are sent (default: as many at once as engine.window allows)."
    )
    slos: list[SloSpec] = Field(default_factory=list, description="What counts as good enough, for goodput.")
    workers: int = Field(1, ge=1, description="Engines side by side, each on its own device.")
    runner: Literal["local", "ray"] = Field("local", description="Where workers run: this machine, or a Ray cluster.")
    ray_address: str | None = Field(None, description="Address of a running Ray cluster; unset: a local one.")
    max_error_fraction: float = Field(
        0.5, ge=0, le=1, description="Largest share of requests that may be error rows; beyond it the run fails."
    )
    shard_requests: int = Field(256, ge=1, description="Requests per shard, the unit that workers claim.")
    gate: GateSpec = Field(GateSpec(), description="How much worse than a baseline a run may be.")

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
        if self.load and self.workers > 1:
            raise ValueError(
                f"load: one worker keeps a pattern, given workers {self.workers}. Set workers to 1; a server may have "
                "as many GPUs as it likes"
            )
        if self.engine.backend == "server" and self.asks_for_options:
            raise ValueError("the scorer loglikelihood needs the engine itself. Set engine.backend to offline or async")
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
