"""activity and latency_histogram: what charts show, against counting by hand and NumPy."""

import itertools
import math

import numpy as np
import pytest

SCALES = (0.001, 1.0, 1000.0)


def given_random_runs(store):
    """A run for each scale of time; their answers by run."""
    return {f"seconds × {scale_s}": given_random_run(store, seed, scale_s) for seed, scale_s in enumerate(SCALES)}


def given_random_run(store, seed, scale_s):
    """Some hundred requests with random stamps, errors among them. Returns them as rows."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 400))
    arrived = np.cumsum(random.exponential(0.1 * scale_s, count)) + 30 * scale_s
    answers = []
    for arrived_at_s in arrived.tolist():
        ttft_s, decode_s = random.exponential(scale_s), random.exponential(3 * scale_s)
        answers.append(
            {
                "arrived_at_s": arrived_at_s,
                "first_token_at_s": arrived_at_s + ttft_s,
                "last_token_at_s": arrived_at_s + ttft_s + decode_s,
                "finished_at_s": arrived_at_s + ttft_s + decode_s,
                "output_tokens": int(random.integers(1, 50)),
                "error_kind": "any" if random.random() < 0.1 else None,
            }
        )
    store.given_answers(*answers, run_id=f"seconds × {scale_s}")
    return answers


def is_nice(width_s):
    return any(math.isclose(width_s, step * 10**power) for step in (1, 2, 5) for power in range(-6, 7))


def test_activity_against_counting_by_hand(store):
    runs = given_random_runs(store)
    for run_id, answers in runs.items():
        expect_activity(store.rows("activity", run_id=run_id), answers)


def expect_activity(found, answers):
    rows = sorted(found, key=lambda row: row["begins_at_s"])
    width_s = rows[0]["ends_at_s"] - rows[0]["begins_at_s"]
    assert is_nice(width_s) and width_s >= 0.00099
    assert len(rows) <= 61
    for row, following in itertools.pairwise(rows):
        assert row["ends_at_s"] == pytest.approx(following["begins_at_s"])
    assert rows[0]["begins_at_s"] <= min(answer["arrived_at_s"] for answer in answers) < rows[0]["ends_at_s"]
    assert rows[-1]["begins_at_s"] <= max(answer["finished_at_s"] for answer in answers) < rows[-1]["ends_at_s"]
    for row in rows:
        begin, end = row["begins_at_s"], row["ends_at_s"]
        inside = [answer for answer in answers if begin <= answer["finished_at_s"] < end]
        ok = [answer for answer in inside if answer["error_kind"] is None]
        tokens = sum(answer["output_tokens"] for answer in ok)
        held_s = sum(
            max(0.0, min(end, answer["finished_at_s"]) - max(begin, answer["arrived_at_s"])) for answer in answers
        )
        assert (row["finished_requests"], row["error_requests"]) == (len(ok), len(inside) - len(ok))
        assert row["output_tokens"] == tokens
        assert row["requests_per_s"] == pytest.approx(len(ok) / width_s)
        assert row["output_tokens_per_s"] == pytest.approx(tokens / width_s)
        assert row["mean_in_flight_requests"] == pytest.approx(held_s / width_s, abs=1e-6)


def test_a_run_whose_requests_took_no_time_has_one_slice(store):
    store.given_answers({"arrived_at_s": 7.0, "finished_at_s": 7.0, "output_tokens": 1})
    store.expect("activity", {"finished_requests": 1, "mean_in_flight_requests": 0.0, "requests_per_s": 1000.0})


def test_a_run_without_stamps_has_neither_slices_nor_bins(store):
    store.given_answers({"error_kind": "any"})
    store.expect("activity")
    store.expect("latency_histogram")


def test_histogram_against_numpy(store):
    runs = given_random_runs(store)
    for run_id, answers in runs.items():
        ok = [answer for answer in answers if answer["error_kind"] is None]
        expect_histogram(store.rows("latency_histogram", run_id=run_id), ok)


def expect_histogram(found, answers):
    latencies = {
        "ttft_s": [answer["first_token_at_s"] - answer["arrived_at_s"] for answer in answers],
        "tpot_s": [
            (answer["last_token_at_s"] - answer["first_token_at_s"]) / (answer["output_tokens"] - 1)
            for answer in answers
            if answer["output_tokens"] > 1
        ],
        "e2e_s": [answer["finished_at_s"] - answer["arrived_at_s"] for answer in answers],
    }
    assert {row["metric"] for row in found} == {metric for metric, values in latencies.items() if values}
    for metric, values in latencies.items():
        bins = sorted((row for row in found if row["metric"] == metric), key=lambda row: row["from_s"])
        if not values:
            continue
        *closed, last = bins
        assert last["until_s"] is None
        assert len(closed) <= 32
        assert is_nice(closed[0]["until_s"] - closed[0]["from_s"])
        tail_s = float(np.quantile(values, 0.99))
        assert closed[-1]["from_s"] <= tail_s <= closed[-1]["until_s"]
        edges = [row["from_s"] for row in bins] + [math.inf]
        assert [row["requests"] for row in bins] == np.histogram(values, edges)[0].tolist()


def test_equal_latencies_are_one_bin(store):
    answer = {"arrived_at_s": 0.0, "first_token_at_s": 0.5, "finished_at_s": 0.5}
    store.given_answers(answer, answer, answer)
    bins = [row for row in store.rows("latency_histogram") if row["metric"] == "e2e_s"]
    assert sorted(row["requests"] for row in bins) == [0, 3]
