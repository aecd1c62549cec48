"""The standard error of means whose observations come in clusters of unequal size, and the interval of a mean score."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDING = 1e-12
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Spread:
    """Means of groups, each over its clusters. NaN if undefined."""

    n: Floats
    """Observations."""
    mean: Floats
    clusters: Floats
    effective_clusters: Floats
    """(Σ n)² / Σ n² over the clusters' sizes (Kish): the number of clusters if all are equally large. A t-test of the
    mean has this − 1 degrees of freedom."""
    standard_error: Floats
    """The jackknife's over clusters (CR3): sqrt((G − 1) / G × Σ (mean without the cluster − mean)²). If clusters are
    equally large, it is that of Liang and Zeger (1986) with the factor G / (G − 1)."""


def spread_clusters(
    group: Places,
    size: Floats,
    total: Floats,
    groups: int = 1,
    *,
    count: Floats | None = None,
    square: Floats | None = None,
) -> Spread:
    """Return the spread of each group from the sizes and totals of its clusters.

    `group` has the place of each cluster's group, 0 to `groups` − 1. A row may stand for `count` clusters of one size,
    with the sum of their totals and, as `square`, of the squares of their totals.
    """
    count = np.ones(len(size)) if count is None else count
    square = total**2 if square is None else square

    def add(values: Floats) -> Floats:
        return np.bincount(group, values, groups).astype(float)

    with np.errstate(divide="ignore", invalid="ignore"):
        n, clusters = add(count * size), add(count)
        mean = add(total) / n
        expected = size * mean[group]
        moved = (square - 2 * expected * total + count * expected**2) / (n[group] - size) ** 2
        error = np.sqrt((clusters - 1) / clusters * np.maximum(0, add(moved)))
        effective = n**2 / add(count * size**2)
        return Spread(n, mean, clusters, effective, np.where(clusters > 1, error, np.nan))


def count_effective_samples(
    variance: float, samples: int, clusters: int, effective_clusters: float, error: float
) -> float:
    """Return how many independent samples n clustered ones are worth: Kish's design effect.

    The variance of the samples / n × G / (G − 1) / the squared standard error of the mean, at most n. n if every
    cluster has one sample; the effective clusters if there is one cluster, or all samples are equal.
    """
    if clusters == samples:
        return float(samples)
    if clusters == 1 or variance <= ROUNDING:
        return effective_clusters
    return min(samples, variance * clusters / (clusters - 1) / error**2) if error else float(samples)


def bound_share(
    mean: float,
    variance: float,
    samples: int,
    clusters: int,
    effective_clusters: float,
    error: float,
    *,
    is_binary: bool | None = None,
) -> tuple[float, float]:
    """Return the 95% interval of a mean of scores from 0 to 1; NaN if there is none.

    Wilson's score interval (1927) for m effective samples. For scores of 0 and 1, m = effective samples ×
    (t(n − 1) / t(G* − 1))² for n samples in G* effective clusters (Korn and Graubard 1998); below two effective
    clusters m = G*. For other scores, m = effective samples × (z / t(G* − 1))² × (n × mean × (1 − mean) + 1/4) /
    (Σ (x − mean)² + 1/4): their own variance in place of mean × (1 − mean), each with one pseudo-observation of 0 or 1
    with equal chances; none below two effective clusters.
    """
    from scipy.special import ndtri, stdtrit

    chance = mean * (1 - mean)
    is_binary = abs(variance - chance) <= ROUNDING if is_binary is None else is_binary
    worth = count_effective_samples(variance, samples, clusters, effective_clusters, error)
    z = float(ndtri(0.975))
    if effective_clusters >= 2:
        wanted = float(stdtrit(samples - 1, 0.975)) if is_binary else z
        worth *= (wanted / float(stdtrit(effective_clusters - 1, 0.975))) ** 2
        worth *= (samples * chance + 0.25) / (samples * variance + 0.25)
    elif is_binary:
        worth = effective_clusters
    else:
        return math.nan, math.nan
    share = z**2 / worth
    center, half = (mean + share / 2) / (1 + share), math.sqrt(share * (chance + share / 4)) / (1 + share)
    return max(0.0, min(mean, center - half)), min(1.0, max(mean, center + half))
