"""The decision whether a candidate is worse than its baseline beyond the limit: its error rates and its reach."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from assayline.comparison.gate import NIGHTS, judge_scores, judge_speed, mark_suspect
from assayline.spec.criteria import GateSpec
from assayline.stats.pairs import count_prompts_needed, find_reach
from assayline.stats.repeats import compare_repeats, spread_sessions
from assayline.stats.worse import LEVEL, say_worse

ROOT = Path(__file__).resolve().parents[2]


@cache
def row_of(prompts, worse, better):
    """A row of compare_runs for scores of 0 and 1."""
    fewer, differ = min(worse, better), worse + better
    p_value = min(1.0, 2 * binom.cdf(fewer, differ, 0.5) - binom.pmf(fewer, differ, 0.5)) if differ else 1.0
    center, square = (better - worse) / (prompts + 2), (differ + 2) / (prompts + 2)
    half = norm.ppf(0.975) * np.sqrt((square - center**2) / (prompts + 2))
    row = {"scorer": "s", "prompts": prompts, "clusters": prompts, "effective_pairs": prompts, "error_pairs": 0}
    row |= {"worse_prompts": worse, "better_prompts": better, "mean_square": differ / prompts, "baseline_mean": 0.7}
    row |= {"candidate_mean": 0.7, "difference": (better - worse) / prompts, "low": center - half}
    return row | {"high": center + half, "p_value": p_value, "is_proportion": True}


@cache
def judge(prompts, worse, better, limit):
    return judge_scores(row_of(prompts, worse, better), GateSpec(max_accuracy_drop=limit))


def share(prompts, differ, drop, limit, verdict):
    """The share of 2,000 comparisons with a verdict."""
    both = max(differ, drop)
    drawn = np.random.default_rng(1).multinomial(prompts, [(both + drop) / 2, (both - drop) / 2, 1 - both], 2000)
    return np.mean([judge(prompts, int(worse), int(better), limit).verdict == verdict for worse, better, _ in drawn])


@pytest.mark.parametrize("limit", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("differ", [0.01, 0.02, 0.1, 0.3])
def test_judge_scores_fails_few_drops_at_the_limit_and_those_of_its_reach_in_80_percent(differ, limit):
    rough = row_of(1000, round(500 * differ), round(500 * differ))
    prompts = count_prompts_needed(rough, limit, 0.05)
    reach = find_reach(row_of(prompts, round(prompts * differ / 2), round(prompts * differ / 2)), limit, 0.05)
    assert reach == pytest.approx(2 * limit, rel=0.05)
    assert share(prompts, differ, limit, limit, "fail") <= 0.03
    assert 0.77 <= share(prompts, differ, reach, limit, "fail") <= 0.9
    assert share(prompts, differ, 0, limit, "pass") >= 0.77


def test_guide_names_the_drops_of_forty_prompts_that_are_suspect_and_that_fail_on_the_first_night():
    guide = " ".join((ROOT / "docs" / "guides" / "nightly-runs.md").read_text(encoding="utf-8").split())
    failing, suspect = map(
        int, re.search(r"(\d+) of 40 prompts lost fail, and (\d+) of 40 are suspect", guide).groups()
    )

    def find(lost):
        return mark_suspect(judge_scores(row_of(40, lost, 0), GateSpec(), nights=NIGHTS), LEVEL).verdict

    lost = (suspect - 1, suspect, failing - 1, failing)
    assert [find(each) for each in lost] == ["inconclusive", "suspect", "suspect", "fail"]


def test_judge_scores_leaves_a_drop_open_that_is_worse_but_not_shown_beyond_the_limit():
    check = judge(1000, 40, 10, 0.02)
    said = "worse than the baseline by more than chance, not shown beyond the limit, nor within it"
    assert check.verdict == "inconclusive" and f"It is {said}." in check.words
    assert say_worse("pass", 0.01, 0.2) == "shown within the limit"
    assert say_worse("pass", -0.01, 0.02) == "better than the baseline by more than chance, shown within the limit"
    assert judge(1000, 40, 10, 0.0).verdict == "fail"
    assert judge(1000, 40, 10, 0.05).verdict == "pass", "worse by more than chance, and shown within the limit"


def test_judge_speed_fails_few_slowdowns_at_the_limit_and_most_far_beyond_it():
    dice, limit, failed = np.random.default_rng(2), 0.1, dict.fromkeys((0.1, 0.2), 0)
    for slowdown in failed:
        for _ in range(400):
            rows = [
                {"metric": "e2e_p95_s", "unit": "s", "higher_is_better": False, "position": i, "is_candidate": i < 6}
                | {"value": dice.normal(1 + slowdown * (i < 6), 0.02)}
                for i in range(12)
            ]
            row = compare_repeats(rows, {"e2e_p95_s": limit})["e2e_p95_s"]
            failed[slowdown] += judge_speed("e2e_p95_s", limit, row).verdict == "fail"
    assert failed[0.1] <= 0.04 * 400 and failed[0.2] >= 0.9 * 400


@pytest.mark.parametrize("known", [0, 8])
def test_compare_repeats_fails_few_equal_sides_of_different_sessions(known):
    """Sessions differ by 3%, runs of one by 1%: without their spread, every fifteenth comparison would fail."""
    dice, failed = np.random.default_rng(4), 0
    for _ in range(800):
        levels = 0.03 * dice.standard_normal(2 + known)
        values = np.exp(np.repeat(levels[:2], 5) + 0.01 * dice.standard_normal(10)).tolist()
        rows = [
            {
                "metric": "x",
                "unit": "s",
                "higher_is_better": False,
                "position": i,
                "is_candidate": i < 5,
                "value": value,
            }
            for i, value in enumerate(values)
        ]
        sessions = {"x": spread_sessions({"a": levels[:1], "b": levels[1:]}, 1, 1)}
        failed += compare_repeats(rows, {"x": 0.05}, sessions=sessions)["x"]["verdict"] == "worse"
    assert failed <= 0.05 * 800
