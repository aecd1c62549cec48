"""The profile `sweep`: its two ends, the rates between, what it keeps of the spec's load, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE

from assayline.benchmark.campaign import list_left, read_benchmark, write_campaign
from assayline.benchmark.configurations import BenchmarkAsk, add_rates, plan_benchmark
from assayline.benchmark.profile import (
    MOST_POINTS,
    SECONDS,
    THROUGHPUT_REQUESTS,
    Probe,
    SweepProfile,
    bisect_rate,
    list_points,
    space_rates,
)
from assayline.errors import RunFailedError, SpecError
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import load_spec

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"source": {"kind": "inline", "rows": [{"question": str(i)} for i in range(4)]}, "columns": {}}
ENGINE = {"backend": "async"}


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    found: EvalSpec = make_spec(engine=ENGINE, prompts=ROWS)
    return found


def loads_of(spec: EvalSpec, profile: SweepProfile) -> dict[str, dict[str, Any]]:
    return {label: json.loads(overrides["load"]) for label, overrides in list_points(spec, profile)}


def test_rates_are_even_and_end_at_what_all_at_once_achieved():
    assert space_rates(SweepProfile(points=4), 2.0, 10.0).rates_per_s == [4.0, 6.0, 8.0, 10.0]
    assert space_rates(SweepProfile(points=1), 2.0, 10.0).rates_per_s == [10.0]
    assert space_rates(SweepProfile(points=3), 0.1, 1 / 3).rates_per_s == [0.1778, 0.2556, 0.3333]


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ((5.0, 5.0), "there are no 8 rates between"),
        ((5.0, 4.0), "there are no 8 rates between"),
        ((5.0, 5.0001), "there are no 8 rates between"),
        ((None, 4.0), "The point synchronous has no measured throughput"),
        ((4.0, None), "The point throughput has no measured throughput"),
    ],
)
def test_profile_rejects_ends_without_rates_between(ends, sentence):
    with pytest.raises(RunFailedError, match=sentence):
        space_rates(SweepProfile(), *ends)


def test_points_are_one_after_another_then_all_at_once_then_the_rates(spec):
    found = loads_of(spec, SweepProfile(rates_per_s=[1.5, 3.0]))
    assert list(found) == ["synchronous", "throughput", "1.5/s", "3/s"]
    assert [load["arrival"] for load in found.values()] == [
        {"kind": "concurrency", "requests": 1},
        {"kind": "all_at_once"},
        {"kind": "constant", "rate_per_s": 1.5},
        {"kind": "constant", "rate_per_s": 3.0},
    ]
    assert {load["max_duration_s"] for load in found.values()} == {SECONDS}
    assert [load.get("max_requests") for load in found.values()] == [None, THROUGHPUT_REQUESTS, None, None]


def test_limits_that_are_given_replace_the_defaults(make_spec, spec):
    few = loads_of(spec, SweepProfile(requests=50, rates_per_s=[1.0]))
    assert [(load.get("max_duration_s"), load["max_requests"]) for load in few.values()] == [(None, 50)] * 3
    short = loads_of(spec, SweepProfile(seconds=7, rates_per_s=[1.0]))
    assert [load["max_duration_s"] for load in short.values()] == [7, 7, 7]
    own = make_spec(engine=ENGINE, prompts=ROWS, load={"arrival": {"kind": "all_at_once"}, "max_requests": 9})
    assert [load["max_requests"] for load in loads_of(own, SweepProfile(rates_per_s=[1.0])).values()] == [9, 9, 9]
    assert [load["max_requests"] for load in loads_of(own, SweepProfile(requests=5)).values()] == [5, 5]


def test_a_load_keeps_its_pattern_and_windows_where_they_make_sense(make_spec):
    load = {
        "arrival": {"kind": "poisson", "rate_per_s": 3, "burstiness": 0.5, "seed": 4},
        "warmup_s": 2,
        "cooldown_s": 1,
        "max_errors": 3,
        "max_duration_s": 20,
    }
    spec = make_spec(engine=ENGINE, prompts=ROWS, load=load)
    synchronous, at_once, rate = loads_of(spec, SweepProfile(rates_per_s=[6.0])).values()
    assert rate == {**load, "arrival": {"kind": "poisson", "rate_per_s": 6.0, "burstiness": 0.5, "seed": 4}}
    windows = ("warmup_s", "cooldown_s", "max_errors")
    assert [synchronous[name] for name in windows] == [2, 1, 3]
    assert [at_once[name] for name in windows] == [0, 0, 3]
    _, _, even = loads_of(spec, SweepProfile(arrival="constant", rates_per_s=[6.0])).values()
    assert even["arrival"] == {"kind": "constant", "rate_per_s": 6.0}


def test_rates_are_known_once_and_kept(spec, settings):
    plan = plan_benchmark(BenchmarkAsk(spec=spec, repeats=2, profile="sweep", points=3), settings)
    ends = plan.cells
    assert (len(ends), plan.planned, plan.total) == (2, 6, 10)
    assert [one.label for one in list_left(plan, settings)] == [
        "synchronous",
        "throughput",
        "throughput",
        "synchronous",
    ]
    write_campaign(plan, settings)
    assert read_benchmark(plan.campaign_id, settings) == plan
    whole = add_rates(plan, space_rates(plan.profile, 1.0, 4.0))
    points = whole.cells
    assert [one.label for one in points] == ["synchronous", "throughput", "2/s", "3/s", "4/s"]
    assert points[:2] == ends
    assert (whole.planned, whole.total) == (0, 10)
    write_campaign(whole, settings)
    assert read_benchmark(plan.campaign_id, settings) == whole
    assert [one.label for one in list_left(whole, settings)][4:] == ["2/s", "3/s", "4/s", "4/s", "3/s", "2/s"]


def probe(rate: float, seats: int, service_s: float, limit_s: float, requests: int) -> Probe:
    """Send requests at an even rate to a server with some seats. It is saturated if the queue grew to the end."""
    free, waits = [0.0] * seats, []
    for due_s in (i / rate for i in range(requests)):
        begins_s = max(due_s, min(free))
        free[free.index(min(free))] = begins_s + service_s
        waits.append(begins_s - due_s)
    is_saturated = waits[-1] > max(1.5 * waits[requests // 2], 0.01 * service_s)
    return Probe(rate, sum(wait <= limit_s for wait in waits), requests, is_saturated)


@pytest.mark.parametrize("seats", [2, 7, 20])
@pytest.mark.parametrize("service_s", [0.1, 2.0])
def test_search_finds_the_capacity_of_a_server_within_five_percent_in_eight_points(seats, service_s):
    capacity, probes = seats / service_s, []
    ends = 1 / service_s, 0.97 * capacity
    while (rate := bisect_rate(*ends, probes)) is not None:
        probes.append(probe(rate, seats, service_s, 0.1 * service_s, max(100, round(60 * rate))))
    assert len(probes) + 2 <= MOST_POINTS
    found = max(one.rate_per_s for one in probes if one.holds)
    assert capacity / 1.05 <= found <= 1.05 * capacity


def test_probe_holds_when_it_is_shown_and_the_engine_is_not_saturated():
    assert [Probe(1.0, good, 100, False).holds for good in (100, 96, 80)] == [True, None, False]
    assert Probe(1.0, 100, 100, False, is_late=True).holds is None, "the load was lighter"
    assert Probe(1.0, 100, 100, True).holds is False and Probe(1.0, 100, 100, True).is_too_much
    assert Probe(1.0, 100, 100, False).interval[0] == pytest.approx(0.963, abs=5e-4)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"slo": "x"}, "--profile slo needs --slo NAME"),
        ({"profile": "slo"}, "--profile slo needs --slo NAME"),
        ({"profile": "slo", "slo": "x", "points": 2}, "--profile slo needs --slo NAME"),
        ({"profile": None, "points": 0}, "--points needs a profile"),
        ({"profile": "slo", "slo": "quick"}, "--slo 'quick' is not an SLO of the spec: the spec has no slos"),
        ({"points": 0}, "--points 0 is below 1"),
        ({"arrival": "burst"}, "--arrival 'burst' is not valid. hint: pass constant or poisson"),
        ({"seconds": 0}, "--seconds 0 is not valid"),
        ({"requests": 0}, "--requests 0 is below 1"),
        ({"sweep": {"engine.max_concurrency": [1, 2]}}, "--profile and --sweep both vary"),
    ],
)
def test_profile_rejects_invalid_options(given, sentence, spec, settings):
    with pytest.raises(SpecError, match=sentence):
        plan_benchmark(BenchmarkAsk(**{"spec": spec, "profile": "sweep", **given}), settings)


def test_an_engine_without_arrivals_cannot_be_swept(make_spec, settings):
    with pytest.raises(SpecError, match=r"engine\.backend is fake\. hint: pass --engine\.backend async"):
        plan_benchmark(BenchmarkAsk(spec=make_spec(engine=FAKE, prompts=ROWS), profile="sweep"), settings)


def test_profile_rejects_windows_that_cover_a_whole_point(make_spec, settings):
    load = {"arrival": {"kind": "constant", "rate_per_s": 1}, "warmup_s": 5, "cooldown_s": 5}
    spec = make_spec(engine=ENGINE, prompts=ROWS, load=load)
    with pytest.raises(SpecError, match=r"synchronous is not a valid spec:\n.*leave nothing of max_duration_s 8"):
        plan_benchmark(BenchmarkAsk(spec=spec, profile="sweep", seconds=8), settings)


def test_the_example_can_be_swept(settings, tiny_model, monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = load_spec("examples/sweep.yaml", {"model": str(tiny_model)})
    plan = plan_benchmark(BenchmarkAsk(spec=spec, profile="sweep"), settings)
    points = add_rates(plan, space_rates(plan.profile, 1.0, 9.0)).cells
    arrivals = [point.spec.load.arrival.kind for point in points if point.spec.load]
    assert arrivals == ["concurrency", "all_at_once", *["poisson"] * 8]
    assert spec.slos and spec.engine.is_streaming and len(plan.cells) == 2
