"""Level shifts: found where they are, and not where there are none; an independent count agrees on the figures."""

from itertools import product
from statistics import median

import numpy as np
import pytest

from assayline.comparison import levels
from assayline.comparison.levels import FEWEST_NIGHTS, SHORTEST_NIGHTS, estimate_correlation, find_shifts


def noise(nights, seed=1, alike=0.0):
    dice = np.random.default_rng(seed)
    series = dice.normal(size=nights)
    for night in range(1, nights):
        series[night] = alike * series[night - 1] + (1 - alike**2) ** 0.5 * series[night]
    return series


def test_a_shift_is_named_with_its_first_night_and_its_size():
    series = 100 + noise(40)
    series[28:] += 8
    (shift,) = find_shifts(series)
    assert (shift.index, shift.until) == (28, 40)
    assert (shift.before, shift.after) == (median(series[:28]), median(series[28:]))
    differences = sorted(after - before for before, after in product(series[:28], series[28:]))
    assert shift.change == pytest.approx(median(differences))
    assert shift.low < 8 < shift.high and shift.high - shift.low < 3
    assert shift.p_value < 0.01


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.5])
def test_the_interval_of_a_found_shift_holds_the_true_change(alike):
    """In nine of ten that are found at least, as those that chance makes larger are found more often."""
    held = []
    for seed in range(60):
        series = noise(60, seed, alike) + 4 * (np.arange(60) >= 40)
        held += [shift.low <= 4 <= shift.high for shift in find_shifts(series, 0.01) if abs(shift.index - 40) <= 3]
    assert len(held) > 30 and np.mean(held) >= 0.9


def test_a_shift_that_was_reverted_counts_as_two():
    series = noise(60)
    series[20:40] += 6
    first, second = find_shifts(series)
    assert (first.index, first.until, second.index, second.until) == (20, 40, 40, 60)
    assert first.change > 4 and second.change < -4


def test_units_and_direction_do_not_matter():
    series = noise(40)
    series[25:] += 5
    (plain,) = find_shifts(series)
    (scaled,) = find_shifts(-1e-6 * series + 3)
    assert scaled.index == plain.index
    assert scaled.change == pytest.approx(-1e-6 * plain.change)


@pytest.mark.parametrize("nights", [0, 1, 2, FEWEST_NIGHTS - 1])
def test_find_levels_needs_enough_runs(nights):
    assert find_shifts([0.0] * (nights // 2) + [9.0] * (nights - nights // 2)) == []


def test_nights_that_are_all_equal_have_no_shift_and_equal_levels_have_one():
    assert find_shifts([0.8] * 30) == []
    (shift,) = find_shifts([0.8] * 20 + [0.775] * 10)
    assert (shift.index, shift.before, shift.after) == (20, 0.8, 0.775)
    assert shift.change == pytest.approx(-0.025)


def test_find_levels_ignores_outliers_and_short_spells():
    for nights in range(1, SHORTEST_NIGHTS):
        series = noise(40)
        series[20 : 20 + nights] += 50
        assert find_shifts(series) == [], nights


def test_find_shifts_rarely_raises_false_alarms():
    """A few hundred; benchmarks/statistics_levels.py has the rates."""
    for alike in (0.0, 0.4):
        alarms = sum(bool(find_shifts(noise(40, seed, alike), 0.01)) for seed in range(100))
        assert alarms <= 5, alike


def test_find_shifts_is_silent_on_waves_that_look_like_shifts():
    wave = np.sin(np.arange(60) / 3) + noise(60) / 20
    assert not levels.is_tellable([wave, noise(60)])
    assert levels.is_tellable([noise(60), noise(60, 2) + 9 * (np.arange(60) > 30), [1.0] * 60])


def test_correlation_of_neighbors_is_found_with_and_without_a_shift():
    """Over many nights what it adds for caution is small."""
    for alike, size in product((0.0, 0.4, 0.7), (0, 4)):
        found = []
        for seed in range(10):
            series = noise(900, seed, alike)
            series[300:] += size
            found.append(estimate_correlation(series))
        assert alike - 0.02 < np.mean(found) < alike + 0.12, (alike, size)


def test_caution_makes_it_seldom_too_low_in_few_nights():
    for alike in (0.0, 0.2, 0.4):
        too_low = sum(estimate_correlation(noise(30, seed, alike)) < alike for seed in range(200))
        assert too_low <= 70, alike


def test_level_shift_p_value_matches_a_permutation_test(monkeypatch):
    """Where nights are taken for strangers, surrogates are permutations: their limit is that of independent ones."""
    monkeypatch.setattr(levels, "estimate_correlation", lambda scores: 0.0)
    scores = levels.score_series(noise(20, 5))
    ours = levels.largest_by_chance(scores, levels.SURROGATES)
    dice = np.random.default_rng(7)
    splits = levels.list_splits(0, 20)
    theirs = []
    for _ in range(600):
        shuffled = dice.permutation(scores)
        sides = ((shuffled[begin:index], shuffled[index:end]) for begin, index, end in splits)
        theirs.append(
            max(
                abs(after.mean() - before.mean()) / (shuffled.std() * (1 / len(after) + 1 / len(before)) ** 0.5)
                for before, after in sides
            )
        )
    for share in (0.5, 0.9):
        assert np.quantile(ours, share) == pytest.approx(np.quantile(theirs, share), rel=0.05)


def test_every_split_leaves_enough_nights_on_either_side_and_all_of_the_whole_are_tried():
    splits = levels.list_splits(10, 50)
    assert {(10, index, 50) for index in range(10 + SHORTEST_NIGHTS, 50 - SHORTEST_NIGHTS + 1)} <= set(
        map(tuple, splits)
    )
    assert (np.diff(splits, axis=1) >= SHORTEST_NIGHTS).all()
    assert splits.min() == 10 and splits.max() == 50
