"""The parts of a spec that judge a run: scorers, SLOs, the gate and prices.

The function of each scorer is in `assayline/scorers/`. Prices are not part of the digests of spec and configuration:
runs at different prices can be resumed and count as repeats.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from assayline.spec.engine import JsonSchema
from assayline.spec.judges import JudgeScorer, VerdictScorer
from assayline.spec.part import ScorerPart, SpecPart


class ExactMatch(ScorerPart):
    """1 if answer and target are the same text, apart from surrounding white space."""

    kind: Literal["exact_match"]
    ignore_case: bool = Field(False, description="Ignore case.")


class Contains(ScorerPart):
    """1 if the answer contains the target."""

    kind: Literal["contains"]
    ignore_case: bool = Field(True, description="Ignore case.")


class RegexMatch(ScorerPart):
    """1 if the match of a regular expression in the answer equals the target."""

    kind: Literal["regex"]
    pattern: str = Field(
        min_length=1,
        description="Python syntax; its first group, or the complete match without one, is the answer. With (?i) at "
        "its start, case counts neither in matching nor in comparison. A search may take two seconds.",
    )
    take: Literal["first", "last"] = Field("first", description="Which match counts.")


class Numeric(ScorerPart):
    """1 if the number in the answer equals the target."""

    kind: Literal["numeric"]
    module: ClassVar[str] = "numbers"
    tolerance: float = Field(0.0, ge=0, description="Largest difference.")
    relative_tolerance: float = Field(0.0, ge=0, description="Largest difference, as a share of the target.")
    take: Literal["first", "last"] = Field("last", description="Which number of the answer counts.")


class ChoiceLetter(ScorerPart):
    """1 if the letter chosen in the answer equals the target."""

    kind: Literal["choice"]
    module: ClassVar[str] = "letters"
    letters: str = Field("ABCD", min_length=2, description="The valid letters or digits.")

    @field_validator("letters")
    @classmethod
    def _check_letters(cls, letters: str) -> str:
        letters = letters.upper()
        if not (letters.isascii() and letters.isalnum() and len(set(letters)) == len(letters)):
            raise ValueError("expected different letters or digits, such as ABCDE")
        return letters


class TokenF1(ScorerPart):
    """Harmonic mean of precision and recall over the words that answer and target share."""

    kind: Literal["token_f1"]


class JsonMatch(ScorerPart):
    """1 if the answer is valid JSON, and matches the schema if one is given."""

    kind: Literal["json"]
    module: ClassVar[str] = "json"
    json_schema: JsonSchema | None = Field(
        None, description="JSON schema that the answer must satisfy (default: the one that its request demands)."
    )

    needs_target: ClassVar[bool] = False


class Loglikelihood(ScorerPart):
    """1 if the likeliest of the options is the target: one request per option, nothing is generated."""

    kind: Literal["loglikelihood"]
    module: ClassVar[str] = "likelihood"
    normalize: Literal["none", "bytes", "tokens"] = Field(
        "none", description="Divisor of the sum of log-probabilities: none, or the option's length."
    )


class FunctionScorer(ScorerPart):
    """Base of scorers that are Python functions: each runs in processes of its own, which can be killed."""

    timeout_s: float = Field(10.0, gt=0, description="Longest time for one call of the function, seconds.")

    hint: ClassVar[str] = ""
    """Next step if it cannot be imported."""
    package: ClassVar[str | None] = None
    """The package that does the work, whose version is part of what defines a score."""

    @property
    def answers_per_message(self) -> int:
        return self.answers_per_call

    @property
    def call_timeout_s(self) -> float:
        return self.timeout_s

    @property
    def call_arguments(self) -> dict[str, Any]:
        return {}


class PythonScorer(FunctionScorer):
    """A number from 0 to 1 by a Python function of your own, or of an installed package."""

    kind: Literal["python"]
    function: str = Field(
        min_length=1, description="module:function, such as scoring:closeness; or a name that a package registers."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")
    batch_size: int = Field(
        1, ge=1, description="Answers per call. Above 1, the function takes and returns lists of that many at most."
    )

    needs_target: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """The name given, or the function's."""
        return self.name or self.function.rpartition(":")[2]

    @property
    def reference(self) -> str:
        return self.function

    @property
    def answers_per_call(self) -> int:
        return self.batch_size

    @property
    def call_arguments(self) -> dict[str, Any]:
        return self.arguments


class MathScorer(FunctionScorer):
    """1 if the answer's last mathematical expression equals the target, by math-verify. Needs the extra `math`."""

    kind: Literal["math"]
    module: ClassVar[str] = "math"

    hint: ClassVar[str] = "pip install 'assayline[math]'"
    package: ClassVar[str | None] = "math-verify"


class CodeScorer(FunctionScorer):
    """1 if a Python program with the answer's code runs to its end, in a sandbox. Needs `bwrap` (bubblewrap)."""

    kind: Literal["code"]
    module: ClassVar[str] = "code"
    program: str = Field(
        "{{ code }}\n\n{{ target }}\n",
        min_length=1,
        description="Jinja2 template of the program, over the row's metadata columns, `target`, `answer`, and `code`: "
        "the answer's last Markdown block of Python, or the complete answer.",
    )

    needs_target: ClassVar[bool] = False
    joins_targets: ClassVar[bool] = True
    hint: ClassVar[str] = "install bubblewrap, such as by `apt install bubblewrap`, and allow user namespaces"

    @property
    def call_timeout_s(self) -> float:
        return self.timeout_s + 10  # the function itself stops the program

    @property
    def call_arguments(self) -> dict[str, Any]:
        return {"program": self.program, "timeout_s": self.timeout_s}


Scorer = Annotated[
    ExactMatch
    | Contains
    | RegexMatch
    | Numeric
    | ChoiceLetter
    | TokenF1
    | JsonMatch
    | Loglikelihood
    | PythonScorer
    | MathScorer
    | CodeScorer
    | VerdictScorer
    | JudgeScorer,
    Field(discriminator="kind"),
    BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value),
]
"""A mapping with a kind, or only the kind."""


def list_kinds() -> dict[str, type[ScorerPart]]:
    """Return the classes of all scorers by kind."""
    classes = get_args(get_args(Scorer)[0])
    return {get_args(part.model_fields["kind"].annotation)[0]: part for part in classes}


def name_scorers(scorers: Iterable[ScorerPart]) -> list[str]:
    """Return the names in order. Raises ValueError if two are equal."""
    names = [scorer.title for scorer in scorers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two scorers are called {', '.join(twice)}. hint: set `name` to a different name for each")
    return names


LIMITS = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies of `stg_requests` that an SLO can limit."""


class SloSpec(SpecPart):
    """A service level objective: a request is good if it is answered and within every limit."""

    name: str = Field(min_length=1, description="Name of the SLO, such as interactive.")
    ttft_s: float | None = Field(None, gt=0, description="Maximum TTFT (time to first token), seconds.")
    tpot_s: float | None = Field(
        None,
        gt=0,
        description="Maximum TPOT (time per output token after the first), seconds; an answer of one token passes.",
    )
    e2e_s: float | None = Field(None, gt=0, description="Maximum end-to-end latency, seconds.")

    @model_validator(mode="after")
    def _check_limits(self) -> "SloSpec":
        if not self.limits:
            raise ValueError(f"no limit is set. hint: set at least one of {', '.join(LIMITS)}")
        return self

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, in seconds, by metric."""
        return {metric: limit for metric in LIMITS if (limit := getattr(self, metric)) is not None}


SpeedMetric = Literal[
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "tpot_p99_s",
    "e2e_p50_s",
    "e2e_p95_s",
    "e2e_p99_s",
]
"""Speed metrics of `run_metric`."""

CostMetric = Literal[
    "cost_per_million_output_tokens",
    "cost_per_thousand_requests",
    "cost_per_right_answer",
    "energy_per_output_token_joules",
    "energy_per_request_joules",
]
"""Cost and energy metrics of `run_metric`."""

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RereadLimit(SpecPart):
    """Limit on probabilities: what an engine gives to the tokens of the baseline's answers."""

    max_kl: float | None = Field(
        None,
        gt=0,
        description="Maximum divergence in nats per token, such as 0.005 for a planned change of precision (default: "
        "three times what the baseline's engine differs from itself).",
    )
    prompts: int = Field(30, ge=5, description="Answers to read, one a prompt.")


class GateSpec(SpecPart):
    """How much worse than a baseline a run may be. Used by `assayline gate` and the nightly flow."""

    baseline: str | None = Field(
        None, min_length=1, description="Name of a pinned baseline, or a run id (unset: the command must name one)."
    )
    scorer: str | None = Field(None, min_length=1, description="Name of the scorer to judge by (default: the first).")
    max_accuracy_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Maximum drop of the mean score over the shared prompts: 0.01 is one percentage point.",
    )
    max_slowdown: dict[SpeedMetric, Limit] = Field(
        {"output_tokens_per_s": 0.05, "tpot_p50_s": 0.1, "e2e_p95_s": 0.1},
        description="Maximum slowdown by metric of run_metric, as a share: 0.05 is 5%. Judged over at least three "
        "repeats per side, as one family of tests with max_cost_increase.",
    )
    max_cost_increase: dict[CostMetric, Limit] = Field(
        default_factory=dict,
        description="Maximum increase by metric of run_metric, as a share: 0.1 is 10% more expensive. Judged like "
        "max_slowdown, in the same family of tests.",
    )
    max_error_share: float = Field(
        0.05, ge=0, le=1, description="Maximum share of the answered requests that are errors."
    )
    max_truncated_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Maximum share of the answers that max_tokens cuts off (unset: no limit).",
    )
    min_draft_acceptance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Minimum share of the tokens proposed by speculative decoding that are accepted (unset: no "
        "limit). A draft that is never accepted changes no answer, so accuracy does not show it.",
    )
    max_lost_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Maximum share of lost prompts: those that are wrong, and seldom were on ten or more nights of the "
        "same configuration, since the baseline. 0.01 is one in a hundred, 1 is all.",
    )
    reread: RereadLimit | None = Field(
        None,
        description="A night lets its engine read stored answers of the baseline before it asks anything, and the "
        "gate judges the newest such reading (unset: no limit).",
    )
    min_overlap: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Minimum share of prompts that both runs have; below it the comparison is an error. Prompts are "
        "paired by messages and target, id and target, or row and target (of the same prompts.source): the first "
        "with that share.",
    )


Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

RATES = (
    "per_gpu_hour",
    "per_machine_hour",
    "per_kwh",
    "per_million_input_tokens",
    "per_million_cached_tokens",
    "per_million_output_tokens",
)


class PriceSpec(SpecPart):
    """Prices, each rate in `currency`. The cost is the sum over all rates that are set."""

    currency: str = Field("USD", pattern=r"^[A-Z]{3}$", description="Code of the currency (ISO 4217), such as EUR.")
    per_gpu_hour: Rate | None = Field(None, description="One GPU for one hour.")
    per_machine_hour: Rate | None = Field(None, description="All machines for one hour.")
    per_kwh: Rate | None = Field(
        None, description="One kilowatt-hour of the GPUs, as measured by their sensors; the rate may include cooling."
    )
    per_million_input_tokens: Rate | None = Field(None, description="One million prompt tokens of an API.")
    per_million_cached_tokens: Rate | None = Field(
        None, description="One million cached prompt tokens (default: the rate of other prompt tokens)."
    )
    per_million_output_tokens: Rate | None = Field(None, description="One million output tokens, including reasoning.")
    gpus: int | None = Field(
        None, ge=1, description="Number of GPUs to pay for (default: those that the engines held)."
    )

    @model_validator(mode="after")
    def _check_rates(self) -> "PriceSpec":
        if all(getattr(self, rate) is None for rate in RATES):
            raise ValueError(f"no rate is set. hint: set at least one of {', '.join(RATES)}")
        if self.per_million_cached_tokens is not None and self.per_million_input_tokens is None:
            raise ValueError(
                "per_million_cached_tokens needs the price of uncached tokens. hint: set per_million_input_tokens"
            )
        return self
