"""The profiles `sweep` and `slo`: one spec under loads from one request at a time to all at once.

The first two points are these ends. A sweep's other points are rates evenly spaced between the throughputs of the ends,
up to that of all at once; they are known once the ends are measured, and stored in the benchmark's plan. The profile
`slo` bisects between them for the highest rate at which `GOAL` of the requests are good.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from assayline.errors import RunFailedError, SpecError
from assayline.words import nearest

if TYPE_CHECKING:  # the command line needs the numbers below, and no more
    from assayline.spec.evaluation import EvalSpec

SYNCHRONOUS, THROUGHPUT = "synchronous", "throughput"
ENDS = 2
"""Number of points that are measured before the rates are known."""

ARRIVALS = ("constant", "poisson")
REPEATS = 5
"""Default repeats of a configuration: what a comparison needs. Points of a profile are one run each."""

GOAL = 0.95
"""Share of good requests with which an SLO holds."""
MOST_POINTS = 8
"""Points of a search, its ends included."""
CLOSE = 1.05
"""Ratio of the rates around the one that is searched, at which a search ends."""

POINTS = 8
SECONDS = 30.0
"""Default seconds of sending per point."""

THROUGHPUT_REQUESTS = 1_000
"""Default maximum of requests at once. A limit in seconds cannot apply, because all are due in the first."""

RATE_DIGITS = 4
"""Arrival patterns of a spec that a point reuses with another rate."""


@dataclass(frozen=True, slots=True)
class SweepProfile:
    """The options of a sweep, and its rates once they are known."""

    points: int = POINTS
    """Rates between the two ends."""
    arrival: str | None = None
    """constant or poisson; unset: the spec's pattern if it has a rate, otherwise constant."""
    seconds: float | None = None
    """Maximum seconds of sending per point."""
    requests: int | None = None
    """Maximum requests per point."""
    rates_per_s: list[float] = field(default_factory=list)
    """Requests per second, in the order of measuring; empty until the ends have been measured."""
    slo: str | None = None
    """The SLO of a search; None for a sweep."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Good requests by an SLO at one rate."""

    rate_per_s: float
    good: int
    requests: int
    is_saturated: bool | None
    is_late: bool = False
    """Whether requests were sent late, so that the load was lighter."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the share of good requests (Wilson 1927)."""
        from assayline.stats.clusters import bound_share

        share, n = self.good / self.requests, self.requests
        return bound_share(share, share * (1 - share), n, n, n, 0.0)

    @property
    def holds(self) -> bool | None:
        """Return whether GOAL of the requests are shown to be good on an engine that is not saturated; None if open."""
        low, high = self.interval
        return False if self.is_saturated or high < GOAL else True if low >= GOAL and not self.is_late else None

    @property
    def is_too_much(self) -> bool:
        return bool(self.is_saturated) or self.good < GOAL * self.requests


def bisect_rate(synchronous_per_s: float, throughput_per_s: float, probes: Sequence[Probe]) -> float | None:
    """Return the next rate of a search, in the middle on a logarithmic scale; None if it has ended.

    A run of all at once is a little slower than the capacity while it fills and drains.
    """
    low = max([synchronous_per_s, *(one.rate_per_s for one in probes if not one.is_too_much)])
    high = min([CLOSE * throughput_per_s, *(one.rate_per_s for one in probes if one.is_too_much)])
    if ENDS + len(probes) >= MOST_POINTS or high <= CLOSE * low:
        return None
    return float(f"{math.sqrt(low * high):.{RATE_DIGITS}g}")


def check_profile(profile: SweepProfile, spec: "EvalSpec") -> None:
    """Raise SpecError for a spec or options that cannot be swept."""
    if not spec.engine.is_streaming:
        raise SpecError(
            f"A profile needs a streaming engine, and engine.backend is {spec.engine.backend}. hint: pass "
            "--engine.backend async, or use server."
        )
    if profile.slo is not None and profile.slo not in (names := [slo.name for slo in spec.slos]):
        known = nearest(profile.slo, names) if names else "the spec has no slos"
        raise SpecError(f"--slo {profile.slo!r} is not an SLO of the spec: {known}. hint: add it to `slos`.")
    if profile.points < 1:
        raise SpecError(f"--points {profile.points} is below 1. hint: pass the number of rates between the two ends.")
    if profile.arrival not in (None, *ARRIVALS):
        raise SpecError(f"--arrival {profile.arrival!r} is not valid. hint: pass {' or '.join(ARRIVALS)}.")
    if profile.seconds is not None and not 0 < profile.seconds < float("inf"):
        raise SpecError(
            f"--seconds {profile.seconds:g} is not valid. hint: pass seconds of sending per point, above 0."
        )
    if profile.requests is not None and profile.requests < 1:
        raise SpecError(f"--requests {profile.requests} is below 1. hint: pass the maximum requests per point.")


def list_points(spec: "EvalSpec", profile: SweepProfile) -> list[tuple[str, dict[str, str]]]:
    """Return labels and load overrides as YAML text by field: the two ends, then the known rates."""
    given = spec.load.model_dump(mode="json", exclude_none=True) if spec.load else {}
    load = _limit(given, profile)
    # All at once, everything is sent in the first second, of which warm-up and cool-down would leave nothing.
    synchronous = {**load, "arrival": {"kind": "concurrency", "requests": 1}}
    at_once = {
        "max_requests": THROUGHPUT_REQUESTS,
        **load,
        "arrival": {"kind": "all_at_once"},
        "warmup_s": 0,
        "cooldown_s": 0,
    }
    rated = [
        (f"{rate:g}/s", {**load, "arrival": {**_choose_arrival(given, profile), "rate_per_s": rate}})
        for rate in profile.rates_per_s
    ]
    points = [(SYNCHRONOUS, synchronous), (THROUGHPUT, at_once), *rated]
    return [(label, {"load": json.dumps(point)}) for label, point in points]


def _limit(given: Mapping[str, Any], profile: SweepProfile) -> dict[str, Any]:
    """Return the spec's load with the limits of a point: those of the profile, else the spec's, else `SECONDS`."""
    asked = {"max_duration_s": profile.seconds, "max_requests": profile.requests}
    load = {**given, **{name: value for name, value in asked.items() if value is not None}}
    return load if {"max_duration_s", "max_requests"} & load.keys() else {**load, "max_duration_s": SECONDS}


def _choose_arrival(given: Mapping[str, Any], profile: SweepProfile) -> dict[str, Any]:
    """Return the pattern of a rate, with the spec's seed and burstiness if the spec has the same pattern."""
    own = given.get("arrival", {})
    kind = profile.arrival or (own.get("kind") if own.get("kind") in ARRIVALS else ARRIVALS[0])
    return dict(own) if own.get("kind") == kind else {"kind": kind}


def space_rates(profile: SweepProfile, synchronous_per_s: float | None, throughput_per_s: float | None) -> SweepProfile:
    """Add the rates to a profile: evenly spaced from above the first end to the second.

    Raises RunFailedError if there is no room between the two.
    """
    if synchronous_per_s is None or throughput_per_s is None:
        end = SYNCHRONOUS if synchronous_per_s is None else THROUGHPUT
        raise RunFailedError(
            f"The point {end} has no measured throughput, so the rates of the sweep are unknown. hint: check its run; "
            "with warm-up or cool-down, --seconds must leave time to measure between them."
        )
    step = (throughput_per_s - synchronous_per_s) / profile.points
    rates = [float(f"{synchronous_per_s + step * (i + 1):.{RATE_DIGITS}g}") for i in range(profile.points)]
    if step <= 0 or len(set(rates)) < len(rates):
        raise RunFailedError(
            f"All at once the engine answered {throughput_per_s:.4g} requests/s, and one after another "
            f"{synchronous_per_s:.4g}: there are no {profile.points} rates between. hint: check both runs, pass fewer "
            "--points, or raise engine.args.max_num_seqs."
        )
    return replace(profile, rates_per_s=rates)
