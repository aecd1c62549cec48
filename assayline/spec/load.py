"""The part of a spec on traffic: the arrival pattern of requests, and its limits.

In an open loop (all patterns but `concurrency`) requests are sent when they are due, whether or not earlier ones have
been answered, as users do. In a closed loop the next one is sent when one is answered. Needs engine.backend async or
server.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from assayline.spec.part import SpecPart


def _check_rate(rate: float) -> float:
    if not 0 < rate < float("inf"):
        raise ValueError("expected a rate above 0, in requests per second; leave `load` out to send without a schedule")
    return rate


Rate = Annotated[float, AfterValidator(_check_rate)]


class AllAtOnce(SpecPart):
    """Everything is due at the start: the highest throughput of the engine."""

    kind: Literal["all_at_once"] = "all_at_once"


class Concurrency(SpecPart):
    """A closed loop: so many requests in flight, the next one when one is answered."""

    kind: Literal["concurrency"] = "concurrency"
    requests: int = Field(ge=1, description="Requests in flight; 1 is one after another.")


class ConstantRate(SpecPart):
    """Due at equal intervals."""

    kind: Literal["constant"] = "constant"
    rate_per_s: Rate = Field(description="Requests per second.")


class Poisson(SpecPart):
    """Due at random, as from many independent users."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate = Field(description="Requests per second, on average.")
    seed: int = Field(0, description="Same seed, same times.")


class Gamma(SpecPart):
    """Due at random, in bursts or more evenly: the gaps are gamma-distributed."""

    kind: Literal["gamma"] = "gamma"
    rate_per_s: Rate = Field(description="Requests per second, on average.")
    burstiness: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="Shape of the gamma distribution: 1 is Poisson, less comes in bursts, more is more even.",
    )
    seed: int = Field(0, description="Same seed, same times.")


class Trace(SpecPart):
    """Due at the times of a recorded trace: its n-th stamp is for the n-th request."""

    kind: Literal["trace"] = "trace"
    path: str | None = Field(
        None,
        description="JSONL, CSV or Parquet file with a stamp per row, in the order of the requests (default: the trace "
        "that is the prompts' source).",
    )
    column: str = Field("timestamp", description="Its column of stamps; the first one is the start.")
    unit: Literal["s", "ms", "date"] = Field(
        "s", description="Unit of the stamps; date: as 2023-11-16 18:01:50.9951390, UTC where no offset is given."
    )
    speed: float = Field(1.0, gt=0, allow_inf_nan=False, description="Times as fast as recorded: 2 halves the gaps.")


Arrival = Annotated[
    AllAtOnce | Concurrency | ConstantRate | Poisson | Gamma | Trace,
    Field(discriminator="kind"),
]


class LoadSpec(SpecPart):
    """When requests are sent, which of them count, and what ends the sending."""

    arrival: Arrival = Field(description="The pattern: one of the kinds below.")
    max_requests: int | None = Field(None, ge=1, description="Send at most this many; the others are left unsent.")
    max_duration_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Send nothing after so many seconds; what is in flight finishes."
    )
    max_errors: int | None = Field(None, ge=1, description="Stop sending after so many error rows; the run fails.")
    warmup_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="What is sent in the first seconds is kept, and left out of metrics.",
    )
    cooldown_s: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="The same for the last seconds of the sending."
    )
    stop_when_saturated: bool = Field(
        False, description="Stop sending once requests in flight pile up without end, as the rate is beyond the engine."
    )

    @model_validator(mode="after")
    def _check_windows(self) -> "LoadSpec":
        if self.max_duration_s is not None and self.warmup_s + self.cooldown_s >= self.max_duration_s:
            raise ValueError(
                f"warmup_s {self.warmup_s:g} and cooldown_s {self.cooldown_s:g} leave nothing of max_duration_s "
                f"{self.max_duration_s:g} to measure. Lengthen it, or shorten them"
            )
        return self

    @property
    def trace_speed(self) -> float | None:
        """Times as fast as recorded, if requests bring their own times; otherwise None."""
        trace = self.arrival
        return trace.speed if isinstance(trace, Trace) and trace.path is None else None

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are due at times that no answer changes."""
        return self.arrival.kind != "concurrency"

    @property
    def takes_any_order(self) -> bool:
        """Whether all requests are sent, each as soon as there is room for it."""
        limits = (self.max_requests, self.max_duration_s, self.max_errors)
        has_windows = self.warmup_s > 0 or self.cooldown_s > 0
        return not self.is_open_loop and not has_windows and all(limit is None for limit in limits)
