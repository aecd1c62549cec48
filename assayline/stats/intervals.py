"""Intervals of one run's metrics: percentiles and rates of correlated requests, pass@k, saturation, ratios of costs.

Correlation is that of batch means: 20 batches of neighbors are an AR(1), as batches that are too short are correlated
too (Schmeiser 1982, "Batch size effects in the analysis of simulation output"), at the upper end of chance.
"""

import math
from collections.abc import Sequence

import numpy as np

from assayline.stats.clusters import Floats

BATCHES = 20
ARRIVALS_FOR_PERCENTILES = 2_000
"""An open loop of fewer requests that looks calm is one that has seen no burst."""
RESULTS_FOR_RATES = {True: 200, False: 2_000}
"""By whether the loop is closed."""
FEWEST_JUDGED = 50
LARGEST_K = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000)


def find_t(degrees: float) -> float:
    """Return the 97.5% quantile of Student's t; NaN below one degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975)) if degrees >= 1 else math.nan


def _find_correlation(values: Floats) -> float:
    """Return the correlation of neighboring batches, one standard error above its estimate; 0 if they are equal."""
    deviations = values - values.mean()
    power = float((deviations**2).sum())
    found = float((deviations[1:] * deviations[:-1]).sum()) / power if power else 0.0
    return max(0.0, found + 1 / BATCHES + 1 / math.sqrt(BATCHES))


def count_effective_requests(below: Sequence[float], sizes: Sequence[float]) -> int:
    """Return how many independent requests a percentile is worth, from the values at or below it in 20 batches.

    The variance of their shares, by the degrees of freedom of Korn and Graubard (1998).
    """
    from scipy.special import ndtri

    shares, n = np.asarray(below) / np.asarray(sizes), int(sum(sizes))
    mean, variance = float(shares.mean()), float(shares.var(ddof=1)) / BATCHES
    if variance < 1e-12:
        return n
    correlation = _find_correlation(shares)
    worth = mean * (1 - mean) / variance * (float(ndtri(0.975)) / find_t(BATCHES - 1)) ** 2
    return math.floor(min(n, max(0.0, worth * (1 - correlation) / (1 + correlation))))


def bound_percentile(percentile: float, n: int, effective: int) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the n values that are the ends of a percentile's 95% interval; None without one.

    How many of m independent values lie at or below the percentile p is Binomial(m, p), whatever their distribution
    (David and Nagaraja 2003, "Order Statistics", chapter 7). Ranks of m are those of n, rounded outwards.
    """
    from scipy.special import bdtr

    reach = 8 * math.sqrt(effective * percentile * (1 - percentile)) + 30
    first = max(0, math.floor(effective * percentile - reach))
    k = np.arange(first, min(effective, math.ceil(effective * percentile + reach)) + 1)
    chances = bdtr(k, effective, percentile)
    low, high = (first + int(np.searchsorted(chances, tail)) for tail in (0.025, 0.975))
    if low < 1 or high + 1 > effective:
        return None
    return max(1, low * n // effective), (high * n + effective - 1) // effective + 1


def has_percentile_bounds(percentile: float, n: int, median_effective: int, *, is_open: bool) -> bool:
    """Return whether a run shows a percentile well enough. The median shows correlation best: a run without a long
    queue does not show what one does to the tail.
    """
    reach = median_effective * min(percentile, 1 - percentile)
    return reach >= 10 - 1e-9 and (n >= ARRIVALS_FOR_PERCENTILES or not is_open)


def bound_rate(amounts: Sequence[float]) -> float | None:
    """Return half of the 95% interval of a rate as a share of it, from the amounts in 20 windows; None from 1 on."""
    values = np.asarray(amounts, float)
    if not values.sum():
        return None
    shares = values / values.mean() - 1
    correlation = _find_correlation(shares)
    if correlation >= 1:
        return None
    variance = float((shares**2).sum()) / (BATCHES - 1) / BATCHES
    half = find_t(BATCHES - 1) * math.sqrt(variance * (1 + correlation) / (1 - correlation))
    return half if half < 1 else None


def estimate_pass(samples: int, right: int, k: int) -> float | None:
    """Return the chance that of k samples of a prompt at least one is right: 1 − C(n − c, k) / C(n, k); None for n < k.

    The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on Code".
    """
    return None if samples < k else 1 - math.comb(samples - right, k) / math.comb(samples, k)


def list_k(most: int) -> list[int]:
    """Return the k of pass@k for the largest number of samples."""
    return sorted({k for k in (*LARGEST_K, most) if k <= most})


def is_growing(changes: float, squares: float, slices: int, sent: float) -> bool | None:
    """Return whether a number in flight grows by more than chance; None for fewer than 50 requests sent.

    Its changes in slices of time have a mean above 0 by Student's t (97.5%), and add up to more than 2% of what was
    sent. The worst queue that is stable is a random walk, whose changes are nearly independent with a mean close to 0.
    """
    if sent < FEWEST_JUDGED:
        return None
    mean = changes / slices
    variance = (squares - slices * mean**2) / (slices - 1)
    return changes > 0.02 * sent and mean**2 * slices > find_t(slices - 1) ** 2 * variance


def bound_ratio_of_sums(moves: float, clusters: int, square_shares: float, fourth_shares: float) -> float | None:
    """Return the factor between a ratio of two sums over clusters and the ends of its 95% interval; None without one.

    The delta method for the logarithm of a ratio (Cochran 1977, "Sampling Techniques", chapter 6): `moves` has
    Σ ((share of one sum − share of the other) / (1 − share of the samples))², as the jackknife does (CR3). t has the
    degrees of freedom of effective clusters − 1, or those of a variance to which each cluster of n samples adds n²
    (Satterthwaite 1946), if they are less.
    """
    if clusters < 2 or not square_shares:
        return None
    error = math.sqrt(moves * (clusters - 1) / clusters)
    freedom = min(1 / square_shares - 1, square_shares**2 / fourth_shares)
    return math.exp(find_t(freedom) * error) if error > 1e-9 and freedom >= 1 else None
