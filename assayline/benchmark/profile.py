"""The profile `sweep`: one spec under every load between one request after another and all of them at once.

Its first two points are these ends. The others are rates evenly between what the ends achieved, the last one as fast
as everything at once; they are known once the ends have been measured, and kept in the benchmark's plan.
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
"""Points that are measured before the rates are known."""

ARRIVALS = ("constant", "poisson")
REPEATS = 5
"""Of each configuration: what a comparison needs. The points of a profile are one run each."""

POINTS = 8
SECONDS = 30.0
"""Of sending per point, where nothing else limits it."""

THROUGHPUT_REQUESTS = 1_000
"""Most requests to send at once, where nothing else limits them: seconds cannot, as all are due in the first."""

RATE_DIGITS = 4
RATED = ("constant", "poisson", "gamma")
"""Arrivals of a spec that a point takes over, with another rate."""


@dataclass(frozen=True, slots=True)
class SweepProfile:
    """What a sweep was asked for, and its rates once they are known."""

    points: int = POINTS
    """Rates between the two ends."""
    arrival: str | None = None
    """constant or poisson; unset: the spec's own pattern, if that has a rate, else constant."""
    seconds: float | None = None
    """Longest sending per point."""
    requests: int | None = None
    """Most requests per point."""
    rates_per_s: list[float] = field(default_factory=list)
    """Requests per second, ascending; empty until the ends have been measured."""


def choose_profile(name: str | None, options: Mapping[str, Any]) -> SweepProfile | None:
    """Return the profile of this name with these options. Raise SpecError for options without a profile."""
    if name is None and options:
        raise SpecError(f"--{next(iter(options))} says how a profile is run. Add --profile sweep, or leave it out.")
    return SweepProfile(**options) if name else None


def choose_repeats(given: int | None, profile: SweepProfile | None) -> int:
    """Return the number of runs per configuration."""
    if given is not None:
        return given
    return 1 if profile else REPEATS


def check_profile(profile: SweepProfile, spec: "EvalSpec") -> None:
    """Raises SpecError for what cannot be swept."""
    if not spec.engine.is_streaming:
        raise SpecError(
            f"--profile sweep needs an engine that sends when requests are due, given engine.backend "
            f"{spec.engine.backend}. Set it to async or server: --engine.backend async"
        )
    if profile.points < 1:
        raise SpecError(f"--points was given {profile.points}, expected 1 or more rates between the two ends.")
    if profile.arrival not in (None, *ARRIVALS):
        raise SpecError(f"--arrival was given {profile.arrival!r}, expected {' or '.join(ARRIVALS)}.")
    if profile.seconds is not None and not 0 < profile.seconds < float("inf"):
        raise SpecError(f"--seconds was given {profile.seconds:g}, expected seconds of sending per point, above 0.")
    if profile.requests is not None and profile.requests < 1:
        raise SpecError(f"--requests was given {profile.requests}, expected 1 or more requests per point.")


def list_points(spec: "EvalSpec", profile: SweepProfile) -> list[tuple[str, dict[str, str]]]:
    """Labels, and the load to lay over the spec as YAML text by field: the two ends, then the rates that are known."""
    given = spec.load.model_dump(mode="json", exclude_none=True) if spec.load else {}
    load = _limit(given, profile)
    # An end has no rate that could be too high, and what is sent at once is all sent in the first second: of it,
    # windows of warm-up and cool-down would leave nothing.
    synchronous = {**load, "arrival": {"kind": "concurrency", "requests": 1}, "stop_when_saturated": False}
    at_once = {
        "max_requests": THROUGHPUT_REQUESTS,
        **load,
        "arrival": {"kind": "all_at_once"},
        "stop_when_saturated": False,
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
    """The spec's load with the limits of a point: those asked for, else the spec's, else `SECONDS`."""
    asked = {"max_duration_s": profile.seconds, "max_requests": profile.requests}
    load = {**given, **{name: value for name, value in asked.items() if value is not None}}
    return load if {"max_duration_s", "max_requests"} & load.keys() else {**load, "max_duration_s": SECONDS}


def _choose_arrival(given: Mapping[str, Any], profile: SweepProfile) -> dict[str, Any]:
    """The pattern of a rate: what was asked for, with the spec's seed and burstiness where that has the same one."""
    own = given.get("arrival", {})
    kind = profile.arrival or (own.get("kind") if own.get("kind") in RATED else ARRIVALS[0])
    return dict(own) if own.get("kind") == kind else {"kind": kind}


def space_rates(profile: SweepProfile, synchronous_per_s: float | None, throughput_per_s: float | None) -> SweepProfile:
    """The profile with its rates: evenly from above the first end to the second.

    Raises RunFailedError where there is nothing between the two.
    """
    if synchronous_per_s is None or throughput_per_s is None:
        end = SYNCHRONOUS if synchronous_per_s is None else THROUGHPUT
        raise RunFailedError(
            f"The point {end} answered nothing that counts, so the rates of the sweep are not known. Look at its run; "
            "with a warm-up or cool-down window, --seconds must leave time between."
        )
    step = (throughput_per_s - synchronous_per_s) / profile.points
    rates = [float(f"{synchronous_per_s + step * (i + 1):.{RATE_DIGITS}g}") for i in range(profile.points)]
    if step <= 0 or len(set(rates)) < len(rates):
        raise RunFailedError(
            f"All at once the engine answered {throughput_per_s:.4g} requests/s, and one after another "
            f"{synchronous_per_s:.4g}: there are no {profile.points} rates between. Look at both runs; give fewer "
            "--points, or let the engine take more at once (engine.args.max_num_seqs)."
        )
    return replace(profile, rates_per_s=rates)
