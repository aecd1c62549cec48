"""EvalSpec: everything that decides a run's answers, in one pydantic model.

The same model defines the YAML file and the flow's parameter. Settings of a machine (folders, timeouts, tokens) are in
`settings.py`; `file.py` reads YAML.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from assayline.files import is_folder
from assayline.spec.conflicts import list_conflicts
from assayline.spec.criteria import GateSpec, Loglikelihood, PriceSpec, Scorer, SloSpec, name_scorers
from assayline.spec.engine import EngineSpec, ReasoningSpec, check_form, refuse_secrets
from assayline.spec.load import LoadSpec
from assayline.spec.part import SpecPart
from assayline.spec.prompts import ChatSpec, PromptSpec, RereadSource

OPTION_SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
"""Sampling parameters for the likelihood of an option.

The option is part of the prompt, whose tokens' log-probabilities are returned (0: only of the prompt's own tokens). The
one token that vLLM must generate is ignored."""
READ_SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 20}
"""Sampling parameters for reading a stored answer: the likeliest tokens at each of its places too."""


MOST_WORKERS = 4096
"""Maximum number of workers, each with its own engine and device."""


def _check_workers(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and 1 <= value <= MOST_WORKERS):
        return value
    raise ValueError(f"expected a number from 1 to {MOST_WORKERS}, or auto")


def _is_served_elsewhere(data: Mapping[str, Any]) -> bool:
    """Return True if a running server is named, whose models may have names with a colon."""
    engine = data.get("engine")
    server = engine.get("server") if isinstance(engine, Mapping) else getattr(engine, "server", None)
    return bool(server.get("url") if isinstance(server, Mapping) else getattr(server, "url", None))


class EvalSpec(SpecPart):
    """One evaluation: a model, at these settings, on these prompts."""

    name: str = Field("evaluation", min_length=1, description="Name of the run.")
    model: str = Field(min_length=1, description="Hugging Face model id, or a folder.")
    adapter: str | None = Field(
        None,
        min_length=1,
        description="LoRA adapter of the model: a folder, or a Hugging Face id such as ORG/NAME or ORG/NAME@REVISION. "
        "`model: BASE:ADAPTER` sets both.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit on the hub; resolved to a commit and stored.")
    prompts: PromptSpec = Field(description="The prompts to send.")
    chat: ChatSpec = Field(ChatSpec(), description="Rendering of the prompts.")
    sampling: dict[str, Any] = Field(
        default_factory=dict,
        description="Any argument of vLLM's SamplingParams, by name; structured_outputs has the form of every answer.",
    )
    reasoning: ReasoningSpec | None = Field(None, description="Tags of models that reason before they answer.")
    scorers: list[Scorer] | None = Field(
        None, description="Scorers, the most important one first (default: exact_match, if there are targets)."
    )
    engine: EngineSpec = Field(EngineSpec(), description="The engine, and how requests are fed to it.")
    load: LoadSpec | None = Field(
        None, description="When requests are sent (default: as many at once as engine.max_concurrency allows)."
    )
    slos: list[SloSpec] = Field(default_factory=list, description="Service level objectives, for goodput.")
    workers: Annotated[int | Literal["auto"], BeforeValidator(_check_workers)] = Field(
        1,
        description="Number of engines, each on its own device; auto: as many as this machine or the Ray cluster has "
        "GPUs for, at tensor x pipeline parallel GPUs per engine, and one on a CPU.",
    )
    runner: Literal["local", "ray"] = Field("local", description="Where workers run: this machine, or a Ray cluster.")
    ray_address: str | None = Field(
        None, description="Address of a running Ray cluster; auto: that in RAY_ADDRESS; unset: a local one."
    )
    max_error_share: float = Field(
        0.5, ge=0, le=1, description="Maximum share of requests that may be error rows; beyond it the run fails."
    )
    shard_requests: int = Field(256, ge=1, le=1_000_000, description="Requests per part file.")
    gate: GateSpec = Field(GateSpec(), description="How much worse than a baseline a run may be.")
    price: PriceSpec | None = Field(
        None,
        description="Prices of hardware, power or tokens (default: the setting ASSAYLINE_PRICE).",
    )

    @model_validator(mode="before")
    @classmethod
    def _split_model(cls, data: Any) -> Any:
        """Read `BASE:ADAPTER` as model and adapter."""
        model = data.get("model") if isinstance(data, Mapping) else None
        if not isinstance(model, str) or ":" not in model or _is_served_elsewhere(data) or is_folder(model):
            return data
        base, _, adapter = model.partition(":")
        return {**data, "model": base, "adapter": adapter}

    @field_validator("sampling")
    @classmethod
    def _check_sampling(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        """Read max_completion_tokens, the newer name in OpenAI's interface, as max_tokens, and check the form."""
        if isinstance(form := sampling.get("structured_outputs"), dict):
            check_form(form)
        names = {} if "max_tokens" in sampling else {"max_completion_tokens": "max_tokens"}
        return {names.get(name, name): value for name, value in sampling.items()}

    @model_validator(mode="after")
    def _check_secrets(self) -> "EvalSpec":
        refuse_secrets(self.model_dump(mode="json"))
        return self

    @model_validator(mode="after")
    def _check_names(self) -> "EvalSpec":
        name_scorers(self.scorers or [])
        names = [slo.name for slo in self.slos]
        if len(set(names)) < len(names):
            raise ValueError(f"slos: duplicate names in {names}. hint: give each SLO its own name")
        return self

    @model_validator(mode="after")
    def _check_conflicts(self) -> "EvalSpec":
        if found := list_conflicts(self):
            raise PydanticCustomError("conflict", "{lines}", {"lines": "\n".join(found)})
        return self

    @property
    def model_name(self) -> str:
        """The model as tables show it: BASE:ADAPTER, or a running server's name for it if that is another one."""
        if self.adapter:
            return f"{self.model}:{self.adapter}"
        served = self.engine.server.model if self.engine.is_remote else None
        return self.model if served is None or served == Path(self.model).name else served

    @property
    def asks_for_options(self) -> bool:
        """True if each prompt becomes one request per option, to measure its likelihood."""
        return any(isinstance(scorer, Loglikelihood) for scorer in self.scorers or [])

    @property
    def is_reread(self) -> bool:
        """True if stored answers are read, and none is generated."""
        return isinstance(self.prompts.source, RereadSource)

    @property
    def is_longest_first(self) -> bool:
        """True if requests are ordered by the expected lengths of their answers."""
        if self.engine.order == "auto":
            has_own_order = self.asks_for_options or self.prompts.asks_each_turn or self.is_reread
            takes_any_order = self.load is None or self.load.takes_any_order
            return self.engine.mode == "continuous" and takes_any_order and not has_own_order
        return self.engine.order == "longest_first"

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Arguments of `vllm.SamplingParams` before a row's overrides.

        An unset max_tokens means the rest of the context, not vLLM's 16. `n` is omitted: each sample is its own
        request with its own timings. For likelihoods of options, `sampling` is ignored.
        """
        if self.asks_for_options:
            return dict(OPTION_SAMPLING)
        if self.is_reread:
            return {**READ_SAMPLING, **({} if self.engine.is_served else {"detokenize": False})}
        return {"max_tokens": None, **{name: value for name, value in self.sampling.items() if name != "n"}}
