"""Looks of a run that stops early: their boundary, and what it does to a comparison."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from assayline.comparison.gate import judge_scores
from assayline.comparison.looks import LOOKS, alpha_of, bound_of, list_looks, widen
from assayline.spec.criteria import GateSpec

ROW = {"scorer": "s", "baseline_mean": 0.9, "error_pairs": 0, "detectable_drop": 0.05}


def row_of(
    prompts: int, worse: int, better: int, p_value: float, low: float, high: float, **more: Any
) -> dict[str, Any]:
    change = (better - worse) / prompts
    counts = {"prompts": prompts, "clusters": prompts, "worse_prompts": worse, "better_prompts": better}
    found = {"difference": change, "candidate_mean": 0.9 + change, "low": low, "high": high, "p_value": p_value}
    verdict = "unclear" if p_value >= 0.05 else "worse" if change < 0 else "better"
    return {**ROW, **counts, **found, "mcnemar_p": p_value, "verdict": verdict, **more}


def test_looks_together_have_a_level_of_5_percent():
    """By simulated random walks, and by the joint normal distribution for the first five looks."""
    steps = np.random.default_rng(1).standard_normal((400_000, LOOKS)).cumsum(axis=1)
    bounds = np.array([bound_of(look) for look in range(1, LOOKS + 1)])
    crossed = (abs(steps) / np.sqrt(np.arange(1, LOOKS + 1)) > bounds).any(axis=1)
    assert crossed.mean() == pytest.approx(0.05, abs=0.0015)
    numbers = np.arange(1, 6)
    covariance = np.sqrt(np.minimum.outer(numbers, numbers) / np.maximum.outer(numbers, numbers))
    joint = stats.multivariate_normal(cov=covariance, seed=1).cdf(bounds[:5], lower_limit=-bounds[:5])
    early = (abs(steps[:, :5]) / np.sqrt(numbers) > bounds[:5]).any(axis=1)
    assert 1 - joint == pytest.approx(early.mean(), abs=0.001)
    assert alpha_of(LOOKS) == pytest.approx(2 * stats.norm.sf(bounds[-1]))


def test_looks_are_spread_over_all_prompts():
    assert list_looks(1_000) == list(range(100, 1_001, 100))
    assert list_looks(7) == [1, 2, 3, 3, 4, 5, 5, 6, 7, 7]


@pytest.mark.parametrize("degrees", [None, 5, 12, 60])
def test_widen_takes_the_quantile_of_the_look(degrees):
    """Of Student's t within 2%, never below it; of the normal distribution exactly."""
    more = {} if degrees is None else {"mcnemar_p": None, "clusters": degrees + 1}
    given = row_of(200, 20, 10, 0.04, -0.15, 0.05, **more)
    law = stats.norm if degrees is None else stats.t(degrees)
    for look in (3, 6, LOOKS):
        wide = widen(given, look)
        right = law.isf(alpha_of(look) / 2) / law.isf(0.025)
        ratio = (wide["high"] - wide["low"]) / (given["high"] - given["low"]) / right
        assert 1 - 1e-9 <= ratio < 1.02 and wide["high"] + wide["low"] == pytest.approx(-0.1)
        assert wide["verdict"] == "unclear", "its p is above the level of every look"
    assert widen({**given, "low": None}, 5)["low"] is None


def test_judge_scores_fails_and_passes_by_the_level_of_the_look():
    limits = GateSpec(max_accuracy_drop=0.02)
    worse = row_of(100, 12, 2, 0.008, -0.17, -0.02)
    assert [judge_scores(worse, limits, look=look).verdict for look in (None, 4, 5)] == ["fail", "inconclusive", "fail"]
    within = row_of(500, 1, 2, 0.7, -0.012, 0.016)
    assert [judge_scores(within, limits, look=look).verdict for look in (None, 2, 9)] == [
        "pass",
        "inconclusive",
        "pass",
    ]
    assert "look 5 of 10: 99.107% interval" in judge_scores(worse, limits, look=5).words
