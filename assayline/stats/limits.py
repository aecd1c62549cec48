"""A limit on one number of a build, judged by past builds: false alarms, the drop that it finds, and what it needs.

Higher is better here; callers change the sign of other metrics. A run fails if its value is below the limit. Past
values are of one level, and may depend on their neighbors: n of them are worth n × (1 − r) / (1 + r) for the
correlation r of neighbors, which counts if it exceeds chance.
"""

import math
from typing import NamedTuple

import numpy as np

from assayline.stats.clusters import Floats
from assayline.stats.intervals import bound_percentile

FEWEST_VALUES = 5
POWER = 0.8
"""Share of runs in which the smallest drop is found."""
CHANCE = 1.645
"""Standard errors of a correlation that chance exceeds in 5% of series."""


class Estimate(NamedTuple):
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


def find_correlation(values: Floats) -> float:
    """Return the correlation of neighbors, corrected for the bias of few (Marriott and Pope 1954); 0 if by chance."""
    rest = values - values.mean()
    power = float((rest**2).sum())
    found = float((rest[1:] * rest[:-1]).sum()) / power if power else 0.0
    n = len(values)
    return min(0.95, found + (1 + 3 * max(0.0, found)) / n) if found > CHANCE / math.sqrt(n) else 0.0


def find_false_alarms(values: Floats, limit: float) -> Estimate:
    """Return the share of unchanged runs that fail: of past values below the limit, by Wilson's (1927) interval."""
    worth = _count_worth(values)
    share, z = float(np.mean(values < limit)), 1.959963984540054
    middle = (share + z**2 / (2 * worth)) / (1 + z**2 / worth)
    half = z / (1 + z**2 / worth) * math.sqrt(share * (1 - share) / worth + z**2 / (4 * worth**2))
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def find_limit(values: Floats, rate: float) -> float:
    """Return the limit below which a further run of the same level falls with this probability.

    If n + 1 is 1 / rate or more, it is an order statistic, as the k-th smallest of n exceeds a further value with the
    probability k / (n + 1), whatever the distribution. With fewer values it is the end of the prediction interval by t.
    """
    from scipy.special import stdtrit

    ordered, n = np.sort(values), len(values)
    place = rate * (n + 1)
    if place >= 1:
        return float(np.interp(place, np.arange(1, n + 1), ordered))
    return float(values.mean() + stdtrit(n - 1, rate) * values.std(ddof=1) * math.sqrt(1 + 1 / _count_worth(values)))


def find_smallest_drop(values: Floats, limit: float) -> Estimate | None:
    """Return the drop of the level with which POWER of the runs fail the limit; None for too few values."""
    ordered, n = np.sort(values), len(values)
    ranks = bound_percentile(POWER, n, math.floor(_count_worth(values)))
    if ranks is None:
        return None
    drop = float(np.interp(POWER * (n + 1), np.arange(1, n + 1), ordered)) - limit
    low, high = (float(ordered[rank - 1]) - limit for rank in ranks)
    return Estimate(max(0.0, drop), max(0.0, low), max(0.0, high))


def count_repeats(values: Floats, limit: float, rate: float) -> Estimate | None:
    """Return of how many runs the mean fails a limit in at most `rate`; None if the limit is above the level.

    By the normal distribution, with the interval of the variance.
    """
    from scipy.special import chdtri, ndtri

    margin, n = float(values.mean()) - limit, len(values)
    if margin <= 0:
        return None
    correlation = find_correlation(values)
    needed = float(values.var(ddof=1)) * (ndtri(1 - rate) / margin) ** 2 * (1 + correlation) / (1 - correlation)
    scales = 1.0, (n - 1) / chdtri(n - 1, 0.025), (n - 1) / chdtri(n - 1, 0.975)
    return Estimate(*(float(max(1, math.ceil(needed * scale - 1e-9))) for scale in scales))


def count_prompts(values: Floats, limit: float, rate: float, prompts: float) -> int | None:
    """Return how many prompts make a score fail a limit in at most `rate`; None if no number of them does.

    Scores of 0 and 1 over `prompts` have the variance p × (1 − p) / prompts; more prompts do not lower the rest.
    """
    from scipy.special import ndtri

    level = float(values.mean())
    margin, one = level - limit, level * (1 - level)
    rest = max(0.0, float(values.var(ddof=1)) - one / prompts)
    allowed = (margin / float(ndtri(1 - rate))) ** 2 - rest
    return math.ceil(one / allowed) if margin > 0 and allowed > 0 else None


def _count_worth(values: Floats) -> float:
    correlation = find_correlation(values)
    return len(values) * (1 - correlation) / (1 + correlation)
