"""Level shifts (change points) in a history: since which nightly run, and by how much, if beyond chance.

Nightly runs are few, noisy, autocorrelated, and contain outliers. So:

- Values are centered on their median and scaled by their noise, and clipped at `ODDEST`, so that outliers count little.
- Splits are searched in seeded intervals of the history (Kovács, Bühlmann, Li and Munk 2023, "Seeded binary
  segmentation"), which also finds shifts that were reversed later. The statistic of a split is the difference of both
  sides' means over its standard error (CUSUM); the largest one is tested.
- The null distribution of the largest statistic comes from surrogates: reorderings of the history's own values, as in a
  permutation test of a change point (Antoch and Hušková 2001; Matteson and James 2014; the detectors for nightly
  performance of MongoDB, Daly et al. 2020, and Hunter, Fleming et al. 2023, use the same idea). Free permutation would
  destroy the autocorrelation, and a slow wave would look like a shift. So the orders are those of autoregressive series
  with the history's own lag-1 correlation (Theiler et al. 1992), estimated conservatively (see `estimate_correlation`).
- A significant split divides the history, and both sides are tested against the same limit: of histories without a
  shift, at most `alpha` show one.
- Noise with a longer memory than such series, such as a slow drift, makes small shifts. So a shift must be at least
  `LEAST_SIZE` large, and none is reported if the nights of a page depend on each other (see `is_tellable`).

benchmarks/statistics_levels.py measures error rates and power.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

SHORTEST_NIGHTS = 4
"""Minimum number of runs on each side of a shift."""
FEWEST_NIGHTS = 2 * SHORTEST_NIGHTS + 2
SURROGATES = 999
FIRST_SURROGATES = 99
SEED = 20_230_101
ODDEST = 4.0
"""Maximum deviation of a value, in standard deviations of the noise."""
DECAY = 2**0.5
"""Ratio of the lengths of seeded intervals between layers, as their authors recommend."""
CAUTION = 2.0
"""Standard errors added to the correlation."""
LARGEST_CORRELATION = 0.95
OBVIOUS = 4.5
"""Statistic above which a split is removed before the correlation is estimated."""
MOST_OBVIOUS = 2
"""Most splits that are removed as obvious: more of them are waves, whose correlation would be lost."""
LEAST_SIZE = 2.5
"""Smallest shift, in standard deviations of nights around their levels."""
LAGS = 5
MOST_DEPENDENT = 2.5
"""Mean correlation of nights up to LAGS apart, in standard errors of independent nights and metrics, above which no
shift can be told from a drift."""

Values = Any
"""A NumPy array."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level beyond chance: a level shift, or a slow drift, which cannot be told from one."""

    index: int
    """Index of the first value of the new level."""
    until: int
    """Index of the first value after the new level: the start of the next one, or the end of the history."""
    before: float
    """Median of the level before."""
    after: float
    """Median of the new level."""
    change: float
    """Hodges-Lehmann estimate: the median of all differences between values of both levels."""
    low: float
    """Lower end of its 95% interval, by the ranks of these differences (normal approximation), and wider by
    sqrt((1 + correlation) / (1 − correlation)) for the correlation of neighbors."""
    high: float
    p_value: float
    """Share of surrogates whose largest statistic is at least this one: adjusted for all tested splits."""


def find_shifts(values: Sequence[float], alpha: float = 0.05) -> list[Shift]:
    """Find the level shifts in values of successive runs, in order; none for fewer than FEWEST_NIGHTS values.

    `alpha` is the probability, 0 to 1, that a history without a shift shows one. For several metrics on a page, divide
    it among them.
    """
    series = np.asarray(values, dtype=float)
    if len(series) < FEWEST_NIGHTS or not np.isfinite(series).all() or np.ptp(series) == 0:
        return []
    scores = score_series(series)
    if _is_clearly_chance(scores, alpha):
        return []
    chance = largest_by_chance(scores, SURROGATES)
    limit = float(np.quantile(chance, 1 - alpha, method="higher"))
    found = dict(_split(scores, 0, len(series), limit))
    rest, levels = _remove_levels(scores)
    least = LEAST_SIZE * _find_noise(series) * max(1.0, float(np.sum(rest**2) / (len(series) - levels - 1)) ** 0.5)
    edges = [0, *sorted(found), len(series)]
    sizes = [
        abs(float(np.median(np.subtract.outer(series[index:until], series[before:index]))))
        for before, index, until in zip(edges, edges[1:], edges[2:], strict=False)
    ]
    edges = [0, *(index for index, size in zip(edges[1:], sizes, strict=False) if size >= least), len(series)]
    return [
        describe_shift(
            series[before:index],
            series[index:until],
            index,
            until,
            float(np.mean(chance >= found[index])),
            estimate_correlation(scores),
        )
        for before, index, until in zip(edges, edges[1:], edges[2:], strict=False)
    ]


def is_tellable(metrics: Sequence[Sequence[float]]) -> bool:
    """Return False if the nights of a page are so dependent that a slow drift looks like a shift.

    `metrics` are the values of each. The correlations of their nights around the largest split and the most obvious
    ones, 1 to LAGS apart, are averaged over all metrics, which depend on the same machine.
    """
    found = []
    for values in metrics:
        if len(values) < FEWEST_NIGHTS or np.ptp(values) == 0:
            continue
        rest, levels = _remove_levels(score_series(np.asarray(values, dtype=float)))
        products = [float(np.sum(rest[lag:] * rest[:-lag])) for lag in range(1, LAGS + 1)]
        power = float(np.sum(rest**2))
        mean = float(np.mean(products)) / power if power else 0.0
        found.append((mean + levels / len(values)) * len(values) ** 0.5)
    return not found or float(np.mean(found)) <= MOST_DEPENDENT / math.sqrt(LAGS * len(found))


def score_series(series: Values) -> Values:
    """Center values on their median, scale them by their noise, and clip them at ODDEST."""
    centered, noise = series - np.median(series), _find_noise(series)
    if noise == 0:  # most values are equal: only the sign of the deviation counts
        return np.sign(centered)
    return np.clip(centered / noise, -ODDEST, ODDEST)


def _find_noise(series: Values) -> float:
    return float(np.median(np.abs(np.diff(series))) / (0.6745 * 2**0.5))


def _remove_levels(scores: Values) -> tuple[Values, int]:
    """Return the residuals around the levels between the largest split and the most obvious ones, and their number."""
    nights = len(scores)
    splits = list_splits(0, nights)
    whole = splits[(splits[:, 0] == 0) & (splits[:, 2] == nights)]
    largest = int(whole[_measure_splits(scores[None, :], whole)[0].argmax(), 1])
    obvious = sorted(_split(scores, 0, nights, OBVIOUS), key=lambda split: -split[1])[:MOST_OBVIOUS]
    edges = sorted({0, largest, nights, *dict(obvious)})
    rest = np.concatenate([scores[begin:end] - scores[begin:end].mean() for begin, end in pairwise(edges)])
    return rest, len(edges) - 1


def estimate_correlation(scores: Values) -> float:
    """Estimate an upper bound of the lag-1 correlation, 0 to LARGEST_CORRELATION.

    It is that of the residuals around levels, so that a shift does not count as correlation. Added to it are the
    small-sample bias, (1 + 3 × correlation) / n per level (Marriott and Pope 1954, Kendall 1954), and CAUTION standard
    errors, 1 / sqrt(n) (Bartlett 1946): the plain estimate is too low half of the time, and then a slow wave is
    reported as a shift.
    """
    rest, levels = _remove_levels(scores)
    power = np.sum(rest**2)
    found = np.sum(rest[1:] * rest[:-1]) / power if power else 0.0
    shortfall = levels * (1 + 3 * max(found, 0.0)) / len(scores)
    return float(np.clip(found + shortfall + CAUTION * len(scores) ** -0.5, 0.0, LARGEST_CORRELATION))


def _is_clearly_chance(scores: Values, alpha: float) -> bool:
    """Return True if a few surrogates show that nothing shifted: three standard errors beyond `alpha`."""
    largest = _measure_splits(scores[None, :], list_splits(0, len(scores))).max()
    share = np.mean(largest_by_chance(scores, FIRST_SURROGATES) >= largest)
    return bool(share > alpha + 3 * (alpha / FIRST_SURROGATES) ** 0.5)


def largest_by_chance(scores: Values, surrogates: int) -> Values:
    """Return the largest statistic of each of the first `surrogates` surrogates."""
    nights = len(scores)
    orders = _draw_orders(nights, round(20 * estimate_correlation(scores)) / 20)[:surrogates]
    statistics = _measure_splits(np.sort(scores)[orders], list_splits(0, nights))
    largest: Values = statistics.max(axis=1)
    return largest


@cache
def _draw_orders(nights: int, correlation: float) -> Values:
    """Return the ranks of autoregressive series of order one, a row each, from a fixed seed."""
    dice = np.random.default_rng(SEED)
    series = dice.normal(size=(SURROGATES, nights))
    for night in range(1, nights):
        series[:, night] = correlation * series[:, night - 1] + (1 - correlation**2) ** 0.5 * series[:, night]
    return series.argsort(axis=1).argsort(axis=1)


def _split(scores: Values, begin: int, end: int, limit: float) -> Iterator[tuple[int, float]]:
    """Yield (index, statistic) of splits beyond the limit: the largest one, then those on each side."""
    splits = list_splits(begin, end)
    if len(splits) == 0:
        return
    statistics = _measure_splits(scores[None, :], splits)[0]
    best = int(statistics.argmax())
    if statistics[best] <= limit:
        return
    index = int(splits[best, 1])
    yield index, float(statistics[best])
    yield from _split(scores, begin, index, limit)
    yield from _split(scores, index, end, limit)


def _measure_splits(series: Values, splits: Values) -> Values:
    """Return, per series (row) and split, the difference of both sides' means over its standard error."""
    sums = np.concatenate([np.zeros((len(series), 1)), series.cumsum(axis=1)], axis=1)
    begins, indices, ends = splits.T
    left, right = indices - begins, ends - indices
    means = (sums[:, ends] - sums[:, indices]) / right - (sums[:, indices] - sums[:, begins]) / left
    deviation = series.std(axis=1, keepdims=True)
    return np.abs(means) * (left * right / (left + right)) ** 0.5 / np.where(deviation == 0, 1, deviation)


@cache
def list_splits(begin: int, end: int) -> Values:
    """Return (begin, index, end) of every tested split, from the seeded intervals."""
    nights = end - begin
    intervals = set()
    length = float(nights)
    while length >= 2 * SHORTEST_NIGHTS:
        size = round(length)
        count = 2 * int(np.ceil(nights / length)) - 1
        starts = np.linspace(0, nights - size, count)
        intervals |= {(begin + int(start), begin + int(start) + size) for start in np.floor(starts)}
        length /= DECAY
    splits = [
        (first, index, last)
        for first, last in sorted(intervals)
        for index in range(first + SHORTEST_NIGHTS, last - SHORTEST_NIGHTS + 1)
    ]
    return np.array(splits, dtype=int).reshape(-1, 3)


def describe_shift(
    before: Values, after: Values, index: int, until: int, p_value: float, correlation: float = 0.0
) -> Shift:
    differences = np.sort((after[:, None] - before[None, :]).ravel())
    m, n = len(before), len(after)
    reach = 1.959963984540054 * (m * n * (m + n + 1) / 12) ** 0.5
    rank = max(0, int(np.floor(m * n / 2 - reach)))
    change, widened = float(np.median(differences)), ((1 + correlation) / (1 - correlation)) ** 0.5
    return Shift(
        index,
        until,
        float(np.median(before)),
        float(np.median(after)),
        change,
        change - widened * (change - float(differences[rank])),
        change + widened * (float(differences[-1 - rank]) - change),
        max(p_value, 1 / (SURROGATES + 1)),
    )
