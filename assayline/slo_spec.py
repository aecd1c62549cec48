"""The part of a spec that says what users put up with: service level objectives, as limits of latencies."""

from pydantic import Field, model_validator

from assayline.spec_part import SpecPart

LIMITS = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies of `stg_requests` that can be limited."""


class SloSpec(SpecPart):
    """A service level objective: a request is good if it is answered and within every limit."""

    name: str = Field(min_length=1, description="What it is called, such as interactive.")
    ttft_s: float | None = Field(None, gt=0, description="Longest time to first token, seconds.")
    tpot_s: float | None = Field(
        None, gt=0, description="Longest time per output token after the first, seconds; an answer of one token passes."
    )
    e2e_s: float | None = Field(None, gt=0, description="Longest end-to-end latency, seconds.")

    @model_validator(mode="after")
    def _check_limits(self) -> "SloSpec":
        if not self.limits:
            raise ValueError(f"no limit is given; set at least one of {', '.join(LIMITS)}")
        return self

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, in seconds, by metric."""
        return {metric: limit for metric in LIMITS if (limit := getattr(self, metric)) is not None}
