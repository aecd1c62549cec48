"""Probabilities of causes against a density of SciPy, and searches by them that are right and short."""

import numpy as np
import pytest
from scipy import stats

from assayline.stats.bisect import choose_next, list_fields, list_likely, list_places, list_subsets, weigh
from benchmarks import statistics_bisect


def find_chances(design, ends, asked, spread, degrees):
    """Evidence of the hypotheses, from a multivariate t with nearly flat priors of both levels, which cost two degrees.

    `design(hypothesis, candidate)` has the weights of good level, bad level and the distance of a middle one.
    """
    values = np.array([*ends[0], *ends[1], *(value for _, value in asked)])
    step, runs = np.mean(ends[1]) - np.mean(ends[0]), len(ends[0]) + len(ends[1])
    within = sum(np.var(end) * len(end) for end in ends)
    noise = np.sqrt((degrees * spread**2 + within) / (degrees + runs - 2))
    scale = spread**2 * degrees / (degrees - 2)
    prior = scale * np.diag([1e8, 1e8, (step / 2 / noise) ** 2])
    found = []
    for levels in design:
        rows = np.array([(1, 0, 0)] * len(ends[0]) + [(0, 1, 0)] * len(ends[1]) + [levels[n] for n, _ in asked])
        shape = rows @ prior @ rows.T + scale * np.eye(len(values))
        found.append(stats.multivariate_t.logpdf(values - values.mean(), shape=shape, df=degrees - 2))
    return np.exp(np.array(found) - max(found))


def test_weigh_gives_the_probabilities_of_a_multivariate_t():
    levels = [(1, 0, 0), (0, 1, 0), (0.5, 0.5, 1), (0.5, 0.5, -1)]
    places, fields = list_places(4), list_fields(list_subsets(2))
    assert places.level.tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 2, 1, 1], [0, 2, 2, 1], [0, 0, 2, 1]]
    assert fields.names == [("one", (0,)), ("one", (1,)), ("together", (0, 1)), ("each", (0, 1))]
    assert fields.level.tolist() == [[1, 0], [0, 1], [0, 0], [1, 1], [2, 3]]
    ends = [1.0, 1.3, 0.8], [2.9, 3.2]
    for hypotheses, asked in (
        (places, [(1, 1.4), (2, 2.6), (2, 3.1)]),
        (places, [(1, 2.0), (2, 2.1)]),
        (fields, [(0, 2.8), (1, 1.6)]),
        (fields, [(0, 1.1), (1, 1.2)]),
    ):
        design = [[levels[kind] for kind in row] for row in hypotheses.level]
        chances = find_chances(design, ends, asked, 0.3, 6.0) * np.exp(hypotheses.prior)
        chances /= chances.sum()
        found = weigh(hypotheses, ends, asked, 0.3, 6.0)
        for index in range(len(hypotheses.names)):
            is_own = hypotheses.cause == index
            low, high = chances[is_own.all(axis=1)].sum(), chances[is_own.any(axis=1)].sum()
            assert low * 0.999 <= found.causes[index] <= high * 1.001 + 1e-9, "a second change is of either cause"
        assert found.causes.sum() == pytest.approx(1)


def test_choose_next_halves_what_is_left_and_ends():
    hypotheses, can_ask = list_places(9), np.arange(9) % 8 > 0
    ends = [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]
    found = weigh(hypotheses, ends, [], 0.01, 10.0)
    assert choose_next(found, can_ask) == 4 and len(list_likely(found)) == 8
    found = weigh(hypotheses, ends, [(4, 1.0), (2, 0.0), (3, 0.0)], 0.01, 10.0)
    assert list_likely(found) == [3] and choose_next(found, can_ask) is None
    assert choose_next(weigh(hypotheses, ends, [(4, 1.0), (2, 0.0)], 0.01, 10.0), can_ask & (np.arange(9) != 3)) is None


def test_searches_are_right_and_cost_three_fifths_of_a_plain_bisection(monkeypatch):
    """Each row of the table in statistics.md of 8 candidates, and of 6 fields, with 40 histories."""
    monkeypatch.setattr(statistics_bisect, "HISTORIES", 40)
    rows = [
        row for row, _ in zip(statistics_bisect.measure_histories(np.random.default_rng(2)), range(12), strict=False)
    ]
    rows += [row for row, _ in zip(statistics_bisect.measure_fields(np.random.default_rng(2)), range(12), strict=False)]
    for row in rows:
        assert row["of those of a plain bisection"] <= 0.6, row
        if row["change"] == "5 × limit":
            assert row["it is right"] >= 0.95 and row["one is named"] >= (0.5 if "broken" in row.values() else 0.9), row
    named = [row for row in rows if row["change"] != "1 × limit"]
    assert np.mean([row["it is right"] for row in named]) >= 0.98
