"""accuracy: the mean, a standard error that knows of repeats, and an interval."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
import scipy

from assayline.stats.clusters import bound_share
from assayline.store.metrics import forget_metrics

SEEDS = range(5)


def given_values(store, *prompts, run_id="run", scorer="exact_match", ordinal=0):
    """Each prompt is a list of scores, one per repeat."""
    if not store.rows("runs", run_id=run_id):
        store.given("runs", {"run_id": run_id})
    store.given("scorers", {"run_id": run_id, "scorer": scorer, "ordinal": ordinal})
    rows = [
        {"run_id": run_id, "scorer": scorer, "prompt_id": f"p{i}", "repeat_index": j, "value": float(value)}
        for i, values in enumerate(prompts)
        for j, value in enumerate(values)
    ]
    store.given("scores", *rows)


def wilson(mean, effective, samples=None, clusters=None):
    """Both roots of (mean − p)² = z² p (1 − p) / n, from the quadratic formula; n as Korn and Graubard correct it."""
    n = effective
    if clusters:
        n *= (scipy.stats.t.ppf(0.975, samples - 1) / scipy.stats.t.ppf(0.975, clusters - 1)) ** 2
    z = NormalDist().inv_cdf(0.975)
    a, b, c = n + z * z, -(2 * n * mean + z * z), n * mean * mean
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def partial_interval(values):
    """Wilson's interval of prompts' means, by their own variance with one pseudo-observation; see mean_interval."""
    n, mean, z = len(values), np.mean(values), NormalDist().inv_cdf(0.975)
    worth = n * (z / scipy.stats.t.ppf(0.975, n - 1)) ** 2
    return wilson(mean, worth * (n * mean * (1 - mean) + 0.25) / (n * np.var(values) + 0.25))


def near(value):
    """Within the accuracy of t_quantile."""
    return pytest.approx(value, abs=1e-5)


def clustered_error(prompts):
    """The jackknife: how far the mean moves without each cluster."""
    mean, clusters = np.concatenate(prompts).mean(), len(prompts)
    left = [np.concatenate(prompts[:place] + prompts[place + 1 :]).mean() for place in range(clusters)]
    return float(np.sqrt((clusters - 1) / clusters * np.sum((left - mean) ** 2)))


def count_effective(prompts):
    sizes = np.array([len(values) for values in prompts])
    return float(sizes.sum() ** 2 / np.sum(sizes**2))


def test_a_scorer_without_scores_has_a_row_of_nothing(store):
    given_values(store)
    store.expect(
        "accuracy",
        {
            "scorer": "exact_match",
            "samples": 0,
            "right_samples": 0,
            "prompts": 0,
            "mean": None,
            "standard_error": None,
            "effective_samples": None,
            "mean_low": None,
            "mean_high": None,
        },
    )


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


def test_intervals_end_exactly_at_zero_and_one(store):
    for n in range(2, 1_000):
        for mean in (0.0, 1.0):
            assert bound_share(mean, 0.0, n, n, n, 0.0)[int(mean)] == mean, n
    for n in (1, 39):
        given_values(store, *[[0]] * n, run_id=f"{n} wrong")
        given_values(store, *[[1]] * n, run_id=f"{n} right")
    found = store.rows("accuracy", "mean", "mean_low", "mean_high", run_id=None)
    assert sorted((row["mean"], row["mean_high" if row["mean"] else "mean_low"]) for row in found) == [
        (0.0, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0),
    ]  # fmt: skip


def test_one_prompt_has_no_standard_error(store):
    given_values(store, [1])
    low, high = wilson(1.0, 1)
    store.expect(
        "accuracy",
        {"prompts": 1, "standard_error": None, "effective_samples": 1.0, "mean_low": low, "mean_high": high},
    )


def test_one_prompt_with_other_scores_than_0_and_1_has_no_interval(store):
    given_values(store, [0.25, 0.75])
    store.expect(
        "accuracy",
        {"mean": 0.5, "standard_error": None, "mean_low": None, "mean_high": None},
    )


def test_repeats_that_always_agree_add_nothing(store):
    given_values(store, *[[1]] * 7, *[[0]] * 5, run_id="once")
    given_values(store, *[[1] * 4] * 7, *[[0] * 4] * 5, run_id="four times")
    once, four_times = store.row("accuracy", run_id="once"), store.row("accuracy", run_id="four times")
    assert four_times["samples"] == 4 * once["samples"]
    for column in ("mean", "standard_error", "effective_samples", "mean_low", "mean_high"):
        assert four_times[column] == pytest.approx(once[column]), column
    assert (once["mean_low"], once["mean_high"]) == pytest.approx(wilson(7 / 12, 12))


def test_repeats_that_are_always_right_are_worth_a_sample_per_prompt(store):
    given_values(store, *[[1] * 4] * 7)
    low, high = wilson(1.0, 7)
    store.expect("accuracy", {"effective_samples": 7.0, "mean_low": near(low), "mean_high": near(high)})


def test_prompts_that_are_all_half_right_have_no_error(store):
    given_values(store, *[[1, 0]] * 6)
    low, high = partial_interval([0.5] * 6)
    bounds = {"mean_low": near(low), "mean_high": near(high)}
    store.expect("accuracy", {"standard_error": 0.0, "effective_samples": 6.0, **bounds})


def test_accuracy_counts_a_prompt_once_whatever_its_repeats(store):
    """As comparisons and pass@1 do. Hard prompts are asked more often; runs of one database, for speed."""
    expected = []
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        chances = random.beta(1.4, 0.6, size=40)
        prompts = [(random.random(20 if chance < 0.5 else 2) < chance).astype(float) for chance in chances]
        given_values(store, *prompts, run_id=f"seed {seed}")
        means = np.array([values.mean() for values in prompts])
        low, high = partial_interval(means)
        found = {"mean": means.mean(), "standard_error": means.std(ddof=1) / 40**0.5}
        found |= {"mean_low": near(low), "mean_high": near(high)}
        counts = {"samples": sum(map(len, prompts)), "prompts": 40, "effective_samples": 40.0}
        expected.append(
            {"run_id": f"seed {seed}", **counts, **found, "score_sum": float(np.concatenate(prompts).sum())}
        )
        (row,) = store.read(f"from compare_runs('seed {seed}', 'seed {seed}')")
        assert row["candidate_mean"] == pytest.approx(found["mean"])
        first = store.values(f"seed {seed}")["pass@1 of exact_match"]
        assert (first["value"], first["low"], first["high"]) == (pytest.approx(means.mean()), near(low), near(high))
    store.expect("accuracy", *expected, run_id=None)


def test_accuracy_clusters_by_the_named_metadata_column(store):
    """Twenty passages of one to six questions; questions without a passage are clusters of their own."""
    dice = np.random.default_rng(0)
    passages = [(dice.random(dice.integers(1, 7)) < chance).astype(float) for chance in dice.beta(1, 1, size=20)]
    alone = [np.array([value]) for value in (0.0, 1.0, 1.0)]
    values = np.concatenate([*passages, *alone])
    given_values(store, *([value] for value in values))
    store.connection.execute("""update runs set spec_json = '{"prompts": {"columns": {"cluster": "passage"}}}'""")
    named = [{"passage": number} for number, passage in enumerate(passages) for _ in passage]
    store.given("prompts", *(
        {"run_id": "run", "prompt_id": f"p{i}", "metadata_json": json.dumps(metadata)}
        for i, metadata in enumerate([*named, {"passage": None}, {}])
    ))  # fmt: skip
    row = store.row("accuracy")
    assert (row["samples"], row["prompts"]) == (len(values), len(values))
    assert row["standard_error"] == pytest.approx(clustered_error([*passages, *alone]))
    low, high = wilson(row["mean"], row["effective_samples"], len(values), count_effective([*passages, *alone]))
    assert (row["mean_low"], row["mean_high"]) == (near(low), near(high))


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


def test_scores_between_0_and_1_have_the_interval_that_scipy_gives(store):
    """Clusters of one to four samples; 40 equal scores have a width, too."""
    for clusters in (2, 3, 8, 11, 12, 40):
        random = np.random.default_rng(clusters)
        prompts = [random.normal(0.8, 0.1, random.integers(1, 5)).clip(0.01, 1) for _ in range(clusters)]
        values, effective = np.concatenate(prompts), count_effective(prompts)
        given_values(store, *([value] for value in values), run_id=str(clusters))
        store.connection.execute("""update runs set spec_json = '{"prompts": {"columns": {"cluster": "passage"}}}'""")
        passages = np.repeat(range(clusters), [len(one) for one in prompts])
        store.given("prompts", *(
            {"run_id": str(clusters), "prompt_id": f"p{i}", "metadata_json": json.dumps({"passage": int(passage)})}
            for i, passage in enumerate(passages)
        ))  # fmt: skip
        error = clustered_error(prompts)
        low, high = bound_share(values.mean(), values.var(), len(values), clusters, effective, error)
        row = store.row("accuracy", run_id=str(clusters))
        assert row["standard_error"] == pytest.approx(error)
        if effective >= 2:
            known = pytest.approx((low, high), rel=1e-5 if effective > 11 else 3e-2)
            assert (row["mean_low"], row["mean_high"]) == known
        else:
            assert row["mean_low"] is None and math.isnan(low)
    given_values(store, *[[0.5]] * 40, run_id="equal")
    assert store.row("accuracy", run_id="equal")["mean_low"] == pytest.approx(0.475, abs=1e-3)


def test_wilson_against_statsmodels(store):
    from statsmodels.stats.proportion import proportion_confint

    expected = []
    for right, n in ((0, 1), (1, 1), (0, 50), (50, 50), (3, 17), (871, 1000)):
        given_values(store, *([[1]] * right + [[0]] * (n - right)), run_id=f"{right} of {n}")
        low, high = proportion_confint(right, n, method="wilson")
        expected.append({"run_id": f"{right} of {n}", "mean": right / n, "mean_low": low, "mean_high": high})
    store.expect("accuracy", *expected, run_id=None)
