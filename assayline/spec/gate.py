"""The gate as a spec has it: which baseline a run is held against, and how much worse it may be."""

import operator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from assayline.spec.part import SpecPart

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
"""The metrics of `run_metric` that are about speed."""

CostMetric = Literal[
    "cost_per_million_output_tokens",
    "cost_per_thousand_requests",
    "cost_per_right_answer",
    "energy_per_output_token_joules",
    "energy_per_request_joules",
]
"""The metrics of `run_metric` that are about cost and energy."""

PairBy = Literal["auto", "prompt", "id", "row"]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST_TESTS = 6
"""Metrics in one family of tests: with more, five repeats could never be sure."""


class GateSpec(SpecPart):
    """How much worse than a baseline a run may be. Judged by `assayline gate`, and by the nightly flow."""

    baseline: str | None = Field(
        None, min_length=1, description="Name of a pinned baseline, or id of a run (unset: the command has to say)."
    )
    scorer: str | None = Field(
        None, min_length=1, description="Name of the scorer whose scores count (default: the first)."
    )
    max_accuracy_drop: float = Field(
        0.01, ge=0, le=1, description="Largest drop of the mean score over the prompts of both runs: 0.01 is a point."
    )
    confidence: Literal["significant", "observed", "proven"] = Field(
        "significant",
        description="When a drop breaks its limit. significant: it is larger, and more than chance; observed: it is "
        "larger; proven: it may be larger, as its 95 % interval goes beyond the limit.",
    )
    max_slowdown: dict[SpeedMetric, Limit] = Field(
        {"output_tokens_per_s": 0.05, "tpot_p50_s": 0.1, "e2e_p95_s": 0.1},
        max_length=MOST_TESTS,
        description="Largest slowdown by metric of run_metric, as a share: 0.05 is 5 %. Judged over five repeats a "
        "side or more, with one test for all of these: with more than six of them, five repeats could never be sure.",
    )
    max_cost_increase: dict[CostMetric, Limit] = Field(
        default_factory=dict,
        exclude_if=operator.not_,  # so that a spec without it is the same spec as ever
        description="Largest increase by metric of run_metric, as a share: 0.1 is 10 % dearer. Judged as max_slowdown, "
        "and in one test with it.",
    )
    max_cost: dict[CostMetric | Literal["cost"], Limit] = Field(
        default_factory=dict,
        exclude_if=operator.not_,
        description="Largest value, in the currency of `price` or in joules: of the run itself, whatever its baseline "
        "cost. `cost` is the whole run's.",
    )
    max_error_share: float = Field(0.05, ge=0, le=1, description="Largest share of the answers that are errors.")
    min_overlap: float = Field(
        0.9, gt=0, le=1, description="Smallest share of all prompts of both runs that both were asked; else refused."
    )
    pair_by: PairBy = Field(
        "auto",
        exclude_if=lambda value: value == "auto",
        description="How prompts of both runs are paired. prompt: the same messages and target; id: the same id and "
        "target; row: the same row of the source, and target; auto: the first of them with min_overlap (row only if "
        "both specs have the same prompts.source).",
    )

    @model_validator(mode="after")
    def _check_family(self) -> "GateSpec":
        tests = len(self.max_slowdown) + len(self.max_cost_increase)
        if tests > MOST_TESTS:
            raise ValueError(
                f"max_slowdown and max_cost_increase are one family of tests, of at most {MOST_TESTS}; given {tests}. "
                "Remove some: with more, five repeats could never be sure"
            )
        return self
