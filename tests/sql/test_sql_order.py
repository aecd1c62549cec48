"""recall_lengths, length_forecast: how long answers were, and were expected to be."""

import random
from datetime import datetime

import numpy as np
import pytest
from scipy.stats import spearmanr

from assayline.store.parts import recall_lengths


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


def recall(store, model="m", prompt_set="set", benchmark=None):
    found = recall_lengths(store.connection, model, prompt_set, benchmark)
    return {row["prompt_id"]: row["output_tokens"] for row in found.to_pylist()}


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


def test_recall_lengths_ignores_likelihoods_of_options(store):
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
