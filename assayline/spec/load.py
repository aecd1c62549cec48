"""The part of a spec on load: the arrival pattern of requests, and its limits.

In an open loop (all patterns except `concurrency`) requests are sent when they are due, independently of earlier
answers, like requests of independent users. In a closed loop each answer triggers the next request. A load needs
engine.backend async or server.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from assayline.spec.part import SpecPart


def _check_rate(rate: float) -> float:
    if not 0 < rate < float("inf"):
        raise ValueError(
            "expected a rate above 0, in requests per second. hint: omit `load` to send without a schedule"
        )
    return rate


Rate = Annotated[float, AfterValidator(_check_rate)]


class AllAtOnce(SpecPart):
    """All requests are due at the start, which measures maximum throughput."""

    kind: Literal["all_at_once"]


class Concurrency(SpecPart):
    """Closed loop: a fixed number of requests in flight; each answer triggers the next request."""

    kind: Literal["concurrency"]
    requests: int = Field(ge=1, description="Requests in flight; 1 sends one after another.")


class ConstantRate(SpecPart):
    """Requests are due at equal intervals."""

    kind: Literal["constant"]
    rate_per_s: Rate = Field(description="Requests per second.")


class Poisson(SpecPart):
    """Requests are due at random, as from many independent users, or in bursts or more evenly."""

    kind: Literal["poisson"]
    rate_per_s: Rate = Field(description="Requests per second, on average.")
    burstiness: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Shape of the gamma distribution of the gaps: 1 is a Poisson process, below 1 is burstier, above 1 "
        "more even.",
    )
    seed: int = Field(0, description="Same seed, same times.")


class Trace(SpecPart):
    """Requests are due at the times of a recorded trace: its n-th timestamp is for the n-th request."""

    kind: Literal["trace"]
    path: str | None = Field(
        None,
        description="JSONL, CSV or Parquet file with a timestamp per row, in request order (default: the trace in "
        "prompts.source).",
    )
    column: str = Field("timestamp", description="Column with the timestamps; the first one is the start.")
    unit: Literal["s", "ms", "date"] = Field(
        "s", description="Unit of the timestamps; date: such as 2023-11-16 18:01:50.9951390, UTC without an offset."
    )
    speed: float = Field(1.0, gt=0, allow_inf_nan=False, description="Replay speed: 2 halves the recorded gaps.")


Arrival = Annotated[
    AllAtOnce | Concurrency | ConstantRate | Poisson | Trace,
    Field(discriminator="kind"),
]


class LoadSpec(SpecPart):
    """When requests are sent, which of them are measured, and when sending stops."""

    arrival: Arrival = Field(description="The pattern: one of the kinds below.")
    max_requests: int | None = Field(
        None, ge=1, description="Send at most this many requests; the others are not sent."
    )
    max_duration_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Stop sending after this many seconds; requests in flight finish."
    )
    max_errors: int | None = Field(None, ge=1, description="Stop sending after this many error rows; the run fails.")
    warmup_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Warm-up: requests sent in the first seconds are stored but excluded from metrics.",
    )
    cooldown_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Cool-down: requests sent in the last seconds are stored but excluded from metrics.",
    )

    @model_validator(mode="after")
    def _check_windows(self) -> "LoadSpec":
        if self.max_duration_s is not None and self.warmup_s + self.cooldown_s >= self.max_duration_s:
            raise ValueError(
                f"warmup_s {self.warmup_s:g} and cooldown_s {self.cooldown_s:g} leave nothing of max_duration_s "
                f"{self.max_duration_s:g} to measure. hint: raise max_duration_s, or shorten them"
            )
        return self

    @property
    def trace_speed(self) -> float | None:
        """Replay speed if the source has its own times; otherwise None."""
        trace = self.arrival
        return trace.speed if isinstance(trace, Trace) and trace.path is None else None

    @property
    def is_open_loop(self) -> bool:
        """True if due times do not depend on answers."""
        return self.arrival.kind != "concurrency"

    @property
    def takes_any_order(self) -> bool:
        """True if all requests are sent and measured, each as soon as there is room for it."""
        limits = (self.max_requests, self.max_duration_s, self.max_errors)
        has_windows = self.warmup_s > 0 or self.cooldown_s > 0
        return not self.is_open_loop and not has_windows and all(limit is None for limit in limits)
