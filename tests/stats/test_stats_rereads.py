"""Means of divergences by prompt, their verdict, and how often it errs."""

import math

import numpy as np
import pytest
from scipy import stats

from assayline.stats.rereads import FEWEST, SMALLEST, Distance, average, judge_reading, read_answers


def distance_of(kl, floor):
    rows = [{"kl": a, "floor_kl": b, "cluster": str(n)} for n, (a, b) in enumerate(zip(kl, floor, strict=True))]
    found = read_answers(rows)
    assert found is not None
    return found


def draw(ratio, prompts, generator):
    """Divergences by prompt with long tails: a prompt that is hard for one engine is so for the other."""
    shared = generator.normal(0, 1, prompts)
    own = [shared + generator.normal(0, 0.5, prompts) for _ in range(2)]
    return ratio * 9e-4 * np.exp(own[0]), 9e-4 * np.exp(own[1])


def test_ratio_is_the_paired_t_on_logarithms():
    kl, floor = draw(2.0, 30, np.random.default_rng(1))
    least = floor.mean() / 10
    assert (floor < least).any()
    logs = np.log(np.maximum(kl, least) / np.maximum(floor, least))
    error = logs.std(ddof=1) / math.sqrt(30)
    half = stats.t.ppf(0.975, 29) * error
    found = distance_of(kl, floor)
    assert found.ratio == pytest.approx(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]), rel=1e-9)
    assert found.kl.value == pytest.approx(kl.mean())
    share = stats.t.ppf(0.975, 29) * kl.std(ddof=1) / math.sqrt(30) / kl.mean()
    assert found.ends == pytest.approx((kl.mean() * math.exp(-share), kl.mean() * math.exp(share)))
    logs = np.log(np.maximum(6 * kl, least) / np.maximum(floor, least))
    error = logs.std(ddof=1) / math.sqrt(30)
    _, p_beyond, _ = judge_reading(distance_of(6 * kl, floor))
    t = (logs.mean() - math.log(3)) / error
    assert p_beyond == pytest.approx(2 * stats.t.sf(t, 29), rel=1e-9)


def test_prompts_of_one_cluster_count_as_one():
    apart = average([1.0, 2.0, 3.0, 4.0], "abcd")
    together = average([1.0, 2.0, 3.0, 4.0], "aabb")
    assert together.value == apart.value == 2.5
    assert together.degrees == 1 and together.error > apart.error


@pytest.mark.parametrize(
    ("kl", "floor", "max_kl", "verdict"),
    [
        ([0.0] * 30, [0.0] * 30, None, "pass"),  # float32, against itself
        ([SMALLEST / 2] * 30, [0.0] * 30, None, "pass"),
        ([1e-3] * 30, [1e-3] * 30, None, "pass"),
        ([4e-3] * 30, [1e-3] * 30, None, "fail"),
        ([4e-3] * 30, [1e-3] * 30, 0.005, "pass"),
        ([6e-3] * 30, [1e-3] * 30, 0.005, "fail"),
        ([4e-3] * (FEWEST - 1), [1e-3] * (FEWEST - 1), None, "inconclusive"),
        ([1e-3, 1e-2] * 15, [1e-3] * 30, None, "inconclusive"),
    ],
)
def test_verdict(kl, floor, max_kl, verdict):
    assert judge_reading(distance_of(kl, floor), max_kl)[0] == verdict


def test_the_prompts_that_would_decide_decide():
    generator = np.random.default_rng(2)
    found = [distance_of(*draw(4.0, 12, generator)) for _ in range(40)]
    needed = [judge_reading(one)[2] for one in found if judge_reading(one)[0] == "inconclusive"]
    known = sorted(one for one in needed if one is not None)
    assert known and known[0] >= 12
    typical = math.ceil(64 * (0.5 * math.sqrt(2) / math.log(4 / 3)) ** 2 / 8)  # of the two-sample kind: a magnitude
    assert typical / 4 < known[len(known) // 2] < typical * 4


def test_equal_engines_seldom_fail_and_a_fault_is_found():
    generator = np.random.default_rng(3)
    verdicts = {
        ratio: [judge_reading(distance_of(*draw(ratio, 30, generator)))[0] for _ in range(400)] for ratio in (1, 3, 8)
    }
    assert verdicts[1].count("fail") == 0 and verdicts[1].count("pass") >= 380
    assert verdicts[3].count("fail") <= 20 and verdicts[3].count("pass") <= 20
    assert verdicts[8].count("fail") >= 380


def test_without_a_floor_nothing_is_judged():
    assert read_answers([{"kl": 1.0, "floor_kl": None, "cluster": "a"}]) is None
    assert isinstance(read_answers([{"kl": 1.0, "floor_kl": 1.0, "cluster": "a"}]), Distance)
