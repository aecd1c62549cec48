"""accuracy: the mean, a standard error that knows of repeats, and Wilson's interval."""

import math
from statistics import NormalDist

import numpy as np
import pytest

SEEDS = range(5)


def given_verdicts(store, *prompts, run_id="run"):
    """Each prompt is a list of verdicts, one per repeat: True, False, "error" or None for a missing answer."""
    names = [f"p{i}" for i in range(len(prompts))]
    keys = [
        (name, j, verdict) for name, verdicts in zip(names, prompts, strict=True) for j, verdict in enumerate(verdicts)
    ]
    store.given("runs", {"run_id": run_id})
    store.given("prompts", *({"run_id": run_id, "prompt_id": name, "target": "yes"} for name in names))
    requests = [
        {"run_id": run_id, "request_id": f"{name}-{j}", "prompt_id": name, "repeat_index": j} for name, j, _ in keys
    ]
    store.given("requests", *requests)
    completions = [
        {
            "run_id": run_id,
            "request_id": f"{name}-{j}",
            "text": "yes" if verdict is True else "no",
            "error_kind": "any" if verdict == "error" else None,
        }
        for name, j, verdict in keys
        if verdict is not None
    ]
    store.given("completions", *completions)


def wilson(mean, n):
    """Both roots of (mean − p)² = z² p (1 − p) / n, from the quadratic formula."""
    z = NormalDist().inv_cdf(0.975)
    a, b, c = n + z * z, -(2 * n * mean + z * z), n * mean * mean
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def clustered_error(prompts):
    """Every pair of requests of one prompt, one by one."""
    n = sum(map(len, prompts))
    mean = sum(map(sum, prompts)) / n
    total = sum((one - mean) * (other - mean) for verdicts in prompts for one in verdicts for other in verdicts)
    return math.sqrt(len(prompts) / (len(prompts) - 1) * total) / n


def test_a_run_without_targets_has_no_accuracy(store):
    store.given_answers({"text": "4"}, target=None)
    store.expect(
        "accuracy",
        {
            "requests": 0,
            "ok_requests": 0,
            "correct_requests": 0,
            "prompts": 0,
            "mean": None,
            "standard_error": None,
            "effective_requests": None,
            "wilson_low": None,
            "wilson_high": None,
        },
    )


def test_a_run_without_requests_has_a_row(store):
    store.given("runs", {"run_id": "run"})
    store.expect("accuracy", {"requests": 0, "mean": None, "wilson_low": None, "wilson_high": None})


def test_errors_and_missing_answers_are_wrong(store):
    given_verdicts(store, [True], [False], ["error"], [None])
    store.expect("accuracy", {"requests": 4, "ok_requests": 2, "correct_requests": 1, "prompts": 4, "mean": 0.25})


def test_all_errors_are_an_accuracy_of_zero(store):
    given_verdicts(store, ["error"], ["error"])
    low, high = wilson(0.0, 2)
    store.expect(
        "accuracy",
        {"mean": 0.0, "standard_error": 0.0, "wilson_low": max(0.0, low), "wilson_high": high, "ok_requests": 0},
    )


def test_intervals_end_exactly_at_zero_and_one(store):
    for n in range(1, 40):
        given_verdicts(store, *[[False]] * n, run_id=f"{n} wrong")
        given_verdicts(store, *[[True]] * n, run_id=f"{n} right")
    found = store.rows("accuracy", "mean", "wilson_low", "wilson_high", run_id=None)
    assert {row["wilson_low"] for row in found if row["mean"] == 0} == {0.0}
    assert {row["wilson_high"] for row in found if row["mean"] == 1} == {1.0}


def test_one_prompt_has_no_standard_error(store):
    given_verdicts(store, [True, True, False])
    low, high = wilson(2 / 3, 1)
    store.expect(
        "accuracy",
        {"prompts": 1, "standard_error": None, "effective_requests": 1.0, "wilson_low": low, "wilson_high": high},
    )


def test_without_repeats_it_is_the_plain_standard_error(store):
    given_verdicts(store, *[[True]] * 30, *[[False]] * 10)
    verdicts = [1.0] * 30 + [0.0] * 10
    low, high = wilson(0.75, 40)
    store.expect(
        "accuracy",
        {
            "standard_error": np.std(verdicts, ddof=1) / math.sqrt(40),
            "effective_requests": 40.0,
            "wilson_low": low,
            "wilson_high": high,
        },
    )


def test_repeats_that_always_agree_add_nothing(store):
    given_verdicts(store, *[[True]] * 7, *[[False]] * 5, run_id="once")
    given_verdicts(store, *[[True] * 4] * 7, *[[False] * 4] * 5, run_id="four times")
    once, four_times = store.row("accuracy", run_id="once"), store.row("accuracy", run_id="four times")
    assert four_times["requests"] == 4 * once["requests"]
    for column in ("mean", "standard_error", "effective_requests", "wilson_low", "wilson_high"):
        assert four_times[column] == pytest.approx(once[column]), column


def test_repeats_that_are_always_right_are_worth_a_request_per_prompt(store):
    given_verdicts(store, *[[True] * 4] * 7)
    low, high = wilson(1.0, 7)
    store.expect("accuracy", {"effective_requests": 7.0, "wilson_low": low, "wilson_high": min(1.0, high)})


def test_prompts_that_are_all_half_right_have_no_error_and_the_full_n(store):
    given_verdicts(store, *[[True, False]] * 6)
    low, high = wilson(0.5, 12)
    store.expect(
        "accuracy", {"standard_error": 0.0, "effective_requests": 12.0, "wilson_low": low, "wilson_high": high}
    )


def test_runs_do_not_mix(store):
    given_verdicts(store, [True], [True], run_id="one")
    given_verdicts(store, [False], [True], run_id="two")
    store.expect("accuracy", {"run_id": "one", "mean": 1.0}, {"run_id": "two", "mean": 0.5}, run_id=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_uncertainty_against_another_implementation(store, seed):
    random = np.random.default_rng(seed)
    chances = random.beta(1, 1, size=40)
    prompts = [(random.random(random.integers(1, 7)) < chance).tolist() for chance in chances]
    given_verdicts(store, *prompts)
    n, correct = sum(map(len, prompts)), sum(map(sum, prompts))
    mean, standard_error = correct / n, clustered_error(prompts)
    effective = min(n, mean * (1 - mean) / (standard_error**2 * (len(prompts) - 1) / len(prompts)))
    assert effective < n
    low, high = wilson(mean, effective)
    store.expect(
        "accuracy",
        {
            "requests": n,
            "correct_requests": correct,
            "prompts": 40,
            "mean": mean,
            "standard_error": standard_error,
            "effective_requests": effective,
            "wilson_low": low,
            "wilson_high": high,
        },
    )


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 50), (50, 50), (3, 17), (871, 1000)])
def test_wilson_against_scipy(store, correct, n):
    binomtest = pytest.importorskip("scipy.stats").binomtest
    given_verdicts(store, *([[True]] * correct + [[False]] * (n - correct)))
    expected = binomtest(correct, n).proportion_ci(0.95, method="wilson")
    row = store.row("accuracy", "wilson_low", "wilson_high")
    assert row == {
        "wilson_low": pytest.approx(expected.low, abs=1e-12),
        "wilson_high": pytest.approx(expected.high, abs=1e-12),
    }
    assert 0 <= row["wilson_low"] <= correct / n <= row["wilson_high"] <= 1
