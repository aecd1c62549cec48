"""The decision whether a candidate is worse than its baseline beyond the limit: its error rates and its reach."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, t

from assayline.benchmark.frontier import judge_family
from assayline.comparison.gate import GateReport, judge_scores, judge_speed, mark_suspect
from assayline.stats.pairs import average_scores, count_prompts_needed, describe_pairs, find_p, find_reach
from assayline.stats.repeats import compare_repeats, spread_sessions
from assayline.stats.worse import LEVEL, NIGHTS

ROOT = Path(__file__).resolve().parents[2]


@cache
def row_of(prompts, worse, better):
    """A row of compare_runs for scores of 0 and 1."""
    differ = worse + better
    center, square = (better - worse) / (prompts + 2), (differ + 2) / (prompts + 2)
    half = t.ppf(0.975, prompts - 1) * np.sqrt((square - center**2) / (prompts + 2))
    row = {"scorer": "s", "prompts": prompts, "clusters": prompts, "effective_pairs": prompts, "error_pairs": 0}
    row |= {"worse_prompts": worse, "better_prompts": better, "mean_square": differ / prompts, "baseline_mean": 0.7}
    row |= {"effective_clusters": prompts, "padding": 2.0, "only_candidate": 0, "only_baseline": 0}
    row |= {"candidate_mean": 0.7, "difference": (better - worse) / prompts, "low": center - half}
    row |= {"high": center + half, "different_clusters": differ, "is_proportion": True}
    return row | {"p_value": find_p(row)}


@cache
def judge(prompts, worse, better, limit):
    return judge_scores(describe_pairs(row_of(prompts, worse, better), limit))


def share(prompts, differ, drop, limit, verdict, level=0.05):
    """The share of 2,000 comparisons with a verdict: answers that differ by chance, and a drop on top of them."""
    chances = [differ / 2 + drop, differ / 2, 1 - differ - drop]
    drawn = np.random.default_rng(1).multinomial(prompts, chances, 2000).tolist()
    found = cache(lambda worse, better: describe_pairs(row_of(prompts, worse, better), limit).judge(level))
    return np.mean([found(worse, better) == verdict for worse, better, _ in drawn])


@pytest.mark.parametrize("limit", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("differ", [0.01, 0.02, 0.1, 0.3])
def test_gates_fail_few_drops_at_the_limit_and_those_of_its_reach_in_80_percent(differ, limit):
    rough = row_of(1000, round(500 * differ), round(500 * differ))
    prompts = count_prompts_needed(rough, limit, 0.05)
    reach = find_reach(row_of(prompts, round(prompts * differ / 2), round(prompts * differ / 2)), limit, 0.05)
    assert reach == pytest.approx(2 * limit, rel=0.06)
    assert share(prompts, differ, limit, limit, "fail") <= 0.03
    assert 0.77 <= share(prompts, differ, reach, limit, "fail") <= 0.9
    assert share(prompts, differ, 0, limit, "pass") >= 0.77


def test_guide_names_the_drops_of_forty_prompts_that_are_suspect_and_that_fail_on_the_first_night():
    guide = " ".join((ROOT / "docs" / "guides" / "nightly-runs.md").read_text(encoding="utf-8").split())
    failing, suspect = map(
        int, re.search(r"(\d+) of 40 prompts lost fail, and (\d+) of 40 are suspect", guide).groups()
    )

    def find(lost):
        return mark_suspect(judge_scores(describe_pairs(row_of(40, lost, 0), 0.01), nights=NIGHTS), LEVEL).verdict

    lost = (suspect - 1, suspect, failing - 1, failing)
    assert [find(each) for each in lost] == ["inconclusive", "suspect", "suspect", "fail"]


@pytest.mark.parametrize("level", [0.05, 0.1 / 60])
@pytest.mark.parametrize(("prompts", "churn"), [(50, 0.04), (50, 0.12), (200, 0.04), (200, 0.12), (1000, 0.04)])
def test_find_reach_is_found_in_80_percent_by_the_test_itself(prompts, churn, level):
    row = row_of(prompts, round(prompts * churn), round(prompts * churn))
    differ = (prompts * row["mean_square"] + 2) / (prompts + 2)
    assert 0.77 <= share(prompts, differ, find_reach(row, 0.01, level), 0.01, "fail", level) <= 0.83


def test_gates_fail_few_drops_at_a_wide_limit_at_the_level_of_a_night():
    """Student's t, not z: with 20 prompts a normal interval would fail 3.7 times as many as the level allows."""
    worse, better = np.arange(21)[:, None], np.arange(21)
    chance = binom.pmf(worse, 20, 0.3) * binom.pmf(better, 20 - worse, 0.2 / 0.7)
    level, limit = 0.1 / 60, 0.1
    fails = [
        [w + b <= 20 and describe_pairs(row_of(20, w, b), limit).judge(level) == "fail" for b in range(21)]
        for w in range(21)
    ]
    assert (chance * fails).sum() <= 1.5 * level / 2


@pytest.mark.parametrize(("better", "worse"), [(5_000, 5_000), (4_700, 5_300), (0, 3_000), (9_000, 200)])
def test_find_p_is_mcnemars_mid_p_of_thousands_of_pairs_that_differ(better, worse):
    chance, k = binom(better + worse, 0.5), min(better, worse)
    known = pytest.approx(2 * chance.cdf(k) - chance.pmf(k), rel=1e-7, abs=1e-300)
    assert row_of(better + worse, worse, better)["p_value"] == known


def test_judge_scores_leaves_a_drop_open_that_is_worse_but_not_shown_beyond_the_limit():
    check = judge(1000, 40, 10, 0.02)
    said = "worse than the baseline by more than chance, not shown beyond the limit, nor within it"
    assert check.verdict == "inconclusive" and f"It is {said}." in check.words
    assert GateReport("new", "old", [check]).headline == (
        "Run new fails no limit against old. Worse by more than chance: accuracy, s. Inconclusive: accuracy, s."
    )
    assert judge(1000, 10, 10, 0.05).words.count("It is shown within the limit.") == 1
    assert "It is better than the baseline by more than chance, shown within" in judge(1000, 0, 20, 0.05).words
    assert judge(1000, 40, 10, 0.0).verdict == "fail"
    assert judge(1000, 40, 10, 0.05).verdict == "pass", "worse by more than chance, and shown within the limit"


def mean_of(rows, limit):
    """The mean of rows with equal weights."""
    return average_scores([describe_pairs(row, limit) for row in rows], [1] * len(rows), "mean")


@pytest.mark.parametrize("limit", [0.1, 0.3])
def test_average_scores_passes_few_of_many_small_evaluations_at_the_limit(limit):
    """Their centers are shrunken to 0, by a bias that a mean of 40 would keep."""
    drawn = np.random.default_rng(5).multinomial(12, [limit + 0.05, 0.05, 0.9 - limit], (400, 40))[..., :2]
    means = [mean_of([row_of(12, *counts) for counts in case], limit) for case in drawn.tolist()]
    for verdict in ("pass", "fail"):
        assert np.mean([mean.judge() == verdict for mean in means]) <= 0.035
    row, mean = row_of(12, 4, 1), mean_of([row_of(12, 4, 1)], limit)
    assert mean.low + mean.high == pytest.approx(row["low"] + row["high"]), "one is as it was"


def test_judge_family_keeps_few_of_ten_configurations_at_the_limit():
    """The cheapest one that passes is chosen; without simultaneous intervals, one in five choices would be wrong."""
    drawn = np.random.default_rng(6).multinomial(400, [0.08, 0.05, 0.87], (500, 10))[..., :2]
    kept = 0
    for case in drawn.tolist():
        means = judge_family([mean_of([row_of(400, *counts)], 0.03) for counts in case])
        kept += any(mean.judge() == "pass" for mean in means)
        within = [mean.low >= -0.03 for mean in means]
        assert within == [mean.judge() == "pass" for mean in means], "the interval that is shown decides"
    assert kept <= 0.04 * 500


def test_judge_speed_fails_few_slowdowns_at_the_limit_and_most_far_beyond_it():
    dice, limit, failed = np.random.default_rng(2), 0.1, dict.fromkeys((0.1, 0.2), 0)
    for slowdown in failed:
        for _ in range(400):
            rows = [
                {"metric": "e2e_p95_s", "unit": "s", "higher_is_better": False, "is_candidate": i < 6}
                | {"value": dice.normal(1 + slowdown * (i < 6), 0.02)}
                for i in range(12)
            ]
            row = compare_repeats(rows, {"e2e_p95_s": limit})["e2e_p95_s"]
            failed[slowdown] += judge_speed("e2e_p95_s", limit, row).verdict == "fail"
    assert failed[0.1] <= 0.04 * 400 and failed[0.2] >= 0.9 * 400


@pytest.mark.parametrize("slowdown", [0.0, 0.05])
@pytest.mark.parametrize("known", [0, 8])
def test_compare_repeats_judges_sides_of_different_sessions_by_their_spread(known, slowdown):
    """Sessions differ by 3%, runs of one by 1%; at the limit, few fail and few are the same."""
    dice, found = np.random.default_rng(4), []
    for _ in range(800):
        levels = 0.03 * dice.standard_normal(2 + known)
        values = np.exp(np.repeat(levels[:2], 5) + 0.01 * dice.standard_normal(10))
        values[:5] *= 1 + slowdown
        rows = [
            {
                "metric": "x",
                "unit": "s",
                "higher_is_better": False,
                "is_candidate": i < 5,
                "value": value,
            }
            for i, value in enumerate(values.tolist())
        ]
        sessions = {"x": spread_sessions({"a": levels[:1], "b": levels[1:]}, 1, 1)}
        row = compare_repeats(rows, {"x": 0.05}, sessions=sessions)["x"]
        found.append(judge_speed("x", 0.05, row).verdict)
    assert found.count("fail") <= 0.04 * 800
    if slowdown or not known:
        assert found.count("pass") <= (0.04 * 800 if known else 0)
