"""concurrency and timeline: an exact sweep, and seconds that are all there."""

from itertools import pairwise

import numpy as np
import pytest

SEEDS = range(3)


def given_stays(store, *stays, run_id="run", **columns):
    store.given_answers(*({"arrived_at_s": a, "finished_at_s": f, **columns} for a, f in stays), run_id=run_id)


def random_stays(seed, n=400):
    random = np.random.default_rng(seed)
    arrived = np.round(np.cumsum(random.exponential(0.05, n)), 3 if seed % 2 else 6)
    return arrived, np.round(arrived + random.lognormal(0, 1, n), 3 if seed % 2 else 6)


def test_the_sweep_has_a_row_per_change(store):
    given_stays(store, (1.0, 4.0), (2.0, 3.0))
    store.expect(
        "concurrency",
        {"at_s": 1.0, "until_s": 2.0, "stretch_s": 1.0, "in_flight_requests": 1},
        {"at_s": 2.0, "until_s": 3.0, "stretch_s": 1.0, "in_flight_requests": 2},
        {"at_s": 3.0, "until_s": 4.0, "stretch_s": 1.0, "in_flight_requests": 1},
        {"at_s": 4.0, "until_s": None, "stretch_s": None, "in_flight_requests": 0},
    )


def test_a_departure_makes_room_for_an_arrival_of_the_same_moment(store):
    given_stays(store, (1.0, 2.0), (2.0, 3.0))
    store.expect("concurrency", {"at_s": 1.0, "in_flight_requests": 1}, {"at_s": 3.0, "in_flight_requests": 0})


def test_errors_were_in_flight_too(store):
    given_stays(store, (1.0, 2.0), error_kind="engine_died")
    store.expect("concurrency", {"at_s": 1.0, "in_flight_requests": 1}, {"at_s": 2.0, "in_flight_requests": 0})


@pytest.mark.parametrize("stay", [(None, 2.0), (1.0, None), (None, None), (1.0, 1.0), (2.0, 1.0)])
def test_a_stay_without_length_is_not_in_flight(store, stay):
    given_stays(store, stay)
    store.expect("concurrency")


def given_random_runs(store, **columns):
    """A run for each seed: a query is planned longer than it runs. Returns arrivals and ends by run."""
    runs = {f"seed {seed}": random_stays(seed) for seed in SEEDS}
    for run_id, (arrived, finished) in runs.items():
        given_stays(store, *zip(arrived.tolist(), finished.tolist(), strict=True), run_id=run_id, **columns)
    return runs


def test_the_sweep_against_counting(store):
    runs = given_random_runs(store)
    found = store.rows("concurrency", run_id=None)
    for run_id, (arrived, finished) in runs.items():
        rows = sorted((row for row in found if row["run_id"] == run_id), key=lambda row: row["at_s"])
        for row in rows:
            in_flight = np.count_nonzero((arrived <= row["at_s"]) & (row["at_s"] < finished))
            assert row["in_flight_requests"] == in_flight
        counts = [row["in_flight_requests"] for row in rows]
        assert all(one != other for one, other in pairwise(counts))
        assert counts[-1] == 0


def test_a_timeline_leaves_no_second_out(store):
    store.given_answers(
        {"arrived_at_s": 1.5, "finished_at_s": 2.25, "output_tokens": 7},
        {"arrived_at_s": 1.75, "finished_at_s": 4.0, "output_tokens": 5},
        {"arrived_at_s": 2.0, "finished_at_s": 2.5, "output_tokens": None},
        {"arrived_at_s": 2.0, "finished_at_s": 2.75, "output_tokens": 9, "error_kind": "engine_died"},
    )
    nothing = {"finished_requests": 0, "error_requests": 0, "output_tokens": 0, "mean_e2e_s": None}
    some = {"finished_requests": 2, "error_requests": 1, "output_tokens": 7, "mean_e2e_s": (0.75 + 0.5) / 2}
    last = {"finished_requests": 1, "error_requests": 0, "output_tokens": 5, "mean_e2e_s": 2.25}
    store.expect(
        "timeline",
        {"second": 0, "mean_in_flight_requests": 0.0, **nothing},
        {"second": 1, "mean_in_flight_requests": 0.5 + 0.25, **nothing},
        {"second": 2, "mean_in_flight_requests": 0.25 + 1.0 + 0.5 + 0.75, **some},
        {"second": 3, "mean_in_flight_requests": 1.0, **nothing},
        {"second": 4, "mean_in_flight_requests": 0.0, **last},
    )


def test_a_run_without_stamps_has_no_timeline(store):
    store.given_answers({"worker": "prepare", "error_kind": "template"})
    store.expect("timeline")


def test_a_request_that_never_arrived_counts_where_it_ended(store):
    given_stays(store, (None, 1.5), error_kind="timeout")
    store.expect(
        "timeline",
        {"second": 0, "error_requests": 0, "mean_in_flight_requests": 0.0},
        {"second": 1, "error_requests": 1, "mean_in_flight_requests": 0.0},
    )


def test_the_timeline_against_numpy(store):
    runs = given_random_runs(store, output_tokens=3)
    found = store.rows("timeline", run_id=None)
    for run_id, (arrived, finished) in runs.items():
        rows = sorted((row for row in found if row["run_id"] == run_id), key=lambda row: row["second"])
        assert [row["second"] for row in rows] == list(range(int(finished.max()) + 1))
        for row in rows:
            begin, end = row["second"], row["second"] + 1
            ended = (begin <= finished) & (finished < end)
            overlap = np.clip(np.minimum(finished, end) - np.maximum(arrived, begin), 0, None)
            assert row["finished_requests"] == ended.sum() and row["output_tokens"] == 3 * ended.sum()
            assert row["mean_in_flight_requests"] == pytest.approx(overlap.sum())
            mean = (finished - arrived)[ended].mean() if ended.any() else None
            assert row["mean_e2e_s"] == (None if mean is None else pytest.approx(mean))
