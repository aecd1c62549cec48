"""Phases of a load: what is sent in its windows is in the data, and in no latency and no throughput."""

import numpy as np
import pytest

SEEDS = range(5)
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


def sent(at_s, finished_at_s=None, **columns):
    """An answer of two tokens, one second long unless said."""
    end_s = at_s + 1.0 if finished_at_s is None else finished_at_s
    return {
        "sent_at_s": at_s,
        "arrived_at_s": at_s,
        "first_token_at_s": (at_s + end_s) / 2,
        "last_token_at_s": end_s,
        "finished_at_s": end_s,
        "prompt_tokens": 10,
        "output_tokens": 2,
        **columns,
    }


def phases(store, run_id="run"):
    return {row["request_id"]: row["phase"] for row in store.rows("stg_requests", run_id=run_id)}


def test_requests_sent_in_a_warm_up_or_cool_down_window_are_not_measured(store):
    store.given("loads", {"warmup_s": 2.0, "cooldown_s": 3.0})
    store.given_answers(*(sent(at_s) for at_s in (10.0, 11.9, 12.0, 15.0, 17.0, 17.1, 20.0)))
    in_order = [phase for _, phase in sorted(phases(store).items())]
    assert in_order == ["warmup"] * 2 + ["measured"] * 3 + ["cooldown"] * 2
    store.expect(
        "load_stretch",
        {
            "worker": "w",
            "engine_generation": 0,
            "has_windows": True,
            "first_sent_at_s": 10.0,
            "last_sent_at_s": 20.0,
            "begins_at_s": 12.0,
            "ends_at_s": 17.0,
            "stretch_s": 5.0,
        },
    )


def test_without_a_load_or_windows_everything_is_measured(store):
    store.given_answers(sent(1.0), sent(2.0), {"error_kind": "any"}, run_id="bare")
    store.given("loads", {"run_id": "whole"})
    store.given_answers(sent(1.0), sent(2.0), {"error_kind": "any"}, run_id="whole")
    for run_id in ("bare", "whole"):
        assert set(phases(store, run_id).values()) == {"measured"}
    store.expect("load_stretch", run_id="bare")
    store.expect("load_stretch", {"has_windows": False, "begins_at_s": 1.0, "ends_at_s": 2.0}, run_id="whole")


def test_throughput_of_a_closed_loop_leaves_out_the_drain_unless_little_finished_before_it(store):
    """Two slots, whose last answer takes five seconds: four results in the two seconds of sending."""
    times = [(0.0, 1.0), (0.0, 1.0), (1.0, 2.0), (1.0, 2.0), (2.0, 3.0), (2.0, 7.0)]
    for run_id, taken, rate in (("long", times, 2.0), ("short", [*times[:1], (0.0, 7.0)], 2 / 7)):
        store.given("loads", {"run_id": run_id, "arrival": "concurrency"})
        store.given_answers(*(sent(*each) for each in taken), run_id=run_id)
        assert set(phases(store, run_id).values()) == {"measured"}
        assert store.row("run_summary", run_id=run_id)["requests_per_s"] == pytest.approx(rate)


def test_throughput_of_engines_side_by_side_is_of_the_seconds_in_which_their_seats_are_taken(store):
    """Two engines of two seats; the second seat of each is taken after 3 s, and each then finishes two a second."""
    store.given("loads", {"arrival": "concurrency"})
    times = [(at_s, at_s + 1.0) for at_s in range(11)]
    times += [(at_s, at_s + 1.0) for at_s in range(3, 11)] + [(10.0, 15.0)]
    store.given_answers(
        *(
            sent(*each, worker=worker, request_id=f"{worker}-{place}", window_requests=2)
            for worker in ("a", "b")
            for place, each in enumerate(times)
        )
    )
    assert set(phases(store).values()) == {"measured"}, "latencies are of all"
    stretches = store.rows("load_stretch", "begins_at_s", "steady_from_s", "ends_at_s")
    assert stretches == [{"begins_at_s": 0.0, "steady_from_s": 3.0, "ends_at_s": 10.0}] * 2
    # each engine finished one at 3 s, and two at 4 s to 10 s
    assert store.row("run_summary")["requests_per_s"] == pytest.approx(2 * 15 / 7)


@pytest.mark.parametrize("windows", [0.0, 1.0])
def test_requests_that_never_reached_an_engine_have_no_phase(store, windows):
    store.given("loads", {"warmup_s": windows})
    store.given_answers(
        sent(1.0),
        {"request_id": "unsent", "error_kind": "not_sent"},
        {"request_id": "prepared", "worker": "prepare", "error_kind": "render"},
    )
    store.given("requests", {"request_id": "silent", "prompt_id": "silent"})
    found = phases(store)
    assert [found[name] for name in ("unsent", "prepared", "silent")] == [None, None, None]


def test_with_windows_an_error_without_a_stamp_has_no_phase(store):
    store.given("loads", {"warmup_s": 1.0})
    store.given_answers(sent(1.0), sent(3.0), {"request_id": "bare", "error_kind": "any"})
    assert phases(store)["bare"] is None
    store.given("loads", {"run_id": "alone", "warmup_s": 1.0})
    store.given_answers({"request_id": "bare", "error_kind": "any"}, run_id="alone")
    assert phases(store, "alone") == {"bare": None}
    store.expect("load_stretch", {"first_sent_at_s": None, "stretch_s": None}, run_id="alone")


def test_each_engine_has_windows_of_its_own(store):
    store.given("loads", {"warmup_s": 2.0, "cooldown_s": 1.0})
    store.given_answers(
        *(sent(at_s, engine_generation=0) for at_s in (0.0, 3.0, 5.0)),
        *(sent(at_s, engine_generation=1, request_id=f"b{at_s:g}") for at_s in (100.0, 103.0, 110.0)),
    )
    assert phases(store) == {
        "0": "warmup", "1": "measured", "2": "cooldown",
        "b100": "warmup", "b103": "measured", "b110": "cooldown",
    }  # fmt: skip
    assert store.row("run_summary", "measured_s") == {"measured_s": (5 - 1 - 2) + (10 - 1 - 2)}


def test_windows_may_leave_nothing(store):
    store.given("loads", {"warmup_s": 5.0, "cooldown_s": 6.0})
    store.given_answers(*(sent(at_s) for at_s in (0.0, 4.9, 5.5, 10.0)))
    assert "measured" not in phases(store).values()
    store.expect("run_summary", {"ok_requests": 4, "measured_requests": 0, "measured_s": None, "requests_per_s": None})
    store.expect("latency_histogram")
    assert {row["n"] for row in store.rows("latency_percentile")} == {0}


def test_throughput_without_windows_is_over_the_seconds_at_work(store):
    store.given("loads", {})
    store.given_answers(*(sent(float(i), 2.0 * i + 1.0) for i in range(101)))
    store.expect(
        "run_summary",
        {"downtime_s": 0.0, "working_s": 201.0, "measured_s": 201.0, "requests_per_s": 101 / 201},
    )


def given_windowed_load(store, run_id, seed):
    """Insert a load with windows; return its expected latencies, counts and rates."""
    random = np.random.default_rng(seed)
    n = 400
    at_s = np.cumsum(random.exponential(0.1, n)) + 7.0
    steps = random.lognormal(-1, 1, (n, 5))
    tokens = random.integers(1, 5, n)
    queued, scheduled = at_s + steps[:, 3], at_s + steps[:, 3] + steps[:, 4]
    first = scheduled + steps[:, 0]
    last = first + np.where(tokens > 1, steps[:, 1], 0)
    finished = last + steps[:, 2]
    failed = random.random(n) < 0.1
    warmup_s, cooldown_s = 6.0, 4.0
    store.given("loads", {"run_id": run_id, "warmup_s": warmup_s, "cooldown_s": cooldown_s})
    stamps = [np.linspace(first[i], last[i], tokens[i]).tolist() for i in range(n)]
    store.given_answers(
        *(
            {
                "sent_at_s": at_s[i],
                "arrived_at_s": at_s[i],
                "queued_at_s": queued[i],
                "scheduled_at_s": scheduled[i],
                "first_token_at_s": first[i],
                "last_token_at_s": last[i],
                "finished_at_s": finished[i],
                "output_tokens": int(tokens[i]),
                "token_at_s": stamps[i],
                "error_kind": "any" if failed[i] else None,
            }
            for i in range(n)
        ),
        run_id=run_id,
    )
    begins, ends = at_s[0] + warmup_s, at_s[-1] - cooldown_s
    measured = (at_s >= begins) & (at_s <= ends)
    ok = measured & ~failed
    values = {
        "ttft_s": (first - at_s)[ok],
        "queue_s": (scheduled - queued)[ok],
        "prefill_s": (first - scheduled)[ok],
        "decode_s": (last - first)[ok],
        "tpot_s": ((last - first) / np.maximum(tokens - 1, 1))[ok & (tokens > 1)],
        "e2e_s": (finished - at_s)[ok],
        "itl_s": np.concatenate([np.diff(stamps[i]) for i in np.flatnonzero(ok)]),
    }
    inside = ~failed & (finished >= begins) & (finished <= ends)
    summary = {
        "ok_requests": (~failed).sum(),
        "measured_requests": measured.sum(),
        "requests_per_s": inside.sum() / (ends - begins),
        "output_tokens_per_s": tokens[inside].sum() / (ends - begins),
    }
    return values, summary


def test_metrics_with_windows_against_numpy(store):
    expected = {f"seed {seed}": given_windowed_load(store, f"seed {seed}", seed) for seed in SEEDS}
    rows = {
        view: store.rows(view, run_id=None)
        for view in ("latency_percentile", "itl_percentile", "latency_histogram", "run_summary")
    }
    for run_id, (values, summary) in expected.items():
        of_run = {view: [row for row in found if row["run_id"] == run_id] for view, found in rows.items()}
        assert of_run["latency_percentile"] and of_run["itl_percentile"], run_id
        for row in of_run["latency_percentile"]:
            if row["metric"] in values:
                known = values[row["metric"]]
                assert row["n"] == known.size, row
                assert row["value_s"] == pytest.approx(np.quantile(known, row["percentile"])), row
        for row in of_run["itl_percentile"]:
            assert row["gaps"] == values["itl_s"].size, row
            assert row["value_s"] == pytest.approx(np.quantile(values["itl_s"], row["percentile"])), row
        counts = dict.fromkeys(LATENCIES, 0)
        for row in of_run["latency_histogram"]:
            counts[row["metric"]] += row["requests"]
        assert counts == {metric: values[metric].size for metric in LATENCIES}, run_id
        (found,) = of_run["run_summary"]
        assert {name: found[name] for name in summary} == pytest.approx(summary), run_id


def test_in_flight_and_timeline_count_requests_of_all_phases(store):
    store.given("loads", {"warmup_s": 5.0, "cooldown_s": 5.0})
    store.given_answers(sent(0.0, 20.0), sent(10.0, 20.0), sent(19.0, 20.0))
    assert store.row("run_summary", "max_in_flight_requests") == {"max_in_flight_requests": 3}
    assert sum(row["finished_requests"] for row in store.rows("timeline")) == 3
    assert sum(row["finished_requests"] for row in store.rows("activity")) == 3


def test_gaps_know_their_phase(store):
    store.given("loads", {"warmup_s": 5.0})
    store.given_answers(sent(0.0, 1.0, token_at_s=[0.5, 1.0]), sent(9.0, 9.9, token_at_s=[9.0, 9.25]))
    assert {(row["gaps"], row["value_s"]) for row in store.rows("itl_percentile")} == {(1, 0.25)}
