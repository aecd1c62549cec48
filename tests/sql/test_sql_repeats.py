"""Metrics of repeats: prompt_score, pass@k and majority_vote."""

from fractions import Fraction
from math import comb, sqrt
from statistics import mean, stdev

import numpy as np
import pytest
from row_kit import as_rows
from test_sql_accuracy import clustered_error, count_effective, given_values, wilson

from assayline.report.run.rows import list_repeats, read_values
from assayline.stats.clusters import bound_share


def rows(store, metric):
    """A row per scorer and k."""
    store.measure()
    return list_repeats(read_values(store.connection, "run"), metric)


def test_prompt_score_is_the_mean_of_a_rows_samples(store):
    store.given("runs", {"run_id": "run"})
    store.given(
        "scores",
        *as_rows("occurrence repeat_index value", (0, 0, 1.0), (0, 1, 0.5), (1, 0, 0.0)),
    )
    store.expect(
        "prompt_score",
        {"scorer": "exact_match", "occurrence": 0, "samples": 2, "right_samples": 1, "mean_value": 0.75},
        {"scorer": "exact_match", "occurrence": 1, "samples": 1, "right_samples": 0, "mean_value": 0.0},
    )


def test_runs_without_repeats_have_neither(store):
    given_values(store, [1], [0])
    assert rows(store, "pass@") == rows(store, "majority_vote") == []


def test_pass_at_k_against_exact_fractions(store):
    samples = {}
    for most in (2, 7, 300):
        random = np.random.default_rng(most)
        prompts = [(random.random(most) < chance).astype(float) for chance in (*random.random(8), 0, 1)]
        samples[str(most)] = most, prompts
        given_values(store, *prompts, scorer=str(most))
    found = {(row["scorer"], row["k"]): row for row in rows(store, "pass@")}
    assert {(name, k) for name, (most, _) in samples.items() for k in (1, 2, most)} <= found.keys()
    for (name, k), row in found.items():
        most, prompts = samples[name]
        chances = [float(1 - Fraction(comb(most - int(values.sum()), k), comb(most, k))) for values in prompts]
        assert row["prompts"] == 10
        assert row["mean"] == pytest.approx(mean(chances), abs=1e-11)
        assert row["standard_error"] == pytest.approx(stdev(chances) / sqrt(10), abs=1e-11)


def test_pass_at_k_is_null_when_a_prompt_has_fewer_than_k_samples(store):
    """Over only the rows with two samples pass@2 would be 0, and so below pass@1."""
    given_values(store, [0, 0], [1], [0, 0])
    found = {row["k"]: (row["prompts"], row["mean"], row["standard_error"]) for row in rows(store, "pass@")}
    assert found == {1: (3, pytest.approx(1 / 3), pytest.approx(1 / 3)), 2: (2, None, None)}


def clustered_interval(values, clusters):
    """(standard error, low, high) by NumPy and SciPy: the jackknife over clusters, and the interval of a share."""
    values, clusters = np.asarray(values, float), np.asarray(clusters)
    parts = [values[clusters == cluster] for cluster in sorted(set(clusters))]
    error = clustered_error(parts)
    effective = count_effective(parts)
    return error, *bound_share(values.mean(), values.var(), len(values), len(parts), effective, error)


def given_rows_of_prompts(store, seed):
    """Twelve prompts, each in one to five rows of the data set, each row asked four times."""
    random = np.random.default_rng(seed)
    rows = [(p, o, random.random()) for p in range(12) for o in range(random.integers(1, 6))]
    skill = random.random(12)
    scores = [(p, o, r, float(random.random() < skill[p])) for p, o, _ in rows for r in range(4)]
    store.given("runs", {"run_id": "run"})
    store.given("scorers", {"run_id": "run"})
    store.given(
        "scores",
        *(
            {"prompt_id": f"p{p}", "occurrence": o, "repeat_index": r, "value": value, "extracted": str(value)}
            for p, o, r, value in scores
        ),
    )
    by_row = {}
    for p, o, _, value in scores:
        by_row.setdefault((p, o), []).append(value)
    return by_row


def test_pass_at_k_and_majority_vote_cluster_the_rows_of_a_prompt(store):
    by_row = given_rows_of_prompts(store, 0)
    for row in rows(store, "pass@"):
        chances = [1 - comb(4 - int(sum(values)), row["k"]) / comb(4, row["k"]) for values in by_row.values()]
        expected = clustered_interval(chances, [prompt for prompt, _ in by_row])
        assert row["standard_error"] == pytest.approx(expected[0])
        assert (row["mean_low"], row["mean_high"]) == pytest.approx(expected[1:], abs=1e-4)
    elected = [value[0] if sum(value) == 2 else float(sum(value) > 2) for value in by_row.values()]
    row = rows(store, "majority_vote")[0]
    expected = clustered_interval(elected, [prompt for prompt, _ in by_row])
    assert row["standard_error"] == pytest.approx(expected[0])
    assert (row["mean_low"], row["mean_high"]) == pytest.approx(expected[1:], abs=1e-4)


def test_pass_at_1_has_the_mean_and_the_error_of_accuracy(store):
    given_rows_of_prompts(store, 7)
    accuracy, (first, *_) = store.row("accuracy"), sorted(rows(store, "pass@"), key=lambda row: row["k"])
    assert first["mean"] == pytest.approx(accuracy["mean"], abs=1e-12)
    assert first["standard_error"] == pytest.approx(accuracy["standard_error"], abs=1e-12)


def test_pass_at_k_of_prompts_that_all_fail_has_an_upper_end(store):
    given_values(store, *[[0, 0]] * 10)
    for row in rows(store, "pass@"):
        assert (row["mean"], row["mean_low"]) == (0, 0)
        assert row["mean_high"] == pytest.approx(wilson(0, 10)[1])


VOTES = [
    ([("4", 1), ("5", 0), ("4", 1)], 1.0),
    ([("5", 0), ("4", 1), ("5", 0)], 0.0),
    ([("5", 0), ("4", 1)], 0.0),  # a tie goes to the earliest
    ([("4", 1), ("5", 0)], 1.0),
    ([("5", 0), ("4", 1), ("4", 1), ("5", 0)], 0.0),
    ([(None, 0), (None, 0), ("4", 1)], 1.0),  # who has no answer abstains
    ([(None, 0), (None, 0)], 0.0),
    ([("", 0), ("", 0), ("4", 1)], 0.0),  # an empty answer is one
    ([("half", 0.5), ("half", 0.5), ("all", 1)], 0.5),
]


def test_the_majority_of_a_prompt(store):
    """Each case is a scorer of one run."""
    store.given("runs", {})
    for case, (votes, _) in enumerate(VOTES):
        store.given("scorers", {"scorer": f"case {case}"})
        columns = "scorer repeat_index extracted value"
        cells = ((f"case {case}", place, extracted, float(value)) for place, (extracted, value) in enumerate(votes))
        store.given("scores", *as_rows(columns, *cells))
    found = {
        row["scorer"]: (row["prompts"], row["mean"], row["standard_error"]) for row in rows(store, "majority_vote")
    }
    assert found == {f"case {case}": (1, value, None) for case, (_, value) in enumerate(VOTES)}


def test_majority_vote_leaves_out_scorers_that_extract_the_whole_text(store):
    """Their extracted answers hardly ever agree, so that the vote would be the first sample's."""
    for ordinal, kind in enumerate(("exact_match", "contains", "token_f1", "json")):
        given_values(store, [1, 0, 0], scorer=kind, ordinal=ordinal)
        store.connection.execute("update scorers set kind = scorer")
    store.connection.execute("update scores set extracted = repeat_index::varchar")
    assert [(row["scorer"], row["mean"]) for row in rows(store, "majority_vote")] == [("exact_match", 1.0)]
