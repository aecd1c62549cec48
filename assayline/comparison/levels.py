"""Level shifts in a history: since which night, and by how much, where it is more than chance.

Nights are few, noisy, now and then odd, and alike to their neighbours. So:

- Values are taken in units of their own noise, from the median of all, and an odd night counts for no more than
  `ODDEST` of them.
- Splits are looked for in seeded intervals of the history (Kovács, Bühlmann, Li and Munk 2023, "Seeded binary
  segmentation"), so that a shift that was mended later is found too; at each, the statistic is the difference of both
  sides' means over its standard error (CUSUM), and the largest of all decides.
- What the largest may be by chance is asked of surrogates: the history's own values in other orders, as in a
  permutation test of a change point (Antoch and Hušková 2001; Matteson and James 2014; MongoDB's and Hunter's detectors
  for nightly performance, Daly et al. 2020, Fleming et al. 2023, rest on the same idea). Permuted freely, neighbours
  would be strangers, and a slow wave would look like a shift. So the orders are those of autoregressive series with the
  history's own correlation of neighbours (Theiler et al. 1992), estimated with care: see `estimate_correlation`.
- What holds is split there, and either side is looked at again, against the same limit: of a history without a shift,
  no more than `alpha` show one.

How often this is wrong, and what it finds, is measured: benchmarks/level_shifts.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

SHORTEST_NIGHTS = 4
"""Nights on either side of a shift: fewer are a spell, not a level."""
FEWEST_NIGHTS = 2 * SHORTEST_NIGHTS + 2
SURROGATES = 999
FIRST_SURROGATES = 99
SEED = 20_230_101
ODDEST = 4.0
"""In standard deviations of the noise."""
DECAY = 2**0.5
"""Of the seeded intervals' lengths from layer to layer, as their authors advise."""
LARGEST_CORRELATION = 0.8
OBVIOUS = 4.5
"""The statistic of a split that needs no proof before the correlation of the rest is looked at."""

Values = Any
"""An array of NumPy, which is imported where it is used: a command's help needs none."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A level that is another one than before, by more than chance."""

    index: int
    """Of the first value of the new level."""
    until: int
    """Of the first value after the new level: where the next one begins, or the history ends."""
    before: float
    """Median of the level before."""
    after: float
    """Median of the new level."""
    change: float
    """By how much, as Hodges and Lehmann estimate it: the median of all differences between both levels' nights."""
    low: float
    """Lower end of its 95% interval, by the ranks of these differences (normal approximation)."""
    high: float
    p_value: float
    """Share of surrogates whose largest statistic is at least this one's: adjusted for all splits that were tried."""


def find_shifts(values: Sequence[float], alpha: float = 0.05) -> list[Shift]:
    """The level shifts in values of successive nights, in their order. None of fewer than FEWEST_NIGHTS.

    `alpha` is the chance that a history without any shift shows one, 0 to 1; of several metrics on a page, each is
    given its part of it.
    """
    import numpy as np

    series = np.asarray(values, dtype=float)
    if len(series) < FEWEST_NIGHTS or not np.isfinite(series).all() or np.ptp(series) == 0:
        return []
    scores = score_series(series)
    if _is_clearly_chance(scores, alpha):
        return []
    chance = largest_by_chance(scores, SURROGATES)
    limit = float(np.quantile(chance, 1 - alpha, method="higher"))
    found = dict(_split(scores, 0, len(series), limit))
    edges = [0, *sorted(found), len(series)]
    return [
        describe_shift(series[before:index], series[index:until], index, until, float(np.mean(chance >= found[index])))
        for before, index, until in zip(edges, edges[1:], edges[2:], strict=False)
    ]


def score_series(series: Values) -> Values:
    """Values in units of their noise, about their median, and no odder than ODDEST."""
    import numpy as np

    centered = series - np.median(series)
    noise = np.median(np.abs(np.diff(series))) / (0.6745 * 2**0.5)
    if noise == 0:  # most nights are equal: the rest are told from them by rank alone
        return np.sign(centered)
    return np.clip(centered / noise, -ODDEST, ODDEST)


def estimate_correlation(scores: Values) -> float:
    """The correlation of a night with the next, at its upper end: 0 to LARGEST_CORRELATION.

    That of what is left beside the levels on either side of the largest split, and of any other that is obvious, so
    that a shift is not taken for a wave. To it come what it falls short by in so few nights, (1 + 3 × correlation) / n
    for each level (Marriott and Pope 1954, Kendall 1954), and one standard error, 1 / sqrt(n) (Bartlett 1946): taken as
    it is found, it is too low half of the time, and then a slow wave is called a shift.
    """
    import numpy as np

    nights = len(scores)
    splits = list_splits(0, nights)
    whole = splits[(splits[:, 0] == 0) & (splits[:, 2] == nights)]
    largest = int(whole[_measure_splits(scores[None, :], whole)[0].argmax(), 1])
    edges = sorted({0, largest, nights, *dict(_split(scores, 0, nights, OBVIOUS))})
    rest = np.concatenate([scores[begin:end] - scores[begin:end].mean() for begin, end in pairwise(edges)])
    power = np.sum(rest**2)
    found = np.sum(rest[1:] * rest[:-1]) / power if power else 0.0
    shortfall = (len(edges) - 1) * (1 + 3 * max(found, 0.0)) / nights
    return float(np.clip(found + shortfall + nights**-0.5, 0.0, LARGEST_CORRELATION))


def _is_clearly_chance(scores: Values, alpha: float) -> bool:
    """Whether a few surrogates are enough to see that nothing shifted: three standard errors beyond `alpha`."""
    import numpy as np

    largest = _measure_splits(scores[None, :], list_splits(0, len(scores))).max()
    share = np.mean(largest_by_chance(scores, FIRST_SURROGATES) >= largest)
    return bool(share > alpha + 3 * (alpha / FIRST_SURROGATES) ** 0.5)


def largest_by_chance(scores: Values, surrogates: int) -> Values:
    """The largest statistic of each surrogate, or of the first so many."""
    import numpy as np

    nights = len(scores)
    orders = _draw_orders(nights, round(20 * estimate_correlation(scores)) / 20)[:surrogates]
    statistics = _measure_splits(np.sort(scores)[orders], list_splits(0, nights))
    largest: Values = statistics.max(axis=1)
    return largest


@cache
def _draw_orders(nights: int, correlation: float) -> Values:
    """Ranks of autoregressive series of order one, a row each. The same every time."""
    import numpy as np

    dice = np.random.default_rng(SEED)
    series = dice.normal(size=(SURROGATES, nights))
    for night in range(1, nights):
        series[:, night] = correlation * series[:, night - 1] + (1 - correlation**2) ** 0.5 * series[:, night]
    return series.argsort(axis=1).argsort(axis=1)


def _split(scores: Values, begin: int, end: int, limit: float) -> Iterator[tuple[int, float]]:
    """(index, statistic) of the splits beyond the limit: the largest one, and then those on either side of it."""
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
    """Per series (a row) and split: the difference of both sides' means over its standard error."""
    import numpy as np

    sums = np.concatenate([np.zeros((len(series), 1)), series.cumsum(axis=1)], axis=1)
    begins, indices, ends = splits.T
    left, right = indices - begins, ends - indices
    means = (sums[:, ends] - sums[:, indices]) / right - (sums[:, indices] - sums[:, begins]) / left
    deviation = series.std(axis=1, keepdims=True)
    return np.abs(means) * (left * right / (left + right)) ** 0.5 / np.where(deviation == 0, 1, deviation)


@cache
def list_splits(begin: int, end: int) -> Values:
    """(begin, index, end) of every split that is tried between these two: those of seeded intervals."""
    import numpy as np

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


def describe_shift(before: Values, after: Values, index: int, until: int, p_value: float) -> Shift:
    import numpy as np

    differences = np.sort((after[:, None] - before[None, :]).ravel())
    m, n = len(before), len(after)
    reach = 1.959963984540054 * (m * n * (m + n + 1) / 12) ** 0.5
    rank = max(0, int(np.floor(m * n / 2 - reach)))
    return Shift(
        index,
        until,
        float(np.median(before)),
        float(np.median(after)),
        float(np.median(differences)),
        float(differences[rank]),
        float(differences[-1 - rank]),
        max(p_value, 1 / (SURROGATES + 1)),
    )
