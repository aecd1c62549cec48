"""The profile `sweep`: one spec under loads from one request at a time to all at once.

The first two points are these ends. The others are rates evenly spaced between the throughputs of the ends, up to that
of all at once; they are known once the ends are measured, and stored in the benchmark's plan.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from assayline.errors import RunFailedError, SpecError

if TYPE_CHECKING:  # the command line needs the numbers below, and no more
    from assayline.spec.evaluation import EvalSpec

SYNCHRONOUS, THROUGHPUT = "synchronous", "throughput"
ENDS = 2
"""Number of points that are measured before the rates are known."""

ARRIVALS = ("constant", "poisson")
REPEATS = 5
"""Default repeats of a configuration: what a comparison needs. Points of a profile are one run each."""

NOISE_RUNS = 10
"""Default runs of a noise measurement."""

POINTS = 8
SECONDS = 30.0
"""Default seconds of sending per point."""

THROUGHPUT_REQUESTS = 1_000
"""Default maximum of requests at once. A limit in seconds cannot apply, because all are due in the first."""

RATE_DIGITS = 4
RATED = ("constant", "poisson", "gamma")
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
    """Requests per second, ascending; empty until the ends have been measured."""


def choose_profile(name: str | None, options: Mapping[str, Any]) -> SweepProfile | None:
    """Return the profile of this name with these options. Raises SpecError for options without a profile."""
    if name is None and options:
        raise SpecError(f"--{next(iter(options))} needs a profile. hint: add --profile sweep, or omit the option.")
    return SweepProfile(**options) if name else None


def check_profile(profile: SweepProfile, spec: "EvalSpec") -> None:
    """Raise SpecError for a spec or options that cannot be swept."""
    if not spec.engine.is_streaming:
        raise SpecError(
            f"--profile sweep needs a streaming engine, and engine.backend is {spec.engine.backend}. hint: pass "
            "--engine.backend async, or use server."
        )
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
    kind = profile.arrival or (own.get("kind") if own.get("kind") in RATED else ARRIVALS[0])
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
