"""Clustered standard errors and families of tests, against statsmodels and the definitions."""

import numpy as np
import pytest

from assayline.stats.clusters import spread_clusters
from assayline.stats.families import adjust_holm, judge_pairs, rank_sides


@pytest.mark.parametrize("seed", range(2))
def test_spread_clusters_is_the_jackknife_over_clusters_of_each_group(seed):
    dice = np.random.default_rng(seed)
    group = np.array([0] * 12 + [1] * 7)
    rows = [dice.normal(size=dice.integers(1, 9)) for _ in group]
    found = spread_clusters(group, *(np.array([f(row) for row in rows]) for f in (len, sum)), groups=2)
    for place in range(2):
        parts = [row for row, of in zip(rows, group, strict=True) if of == place]
        left_out = [np.mean(np.concatenate(parts[:i] + parts[i + 1 :])) for i in range(len(parts))]
        mean, count = np.mean(np.concatenate(parts)), len(parts)
        assert found.mean[place] == pytest.approx(mean)
        jackknife = np.sqrt((count - 1) / count * np.sum((np.array(left_out) - mean) ** 2))
        assert found.standard_error[place] == pytest.approx(jackknife)
        sizes = np.array([len(part) for part in parts])
        assert found.effective_clusters[place] == pytest.approx(sizes.sum() ** 2 / (sizes**2).sum())


def test_spread_clusters_of_equal_size_is_the_sandwich_and_of_one_undefined():
    rows = np.random.default_rng(1).normal(size=(9, 4))
    found = spread_clusters(np.zeros(9, int), np.full(9, 4.0), rows.sum(1))
    assert found.standard_error[0] == pytest.approx(np.sqrt(9 / 8 * np.sum((rows - rows.mean()).sum(1) ** 2)) / 36)
    assert found.effective_clusters[0] == pytest.approx(9)
    assert np.isnan(spread_clusters(np.zeros(1, int), np.ones(1), np.ones(1)).standard_error[0])


def test_adjust_holm_is_that_of_statsmodels_and_counts_tests_without_a_p():
    from statsmodels.stats.multitest import multipletests

    p = np.array([0.04, 0.001, 0.3, 0.02, 0.02, 0.9])
    assert adjust_holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    assert adjust_holm(np.array([np.nan, 0.01])) == pytest.approx([np.nan, 0.02], nan_ok=True)


def test_judge_pairs_and_rank_sides_are_as_wide_as_what_is_unclear():
    verdicts = judge_pairs(np.array([1.0, -1, 1, 1]), np.array([0.01, 0.05, 0.2, np.nan]))
    assert verdicts == ["better", "worse", "unclear", "too_few"]
    best, worst = rank_sides(np.array([0, 0, 1, 3]), np.array([1, 2, 2, 4]), verdicts, 5)
    assert (best.tolist(), worst.tolist()) == ([2, 2, 1, 1, 1], [2, 3, 2, 2, 2])
