"""EvalSpec: everything that decides a run's answers, in one pydantic model.

The same model is the YAML file, the flow's parameter and so the form in Prefect's UI. What a machine decides
(folders, time-outs, tokens) is in `settings.py`. Reading from YAML, with errors for people: `file.py`.
"""

import operator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from assayline.spec.conflicts import list_conflicts
from assayline.spec.criteria import GateSpec, Loglikelihood, PriceSpec, Scorer, SloSpec, name_scorers
from assayline.spec.engine import EngineSpec, OutputSpec, ReasoningSpec, refuse_secrets
from assayline.spec.load import LoadSpec
from assayline.spec.part import SpecPart
from assayline.spec.prompts import ChatSpec, PromptSpec

OPTION_SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
"""Sampling for the likelihood of an option. The option is part of the prompt, whose tokens' log-probabilities are
returned (0: of the prompt's own tokens only). The one token that vLLM must generate is ignored."""


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
    prompts: PromptSpec = Field(description="Which prompts are sent.")
    chat: ChatSpec = Field(ChatSpec(), description="How it is rendered.")
    sampling: dict[str, Any] = Field(default_factory=dict, description="Any argument of vllm.SamplingParams.")
    output: OutputSpec | None = Field(None, description="The form of every answer.")
    reasoning: ReasoningSpec | None = Field(None, description="For models that reason before they answer.")
    scorers: Annotated[list[Scorer] | None, BeforeValidator(_list_one)] = Field(
        None, description="How answers are scored, the most important one first (default: exact_match, given targets)."
    )
    engine: EngineSpec = Field(EngineSpec(), description="What answers, and how it is fed.")
    load: LoadSpec | None = Field(
        None, description="When requests are sent (default: as many at once as engine.max_concurrency allows)."
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
        exclude_if=operator.not_,  # keeps digests of specs without it
        description="What hardware, power or tokens cost (default: the setting ASSAYLINE_PRICE, if there is one).",
    )

    @model_validator(mode="after")
    def _check_secrets(self) -> "EvalSpec":
        refuse_secrets(self.model_dump(mode="json"))
        return self

    @model_validator(mode="after")
    def _check_names(self) -> "EvalSpec":
        name_scorers(self.scorers or [])
        names = [slo.name for slo in self.slos]
        if len(set(names)) < len(names):
            raise ValueError(f"slos: two have the same name, given {names}. Give each a name of its own")
        return self

    @model_validator(mode="after")
    def _check_conflicts(self) -> "EvalSpec":
        if found := list_conflicts(self):
            raise PydanticCustomError("conflict", "{lines}", {"lines": "\n".join(found)})
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
            is_free = self.load is None or self.load.takes_any_order
            return self.engine.mode == "continuous" and is_free and not has_own_order
        return self.engine.order == "longest_first"

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Arguments of `vllm.SamplingParams` before a row's overrides.

        max_tokens unset means the room left in the context, not vLLM's 16. `n` is left out: each sample is a request
        of its own, so that each has its own timings. For likelihoods of options, `sampling` is ignored.
        """
        if self.asks_for_options:
            return dict(OPTION_SAMPLING)
        given = {name: value for name, value in self.sampling.items() if name != "n"}
        form = {"structured_outputs": self.output.structured_outputs} if self.output else {}
        return {"max_tokens": None, **given, **form}
