"""accuracy: the mean, a standard error that knows of repeats and clusters, and an interval."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t

from assayline.stats.clusters import bound_share
from assayline.store.metrics import forget_metrics

Z = NormalDist().inv_cdf(0.975)


def given_values(store, *prompts, run_id="run", scorer="exact_match", ordinal=0, name="p"):
    """Each prompt is a list of scores, one per repeat."""
    if not store.rows("runs", run_id=run_id):
        store.given("runs", {"run_id": run_id})
    store.given("scorers", {"run_id": run_id, "scorer": scorer, "ordinal": ordinal})
    rows = [
        {"run_id": run_id, "scorer": scorer, "prompt_id": f"{name}{i}", "repeat_index": j, "value": float(value)}
        for i, values in enumerate(prompts)
        for j, value in enumerate(values)
    ]
    store.given("scores", *rows)


def wilson(mean, n):
    """Both roots of (mean − p)² = z² p (1 − p) / n, from the quadratic formula."""
    a, b, c = n + Z * Z, -(2 * n * mean + Z * Z), n * mean * mean
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def clustered_error(prompts):
    """The jackknife: how far the mean moves without each cluster."""
    mean, clusters = np.concatenate(prompts).mean(), len(prompts)
    left = [np.concatenate(prompts[:place] + prompts[place + 1 :]).mean() for place in range(clusters)]
    return float(np.sqrt((clusters - 1) / clusters * np.sum((left - mean) ** 2)))


def count_effective(prompts):
    sizes = np.array([len(values) for values in prompts])
    return float(sizes.sum() ** 2 / np.sum(sizes**2))


def expect(prompts, passages):
    """A prompt counts once, whatever its repeats. Wilson's interval for n as Korn and Graubard correct it.

    Other scores than 0 and 1 have their own variance in it, with one pseudo-observation.
    """
    means = np.array([np.mean(values) for values in prompts])
    parts = [means[np.array(passages) == one] for one in dict.fromkeys(passages)]
    n, clusters, effective, mean, variance = len(means), len(parts), count_effective(parts), means.mean(), means.var()
    error = clustered_error(parts) if clusters > 1 else None
    is_binary, worth = set(means) <= {0, 1}, float(n)
    if clusters < n:
        alike = clusters == 1 or variance < 1e-12
        worth = effective if alike else min(n, variance * clusters / (clusters - 1) / error**2)
    low = high = None
    if effective >= 2:
        size = worth * ((t.ppf(0.975, n - 1) if is_binary else Z) / t.ppf(0.975, effective - 1)) ** 2
        low, high = wilson(mean, size * (n * mean * (1 - mean) + 0.25) / (n * variance + 0.25))
    elif is_binary:
        low, high = wilson(mean, effective)
    scores = np.concatenate(prompts)
    return {
        "samples": len(scores), "right_samples": int(np.sum(scores == 1)), "prompts": n, "mean": mean,
        "score_sum": scores.sum(), "standard_error": error, "effective_samples": worth, "mean_low": low,
        "mean_high": high, "mean_without_errors": mean,
    }  # fmt: skip


def draw_repeats(seed):
    """Hard prompts are asked more often."""
    random = np.random.default_rng(seed)
    chances = random.beta(1.4, 0.6, size=40)
    return [(random.random(20 if chance < 0.5 else 2) < chance).astype(float) for chance in chances]


def draw_shares(clusters):
    """Clusters of one to four scores."""
    random = np.random.default_rng(clusters)
    parts = [random.normal(0.8, 0.1, random.integers(1, 5)).clip(0.01, 1) for _ in range(clusters)]
    return [[value] for value in np.concatenate(parts)], np.repeat(range(clusters), [len(part) for part in parts])


def draw_passages():
    """Twenty passages of one to six questions, and three questions without one."""
    dice = np.random.default_rng(0)
    passages = [(dice.random(dice.integers(1, 7)) < chance).astype(float) for chance in dice.beta(1, 1, size=20)]
    values = [*np.concatenate(passages), 0.0, 1.0, 1.0]
    return [[value] for value in values], [*np.repeat(range(20), [len(one) for one in passages]), None, None, None]


SHARES = {"0 of 1": (0, 1), "1 of 1": (1, 1), "0 of 50": (0, 50), "50 of 50": (50, 50), "3 of 17": (3, 17)}
SHARES |= {"0 of 39": (0, 39), "39 of 39": (39, 39), "871 of 1000": (871, 1000)}
CASES = {
    **{name: ([[1]] * right + [[0]] * (n - right), []) for name, (right, n) in SHARES.items()},
    **{f"repeats that always agree, {n} times": ([[1] * n] * 7 + [[0] * n] * 5, []) for n in (1, 4)},
    "repeats that are always right": ([[1] * 4] * 7, []),
    "one prompt that is half right": ([[0.25, 0.75]], []),
    "prompts that are all half right": ([[1, 0]] * 6, []),
    "equal scores": ([[0.5]] * 40, []),
    **{f"repeats, seed {seed}": (draw_repeats(seed), []) for seed in range(5)},
    **{f"scores in {clusters} clusters": draw_shares(clusters) for clusters in (2, 3, 8, 11, 12, 40)},
    "passages": draw_passages(),
}
FACTS = {
    **{name: {"mean_low": 0} for name in ("0 of 1", "0 of 39", "0 of 50")},
    **{name: {"mean_high": 1} for name in ("39 of 39", "50 of 50")},
    **{f"repeats that always agree, {n} times": {"effective_samples": 12.0} for n in (1, 4)},
    "repeats that are always right": {"effective_samples": 7.0},
    "one prompt that is half right": {"mean": 0.5, "standard_error": None, "mean_low": None, "mean_high": None},
    "prompts that are all half right": {"standard_error": 0.0, "effective_samples": 6.0},
    "1 of 1": {"mean_high": 1, "prompts": 1, "standard_error": None, "effective_samples": 1.0},
}
"""Columns of some cases, by name."""


def test_accuracy_of_every_case(store):
    """Each case is a scorer of one run: measuring takes longer to plan than to compute."""
    from statsmodels.stats.proportion import proportion_confint

    spec = json.dumps({"prompts": {"columns": {"cluster": "passage"}}})
    store.given("runs", {"spec_json": spec})
    store.given("scorers", {"scorer": "without scores"})
    known = {}
    for name, (prompts, passages) in CASES.items():
        given_values(store, *prompts, scorer=name, name=name)
        cells = [{"passage": None if one is None else f"{name} {one}"} for one in passages]
        rows = ({"prompt_id": f"{name}{i}", "metadata_json": json.dumps(cell)} for i, cell in enumerate(cells))
        store.given("prompts", *rows)
        keys = [f"alone {i}" if one is None else str(one) for i, one in enumerate(passages)] or range(len(prompts))
        known[name] = expect(prompts, keys)
        if name in SHARES:
            low, high = proportion_confint(*SHARES[name], method="wilson")
            assert (known[name]["mean_low"], known[name]["mean_high"]) == (pytest.approx(low), pytest.approx(high))
    rows = {row["scorer"]: row for row in store.rows("accuracy")}
    for name, columns in [*known.items(), *FACTS.items()]:
        found = {column: rows[name][column] for column in columns}
        assert found == {column: value and pytest.approx(value) for column, value in columns.items()}, name
    compared = {row["scorer"]: row["candidate_mean"] for row in store.read("from compare_runs('run', 'run')")}
    assert compared == pytest.approx({name: columns["mean"] for name, columns in known.items()})
    values = store.values()
    for name, ends in ((name, ("mean", "mean_low", "mean_high")) for name in known if "repeats, seed" in name):
        first = values[f"pass@1 of {name}"]
        assert [first[end] for end in ("value", "low", "high")] == pytest.approx([known[name][end] for end in ends])
    counts = {"samples": 0, "right_samples": 0, "prompts": 0}
    undefined = dict.fromkeys(("mean", "standard_error", "effective_samples", "mean_low", "mean_high"))
    assert {column: rows["without scores"][column] for column in counts | undefined} == counts | undefined


def test_each_scorer_has_a_row_and_the_first_is_the_summary(store):
    given_values(store, [1], [0], scorer="late", ordinal=3)
    given_values(store, [1], [1], scorer="early", ordinal=1)
    store.expect("accuracy", {"scorer": "early", "mean": 1.0}, {"scorer": "late", "mean": 0.5})
    store.expect("run", {"scorer": "early", "accuracy": 1.0})


def test_accuracy_is_given_with_and_without_errors(store):
    """Of ten answers two timed out, and one was wrong."""
    given_values(store, *[[1]] * 7, *[[0]] * 3)
    store.connection.execute("update scores set error_kind = 'timeout' where prompt_id in ('p8', 'p9')")
    store.expect("accuracy", {"mean": 0.7, "mean_without_errors": 7 / 8, "samples": 10, "right_samples": 7})
    store.connection.execute("update scores set error_kind = 'timeout', value = 0")
    forget_metrics(store.connection, "run")
    store.expect("accuracy", {"mean": 0.0, "mean_without_errors": None})


def test_intervals_end_exactly_at_zero_and_one():
    for n in range(2, 1_000):
        for mean in (0.0, 1.0):
            assert bound_share(mean, 0.0, n, n, n, 0.0)[int(mean)] == mean, n


def test_accuracy_counts_a_prompt_in_two_clusters_once(store):
    """One prompt_id under two passages; one of three answers is an error, which the metric without errors lacks."""
    spec = '{"prompts": {"columns": {"cluster": "passage"}}}'
    store.given("runs", {"run_id": "run", "spec_json": spec})
    store.given("scorers", {"run_id": "run"})
    rows = [("p", 0, None), ("p", 1, "timeout"), ("q", 0, None)]
    for prompt, occurrence, error in rows:
        key = {"run_id": "run", "prompt_id": prompt, "occurrence": occurrence}
        store.given("prompts", {**key, "metadata_json": json.dumps({"passage": occurrence})})
        store.given("scores", {**key, "value": float(error is None), "error_kind": error})
    found = {row["metric"]: (row["value"], row["n"]) for row in store.rows("metric_values", run_id="run")}
    expected = {"accuracy": (2 / 3, 3), "accuracy_without_errors": (1, 2), "scored_prompts": (2, 3)}
    assert {name: found[name] for name in expected} == expected
