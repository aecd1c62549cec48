"""recall_lengths, length_forecast, batching_steps: how long answers were, were expected to be, and what orders cost."""

import heapq
import random
from datetime import datetime

import numpy as np
import pytest
from scipy.stats import spearmanr


def given_run(store, lengths, run_id="run", *, expected=None, day=1, **run):
    """A run whose prompts are numbered; each answer's length in tokens, None being an error row."""
    run = {"model_id": "m", "expected_requests": len(lengths), "started_at": datetime(2026, 1, day), **run}
    store.given("runs", {"run_id": run_id, **run})
    keys = [{"run_id": run_id, "prompt_id": f"p{number:05d}"} for number in range(len(lengths))]
    ids = [{"run_id": run_id, "request_id": f"{number:05d}"} for number in range(len(lengths))]
    store.given("prompts", *({**key, "source_row": row} for row, key in enumerate(keys)))
    told = expected or [None] * len(lengths)
    store.given(
        "requests", *({**key, **i, "expected_output_tokens": n} for key, i, n in zip(keys, ids, told, strict=True))
    )
    store.given(
        "completions",
        *(
            {**i, "output_tokens": n, "error_kind": "any" if n is None else None}
            for i, n in zip(ids, lengths, strict=True)
        ),
    )


def given_engine(store, seats, steps, worker="w", generation=0, window=None, run_id="run"):
    key = {"run_id": run_id, "worker": worker, "engine_generation": generation}
    details = f'{{"max_num_seqs": {seats}, "window_requests": {window or seats * 2}}}'
    store.given("engine_events", {**key, "event": "opened", "details_json": details})
    if steps is not None:
        store.given("telemetry", {**key, "at_s": 1.0, "engine_steps": steps, "output_tokens": 1})


def recall(store, model="m", prompt_set="set", benchmark=None):
    asked = [model, prompt_set, benchmark]
    return dict(store.connection.execute("select * from recall_lengths(?, ?, ?)", asked).fetchall())


def test_a_length_is_the_median_of_completed_runs_of_the_model_on_the_set(store):
    given_run(store, [10, 20, None], "one", day=1)
    given_run(store, [13, 40, None], "two", day=2)
    given_run(store, [99, 99, 99], "failed", day=3, state="failed")
    given_run(store, [99, 99, 99], "other model", day=3, model_id="n")
    given_run(store, [99, 99, 99], "other set", day=3, prompt_set="else")
    assert recall(store) == {"p00000": 12, "p00001": 30}
    assert recall(store, "n") == {"p00000": 99, "p00001": 99, "p00002": 99}
    assert recall(store, "nobody") == {}


def test_only_the_newest_ten_runs_count(store):
    for day in range(1, 14):
        given_run(store, [day], f"run {day}", day=day)
    assert recall(store) == {"p00000": 9}, "days 4 to 13, the median 8.5 rounded up"


def test_repeats_of_a_benchmark_know_nothing_of_each_other(store):
    given_run(store, [10], "before", day=1)
    given_run(store, [90], "repeat", day=2, benchmark_id="b")
    assert recall(store, benchmark="b") == {"p00000": 10}
    assert recall(store, benchmark="c") == recall(store) == {"p00000": 50}


def test_likelihoods_of_options_are_no_answers(store):
    given_run(store, [1, 1])
    store.connection.execute("update requests set option_index = 0 where prompt_id = 'p00000'")
    assert recall(store) == {"p00001": 1}


def test_a_forecast_by_hand(store):
    given_run(store, [10, 20, 40, 80, None], expected=[20, 20, 20, 20, 20])
    expected = {"expected_requests": 4, "median_error_factor": 2.0, "rank_correlation": None}
    store.expect("length_forecast", expected)


def test_a_run_that_expected_nothing_has_no_forecast(store):
    given_run(store, [10, 20])
    assert store.rows("length_forecast") == []


def test_a_forecast_against_scipy(store):
    dice = random.Random(1)
    found = [dice.randrange(1, 60) for _ in range(300)]
    expected = [max(0, n + dice.randrange(-20, 20)) for n in found]
    given_run(store, found, expected=expected)
    row = store.row("length_forecast")
    clipped = np.maximum(expected, 1)
    assert row["rank_correlation"] == pytest.approx(spearmanr(found, clipped).statistic, rel=1e-9)
    assert row["median_error_factor"] == pytest.approx(np.exp(np.median(np.abs(np.log(found / clipped)))))


def play(lengths, seats):
    """Each request takes the seat that is free first; the step in which the last one ends."""
    free_at = [0] * seats
    for length in lengths:
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)


def steps(store, run_id="run"):
    result = store.connection.execute("select * from batching_steps(?)", [run_id])
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def test_steps_of_two_seats_by_hand(store):
    given_run(store, [1, 2, 3, 6])
    given_engine(store, 2, 9)
    assert steps(store) == [
        {
            "run_id": "run",
            "requests": 4,
            "output_tokens": 12,
            "seats": 2,
            "engine_steps": 9,
            "bound_steps": 6,
            "longest_first_steps": 6,
            "given_steps": 8,
            "barrier_32_steps": 6,
            "barrier_64_steps": 6,
            "barrier_256_steps": 6,
            "empty_seat_steps": 6,
        }
    ]


@pytest.mark.parametrize(("requests", "seats", "window"), [(700, 64, None), (300, 64, 20), (5, 64, None), (1, 1, None)])
def test_steps_against_a_simulation(store, requests, seats, window):
    dice = random.Random(requests)
    lengths = [max(8, min(256, int(dice.lognormvariate(4, 0.8)))) for _ in range(requests)]
    given_run(store, lengths)
    given_engine(store, seats, None, window=window)
    (row,) = steps(store)
    free = min(seats, window or seats)
    assert row["given_steps"] == play(lengths, free)
    assert row["longest_first_steps"] == play(sorted(lengths, reverse=True), free)
    assert row["bound_steps"] == max(*lengths, -(-sum(lengths) // free))
    for size in (32, 64, 256):
        batches = (lengths[start : start + size] for start in range(0, requests, size))
        assert row[f"barrier_{size}_steps"] == sum(map(max, batches))
    assert row["bound_steps"] <= row["longest_first_steps"] <= row["given_steps"]
    assert (row["engine_steps"], row["empty_seat_steps"]) == (None, None)


def test_workers_add_up_their_seats_and_an_engine_that_followed_counts_with_its_own(store):
    given_run(store, [4] * 8 + [None])
    store.connection.execute("update completions set worker = case when error_kind is null then 'a' else 'prepare' end")
    given_engine(store, 4, 10, "a")
    given_engine(store, 2, 6, "a", 1)
    given_engine(store, 2, 8, "b")
    (row,) = steps(store)
    assert (row["seats"], row["engine_steps"], row["empty_seat_steps"]) == (4, 12.0, (16 + 8) * 2 - 32)


def test_a_run_whose_engine_does_not_say_its_seats_has_no_row(store):
    given_run(store, [4, 4])
    store.given("engine_events", {"event": "opened", "details_json": "{}"})
    assert steps(store) == []


def test_beyond_twenty_thousand_requests_no_order_is_played_through(store):
    given_run(store, [1] * 20_001)
    given_engine(store, 10, None)
    (row,) = steps(store)
    assert (row["bound_steps"], row["given_steps"], row["longest_first_steps"]) == (2001, None, None)
    assert row["barrier_256_steps"] == 79
