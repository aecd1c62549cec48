"""Nights judged by the own history of each prompt: its tail by brute force, and what it finds and leaves alone."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from assayline.stats.nights import FEWEST_NIGHTS, _find_r, find_flaky, judge_nights, name_lost

UNCERTAIN = 150


def draw(dice, schedules=100, nights=21, prompts=1000):
    """Nights of prompts that are always right or always wrong, except some with rates of their own."""
    rates = (dice.random((schedules, prompts)) < 0.2).astype(float)
    rates[:, :UNCERTAIN] = dice.beta(0.5, 2, (schedules, UNCERTAIN))
    return (dice.random((schedules, nights, prompts)) < rates[:, None]).astype(float)


def lose(lost, prompts):
    """Lose this number of the prompts that are certain, in the last night."""
    faulty = lost.copy()
    faulty[:, -1, UNCERTAIN : UNCERTAIN + prompts] = 1
    return faulty


def test_find_r_has_the_tail_of_all_outcomes():
    share = np.array([0.05, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.5, 0.5])
    worth = np.array([2.9, 2.9, 1.7, 1.7, 1.7, 0.9, 0.9, 0.5, 0.5, 0.3, 0.2, 0.2])
    outcomes = np.array(list(product((0, 1), repeat=12)))
    chances = np.where(outcomes, share, 1 - share).prod(axis=1)
    totals = outcomes @ worth
    for total in (3.0, 5.0, 7.0, 9.0):
        r = _find_r(np.array([total]), worth[None], share[None], np.ones((1, 12)), 1)
        exact = chances[totals > total].sum() + chances[np.isclose(totals, total)].sum() / 2
        assert norm.sf(r[0]) == pytest.approx(exact, rel=0.25), total


def test_judge_nights_finds_lost_prompts_and_leaves_equal_nights_alone():
    lost = draw(np.random.default_rng(1))
    p_value = judge_nights(lost).p_value
    assert np.isnan(p_value[:, :FEWEST_NIGHTS]).all() and np.isfinite(p_value[:, FEWEST_NIGHTS:]).all()
    assert 0.005 < (p_value[:, FEWEST_NIGHTS:] <= 0.05).mean() < 0.04, "half of a two-sided p is towards worse"
    assert (p_value[:, FEWEST_NIGHTS:] <= 0.001).mean() < 0.002
    faulty = lose(lost, 20)
    judged = judge_nights(faulty)
    assert (judged.p_value[:, -1] <= 0.001).mean() > 0.95
    assert (judge_nights(faulty, allowed_share=0.03).p_value[:, -1] <= 0.05).mean() < 0.04
    named = [
        name_lost(faulty[place, -1], faulty[place, :-1].mean(axis=0), judged.rate[place])[0] for place in range(100)
    ]
    right = np.zeros(1000, dtype=bool)
    right[UNCERTAIN : UNCERTAIN + 20] = True
    assert np.mean([names[right].sum() for names in named]) > 14, "a fifth of them was wrong before"
    assert sum(names[right].sum() for names in named) / np.sum(named) > 0.8


def test_judge_nights_ignores_the_order_of_prompts_and_prompts_without_scores():
    dice = np.random.default_rng(2)
    lost = lose(draw(dice, 1), 8)
    p_value = judge_nights(lost).p_value[0, -1]
    assert judge_nights(lost[:, :, dice.permutation(1000)]).p_value[0, -1] == pytest.approx(p_value)
    unscored = np.concatenate([lost, np.full((1, 21, 50), np.nan)], axis=2)
    assert judge_nights(unscored).p_value[0, -1] == pytest.approx(p_value, rel=0.2)


def test_judge_nights_counts_clusters_that_fail_together_as_one():
    dice = np.random.default_rng(3)
    lost = np.repeat(draw(dice, 15, 31, 300), 5, axis=2)
    cluster = np.repeat(np.arange(300), 5)
    alone, together = (
        judge_nights(lost, cluster=one).p_value[:, FEWEST_NIGHTS:] <= 0.05 for one in (np.arange(1500), cluster)
    )
    assert together.mean() < 0.04 and together.mean() < alone.mean()


def test_judge_nights_forgives_a_night_that_answers_differently_without_being_worse():
    dice = np.random.default_rng(4)
    lost = draw(dice, 50)
    worse, other = lose(lost, 17), lost.copy()
    changed = dice.random((50, 1000 - UNCERTAIN)) < 0.02
    other[:, -1, UNCERTAIN:] = np.where(changed, 1 - other[:, -1, UNCERTAIN:], other[:, -1, UNCERTAIN:])
    found = [(judge_nights(nights).p_value[:, -1] <= 0.001).mean() for nights in (worse, other)]
    assert found[0] > 0.9 and found[1] < 0.6, "both lose as many of the prompts that were always right"


def test_find_flaky_wants_a_clean_past_and_some_of_the_last_nights():
    lost = np.zeros((15, 5))
    lost[-5:, 0], lost[[-4, -2], 1], lost[[0, -4, -2], 2], lost[-1, 3] = 1, 1, 1, 1
    assert find_flaky(lost).tolist() == [False, True, False, False, False]
    assert not find_flaky(lost[1:]).any(), "nine nights are too few"
