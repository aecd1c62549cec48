"""load_point: latency against throughput, and where the knee is."""

import json

import numpy as np
import pytest

from assayline.comparison.benchmarks import list_repeats
from assayline.comparison.queries import choose_repeats

SEEDS = range(2)
REQUESTS = 80


def given_point(
    store, run_id, config_id, e2e_s, rate_per_s=1.0, lag_s=0.0, arrival="constant", requests=REQUESTS, **run
):
    """A run at a constant rate, of answers that take so long."""
    columns = {"concurrency": None, "requests_per_s": rate_per_s, "arrival": arrival}
    if arrival == "concurrency":
        columns |= {"concurrency": 4, "requests_per_s": None}
    store.given("loads", {"run_id": run_id, **columns})
    at_s = [i / rate_per_s + lag_s for i in range(requests)]
    store.given_answers(
        *(
            {
                "due_at_s": None if arrival == "concurrency" else i / rate_per_s,
                "sent_at_s": at_s[i],
                "arrived_at_s": at_s[i],
                "first_token_at_s": at_s[i] + e2e_s / 2,
                "last_token_at_s": at_s[i] + e2e_s,
                "finished_at_s": at_s[i] + e2e_s,
                "output_tokens": 3,
            }
            for i in range(requests)
        ),
        run_id=run_id,
    )
    changes = {"benchmark_id": "sweep", "config_id": config_id, **run}
    for column, value in changes.items():
        store.connection.execute(f"update runs set {column} = ? where run_id = ?", [value, run_id])


def test_load_point_matches_other_views_of_its_run(store):
    given_point(store, "a", "slow", e2e_s=2.0, rate_per_s=4.0)
    rate = 80 / (79 / 4 + 2.0)
    store.expect(
        "load_point",
        {
            "benchmark_id": "sweep",
            "config_id": "slow",
            "arrival": "constant",
            "offered_requests_per_s": 4.0,
            "concurrency": None,
            "requests_per_s": rate,
            "output_tokens_per_s": 3 * rate,
            "ttft_p50_s": 1.0,
            "ttft_p95_s": 1.0,
            "ttft_p99_s": 1.0,
            "tpot_p50_s": 0.5,
            "itl_p99_s": None,
            "e2e_p50_s": 2.0,
            "mean_in_flight_requests": rate * 2.0,
            "send_lag_p99_s": 0.0,
            "kept_up": True,
            "is_saturated": False,
            "power": rate / 2.0,
            "is_knee": True,
            "knee_obstacle": None,
        },
        run_id="a",
    )


def test_load_point_excludes_runs_outside_benchmarks_and_without_a_load(store):
    given_point(store, "alone", "a", 1.0, benchmark_id=None)
    store.given_answers({"sent_at_s": 0.0, "arrived_at_s": 0.0, "finished_at_s": 1.0}, run_id="offline")
    store.connection.execute("update runs set benchmark_id = 'sweep' where run_id = 'offline'")
    store.expect("load_point", run_id=None)


def test_a_closed_loop_has_no_offered_rate_and_a_trace_that_at_which_it_was_due(store):
    given_point(store, "closed", "a", 1.0, arrival="concurrency", benchmark_id="one")
    given_point(store, "traced", "a", 1.0, rate_per_s=8.0, arrival="trace", benchmark_id="other")
    store.connection.execute("update loads set requests_per_s = null")
    names = ("run_id", "offered_requests_per_s", "concurrency", "kept_up", "send_lag_p99_s", "is_knee")
    closed, traced = ("closed", None, 4, None, None, True), ("traced", 8.0, None, True, 0.0, True)
    store.expect("load_point", *(dict(zip(names, row, strict=True)) for row in (closed, traced)), run_id=None)


def test_the_knee_of_each_benchmark(store):
    """A benchmark for each case: one query finds all their knees."""
    for run_id, rate, e2e_s in (("low", 1.0, 1.0), ("best", 4.0, 1.2), ("high", 5.0, 9.0)):
        given_point(store, run_id, run_id, e2e_s, rate, benchmark_id="power is highest")
    for number, e2e_s in enumerate((1.0, 1.0, 0.1)):
        given_point(store, f"lucky-{number}", "lucky", e2e_s, benchmark_id="by the median of repeats")
        given_point(store, f"steady-{number}", "steady", 0.8, benchmark_id="by the median of repeats")
    given_point(store, "punctual", "a", 1.0, benchmark_id="a generator that fell behind is none")
    given_point(store, "flattered", "b", 0.1, lag_s=0.5, benchmark_id="a generator that fell behind is none")
    given_point(store, "dry", "a", 1.0, benchmark_id="saturated is none")
    given_point(store, "drowned", "b", 0.1, benchmark_id="saturated is none")
    store.given(
        "engine_events", {"run_id": "drowned", "event": "load_ended", "details_json": '{"reason": "saturated"}'}
    )
    given_point(store, "answered", "a", 1.0, benchmark_id="what was not answered is none")
    given_point(store, "piled up", "b", 1.0, rate_per_s=20.0, benchmark_id="what was not answered is none")
    given_point(store, "long", "a", 1.0, benchmark_id="a few requests are none")
    given_point(store, "short", "b", 0.1, requests=40, benchmark_id="a few requests are none")
    given_point(store, "all", "a", 0.1, arrival="all_at_once", benchmark_id="all at once is none")
    for state in ("failed", "running", "cancelled"):
        given_point(store, f"beside a {state} one", "a", 1.0, benchmark_id=f"{state} is none")
        given_point(store, f"{state} one", "b", 0.1, benchmark_id=f"{state} is none", state=state)
    names = ("benchmark_id", "run_id", "is_knee", "is_saturated", "knee_obstacle")
    rows = store.rows("load_point", *names, run_id=None)
    knees = {(row["benchmark_id"], row["run_id"]) for row in rows if row["is_knee"]}
    assert knees == {
        ("power is highest", "best"),
        *(("by the median of repeats", f"steady-{number}") for number in range(3)),
        ("a generator that fell behind is none", "punctual"),
        ("saturated is none", "dry"),
        ("what was not answered is none", "answered"),
        ("a few requests are none", "long"),
        *((f"{state} is none", f"beside a {state} one") for state in ("failed", "running", "cancelled")),
    }
    assert [row["run_id"] for row in rows if row["is_saturated"]] == ["drowned"]
    assert {row["run_id"]: row["knee_obstacle"] for row in rows if row["knee_obstacle"]} == {
        "high": "fewer than 50 requests", "flattered": "its client sent late", "drowned": "saturated",
        "piled up": "answered 81% of its load", "short": "fewer than 50 requests", "all": "all at once",
        "failed one": "it is failed", "running one": "it is running", "cancelled one": "it is cancelled",
    }  # fmt: skip


def test_the_knee_against_plain_python(store):
    """A benchmark for each seed: one query finds all their knees."""
    best = {}
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        power = {}
        for config in range(4):
            values = []
            for number in range(3):
                e2e_s, rate = float(random.uniform(0.5, 1.5)), float(random.uniform(0.5, 5))
                run_id = f"{seed}-{config}-{number}"
                given_point(store, run_id, str(config), e2e_s, rate, benchmark_id=f"seed-{seed}")
                values.append(80 / (79 / rate + e2e_s) / e2e_s)
            power[f"{seed}-{config}"] = np.median(values)
        name = max(power, key=power.__getitem__)
        best[name] = power[name]
    rows = store.rows("load_point", "run_id", "power", "is_knee", run_id=None)
    assert {row["run_id"] for row in rows if row["is_knee"]} == {f"{name}-{i}" for name in best for i in range(3)}
    found = {row["run_id"]: row["power"] for row in rows}
    for name, expected in best.items():
        assert np.median([found[f"{name}-{i}"] for i in range(3)]) == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("lag_s", "tick_s", "backend", "obstacle"),
    [
        (0.0, 0.001, "server", None),
        (0.5, 0.001, "server", "its client sent late"),
        (0.0, 0.2, "server", "its client read late"),
        (0.5, 0.2, "server", "its client sent late and read late"),
        (0.0, 0.2, "async", None),
    ],
)
def test_values_of_an_overloaded_client_are_not_valid_and_its_run_is_neither_knee_nor_repeat(
    store, lag_s, tick_s, backend, obstacle
):
    given_point(store, "run", "a", 1.0, lag_s=lag_s, spec_json=json.dumps({"engine": {"backend": backend}}))
    events = ({"run_id": "run", "event": event} for event in ("opened", "warmed_up"))
    store.given("engine_events", *events)
    store.given("telemetry", {"run_id": "run", "loop_lags_s": [tick_s] * 9})
    point = store.row("load_point", "knee_obstacle", "is_knee", run_id="run")
    assert (point["knee_obstacle"], point["is_knee"]) == (obstacle, obstacle is None)
    assert store.row("run_conditions", "obstacle", run_id="run")["obstacle"] == obstacle
    given_point(store, "new", "b", 1.0, benchmark_id="other")
    speed, accuracy = (
        choose_repeats(store.connection, "new", "run", for_accuracy=for_accuracy)[1] for for_accuracy in (False, True)
    )
    assert accuracy == ["run"] and speed == ["run"] * (obstacle is None), "a late client moves no answer"
    assert list_repeats(store.connection, "sweep") == {"a": (speed, accuracy)}
    query = "select metric, obstacle, is_valid from metric_value where run_id = 'run'"
    rows = store.connection.execute(query).fetchall()
    found = {metric: reason for metric, reason, is_valid in rows if is_valid == (reason is None)}
    assert found["ttft_s"] == found["e2e_s"] == found["tpot_s"] == obstacle
    assert found["output_tokens_per_s"] == (obstacle if lag_s else None) and found["ok_requests"] is None
