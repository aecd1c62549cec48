"""sweep_point: latency against throughput, and where the knee is."""

import numpy as np
import pytest

SEEDS = range(5)


def given_point(store, run_id, config_id, e2e_s, rate_per_s=1.0, lag_s=0.0, arrival="constant", **run):
    """A run at a constant rate, of twenty answers that take so long."""
    columns = {"concurrency": None, "requests_per_s": rate_per_s, "arrival": arrival}
    if arrival == "concurrency":
        columns |= {"concurrency": 4, "requests_per_s": None}
    store.given("loads", {"run_id": run_id, **columns})
    at_s = [i / rate_per_s + lag_s for i in range(20)]
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
            for i in range(20)
        ),
        run_id=run_id,
    )
    changes = {"benchmark_id": "sweep", "config_id": config_id, **run}
    for column, value in changes.items():
        store.connection.execute(f"update runs set {column} = ? where run_id = ?", [value, run_id])


def knees(store):
    return {row["run_id"] for row in store.rows("sweep_point", "run_id", "is_knee", run_id=None) if row["is_knee"]}


def test_a_point_has_what_other_views_say_of_its_run(store):
    given_point(store, "a", "slow", e2e_s=2.0, rate_per_s=4.0)
    rate = 20 / (19 / 4 + 2.0)
    store.expect(
        "sweep_point",
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
            "is_saturated": None,
            "power": rate / 2.0,
            "is_knee": True,
        },
        run_id="a",
    )


def test_runs_outside_of_benchmarks_and_without_a_load_are_no_points(store):
    given_point(store, "alone", "a", 1.0, benchmark_id=None)
    store.given_answers({"sent_at_s": 0.0, "arrived_at_s": 0.0, "finished_at_s": 1.0}, run_id="offline")
    store.connection.execute("update runs set benchmark_id = 'sweep' where run_id = 'offline'")
    store.expect("sweep_point", run_id=None)


def test_a_closed_loop_is_a_point_without_a_rate(store):
    given_point(store, "a", "a", 1.0, arrival="concurrency")
    store.expect(
        "sweep_point",
        {"offered_requests_per_s": None, "concurrency": 4, "kept_up": None, "send_lag_p99_s": None, "is_knee": True},
        run_id="a",
    )


def test_a_trace_has_the_rate_at_which_it_was_due(store):
    given_point(store, "a", "a", 1.0, rate_per_s=8.0, arrival="trace")
    store.connection.execute("update loads set requests_per_s = null")
    store.expect("sweep_point", {"offered_requests_per_s": 8.0}, run_id="a")


def test_the_knee_is_where_power_is_highest(store):
    for run_id, rate, e2e_s in (("a", 1.0, 1.0), ("b", 4.0, 1.2), ("c", 5.0, 9.0)):
        given_point(store, run_id, run_id, e2e_s, rate)
    assert knees(store) == {"b"}


def test_a_configuration_is_the_knee_by_the_median_of_its_repeats(store):
    for number, e2e_s in enumerate((1.0, 1.0, 0.1)):
        given_point(store, f"lucky-{number}", "lucky", e2e_s)
        given_point(store, f"steady-{number}", "steady", 0.8)
    assert knees(store) == {"steady-0", "steady-1", "steady-2"}


def test_a_run_whose_generator_fell_behind_is_no_knee(store):
    given_point(store, "a", "a", 1.0)
    given_point(store, "flattered", "b", 0.1, lag_s=0.5)
    assert knees(store) == {"a"}


def test_sweep_point_has_no_knee_at_a_saturated_run(store):
    given_point(store, "a", "a", 1.0)
    given_point(store, "drowned", "b", 0.1)
    store.given(
        "engine_events", {"run_id": "drowned", "event": "load_ended", "details_json": '{"reason": "saturated"}'}
    )
    store.expect("sweep_point", {"is_saturated": True, "is_knee": False}, run_id="drowned")
    assert knees(store) == {"a"}


def test_a_run_that_was_not_completed_is_no_knee(store):
    states = ["failed", "running", "cancelled"]
    for state in states:
        given_point(store, f"{state}-a", "a", 1.0, benchmark_id=state)
        given_point(store, f"{state}-b", "b", 0.1, benchmark_id=state, state=state)
    assert knees(store) == {f"{state}-a" for state in states}


def test_each_benchmark_has_its_knee(store):
    given_point(store, "a", "a", 1.0)
    given_point(store, "b", "a", 5.0, benchmark_id="other")
    assert knees(store) == {"a", "b"}


def test_the_knee_against_plain_python(store):
    """A benchmark for each seed: one query finds all their knees."""
    best = {}
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        power = {}
        for config in range(4):
            values = []
            for number in range(3):
                e2e_s, rate = float(random.uniform(0.5, 5)), float(random.uniform(0.5, 5))
                run_id = f"{seed}-{config}-{number}"
                given_point(store, run_id, str(config), e2e_s, rate, benchmark_id=f"seed-{seed}")
                values.append(20 / (19 / rate + e2e_s) / e2e_s)
            power[f"{seed}-{config}"] = np.median(values)
        name = max(power, key=power.__getitem__)
        best[name] = power[name]
    rows = store.rows("sweep_point", "run_id", "power", "is_knee", run_id=None)
    assert {row["run_id"] for row in rows if row["is_knee"]} == {f"{name}-{i}" for name in best for i in range(3)}
    found = {row["run_id"]: row["power"] for row in rows}
    for name, expected in best.items():
        assert np.median([found[f"{name}-{i}"] for i in range(3)]) == pytest.approx(expected), name


def test_goodput_is_joined_by_run(store):
    given_point(store, "a", "a", 1.0)
    store.given("slos", {"run_id": "a", "metric": "e2e_s", "limit_s": 2.0})
    found = store.connection.execute(
        "select offered_requests_per_s, good_share from sweep_point join goodput using (run_id)"
    ).fetchall()
    assert found == [(1.0, 1.0)]
