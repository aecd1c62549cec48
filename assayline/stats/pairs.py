"""Scores of two runs, prompt by prompt: evidence of a drop against a limit, from sums over clusters of pairs.

The interval is Bonett and Price's (2012), by Student's t over effective clusters: with two pairs more, one better and
one worse, by 1 or by the largest difference seen, so that equal answers do not prove that nothing differs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assayline.stats.clusters import Floats, Places, spread_clusters
from assayline.stats.intervals import find_t
from assayline.stats.worse import ROUNDING, Comparison

Row = Mapping[str, Any]
FEWEST_CLUSTERS = 5
"""Effective clusters that a test or interval needs."""
Values = Any
"""A number, or a NumPy array of them."""
POWER = 0.8
Z = 1.959963984540054
MOST_LOG = math.log(1e9)


def measure_pairs(pair: Places, sums: Row, pairs: int = 1) -> dict[str, Any]:
    """Measure pairs of runs; return columns with a value per pair: rows of scores in pairs.

    `sums` has sums over the prompts of clusters, and `pair` the place of each row's pair, 0 to `pairs`
    − 1. The standard error is the jackknife's over clusters.

    effective_pairs: independent pairs that they are worth, by Kish's design effect of the differences.
    padding: sum of the squared differences of the two pairs more: 2 × (1 − s × (1 − m²)) for a share s of pairs that
        differ, by at most m. For scores of 0 and 1 it is 2.
    low, high: ends of the 95% interval. For m effective pairs and the mean square q of the differences: d̃ ± t ×
        sqrt(((m × q + padding) / (m + 2) − d̃²) / (m + 2)), d̃ = m × difference / (m + 2), with effective clusters − 1
        degrees of freedom. NaN for fewer than five effective clusters.
    is_proportion: whether all scores are 0 or 1 and no cluster has several pairs.
    p_value: that of no difference; see `find_p_values`.
    """
    from scipy.special import stdtrit

    def add(values: Any) -> Floats:
        return np.bincount(pair, np.asarray(values, float), pairs).astype(float)

    single, rows, squares = (np.asarray(sums[name], float) for name in ("is_single", "prompts", "squares"))
    total = np.asarray(sums["first_total"], float) - sums["second_total"]
    spread = spread_clusters(
        pair,
        np.where(single, 1, rows),
        total,
        pairs,
        count=np.where(single, rows, 1),
        square=np.where(single, squares, total**2),
    )
    better, worse = add(sums["better"]), add(sums["worse"])
    differ = np.where(single, np.add(sums["better"], sums["worse"]), np.abs(total) > ROUNDING)
    largest = np.zeros(pairs)
    np.maximum.at(largest, pair, np.asarray(sums["largest"], float))
    n, difference = spread.n, spread.mean
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(
            spread.effective_clusters >= FEWEST_CLUSTERS - ROUNDING, spread.effective_clusters - 1, np.nan
        )
        square, candidate_mean = add(squares) / n, add(sums["first_total"]) / n
        plain = square - difference**2
        effective = np.minimum(n, plain * spread.clusters / (spread.clusters - 1) / spread.standard_error**2)
        effective = np.where(
            plain <= ROUNDING * square, spread.clusters, np.where(spread.standard_error == 0, n, effective)
        )
        row = {
            "prompts": n.astype(int),
            "candidate_mean": candidate_mean,
            "baseline_mean": candidate_mean - difference,
            "difference": difference,
            "clusters": spread.clusters.astype(int),
            "effective_clusters": spread.effective_clusters,
            "different_clusters": add(differ),
            "effective_pairs": np.where(spread.clusters == n, n, effective),
            "mean_square": square,
            "padding": 2 * (1 - (better + worse) / n * (1 - largest**2)),
            "standard_error": spread.standard_error,
            "is_proportion": (add(~np.asarray(sums["is_binary"], bool)) == 0) & (spread.clusters == n),
            "better_prompts": better.astype(int),
            "worse_prompts": worse.astype(int),
        }
        center, error = pad(row, difference, square)
        half = stdtrit(degrees, 0.975) * error
        p_value = find_p_values(row) + 0 * degrees
    return row | {
        "low": np.maximum(-1, center - half), "high": np.minimum(1, center + half), "p_value": p_value,
    }  # fmt: skip


def find_p(row: Row, limit: float = 0.0) -> float | None:
    """Return the two-sided p of a difference of exactly `limit`, in the direction found; 1 if it is within it.

    None for a row without an interval.
    """
    return None if row["low"] is None else float(find_p_values(row, limit))


def find_p_values(row: Row, limit: float = 0.0) -> Values:
    """Return `find_p` from columns of arrays, NaN for too few clusters.

    It is that of the padded difference by t, with the degrees of freedom of effective clusters, and at least that of
    the signs: McNemar's mid-p value (Fagerland et al. 2013) for proportions, else 2^(1 − D) for D clusters that differ,
    the smallest p if the signs of their differences were flipped.
    """
    better, worse = row["better_prompts"], row["worse_prompts"]
    flipped = np.minimum(1.0, 2.0 ** (1.0 - row["different_clusters"]))
    signs = np.where(row["is_proportion"], _find_mid_p(np.minimum(better, worse), np.add(better, worse)), flipped)
    return _find_p_at(row, limit, np.abs(row["difference"]), row["mean_square"], signs)


def _find_mid_p(fewer: Values, differ: Values) -> Values:
    from scipy.special import bdtr

    less = np.where(np.greater(fewer, 0), bdtr(np.maximum(np.subtract(fewer, 1), 0), differ, 0.5), 0)
    return np.minimum(1, bdtr(fewer, differ, 0.5) + less)


def describe_pairs(row: Row, limit: float = 0.0) -> Comparison:
    """Describe a row of `measure_pairs` that has pairs, with its scorer, against a limit.

    only_candidate, only_baseline: prompts with a score in one run only, if there are any.
    """
    unpaired = row.get("only_candidate", 0) + row.get("only_baseline", 0)
    return Comparison(
        metric="accuracy",
        detail=row["scorer"],
        value=row["candidate_mean"],
        baseline_value=row["baseline_mean"],
        counts=(row["prompts"], row["prompts"]),
        **{name: row[name] for name in ("difference", "low", "high")},
        limit=limit,
        p_value=row["p_value"],
        p_beyond=find_p(row, limit),
        method="prompts",
        lost=float(unpaired / (row["prompts"] + unpaired)) if unpaired else 0.0,
        pairs=row,
    )


def _find_p_at(row: Row, limit: float, size: Values, square: Values, signs: Values, scale: float = 1.0) -> Values:
    """Return `find_p_values` for a difference, its mean square and the p of its signs, of `scale` times the prompts."""
    from scipy.special import stdtr

    center, error = pad(row, size, square, scale)
    tail = stdtr(row["effective_clusters"] * scale - 1, (limit - center) / error)
    return np.where(center <= limit, 1.0, np.maximum(signs, 2 * tail))


def pad(row: Row, difference: Values, square: Values, scale: float = 1.0) -> tuple[Values, Values]:
    """Return the difference with the two pairs that are added, and its standard error."""
    pairs = row["effective_pairs"] * scale
    center = pairs * difference / (pairs + 2)
    return center, np.sqrt(((pairs * square + row["padding"]) / (pairs + 2) - center**2) / (pairs + 2))


def find_power(row: Row, drop: float, limit: float, level: float, prompts: int) -> float:
    """Return the chance that another comparison, of `prompts` like the row's, fails the limit if the drop is true.

    The drop adds to the row's changes, except those of a difference that it shows, by changes of their size. The test
    is that of `describe_pairs`.
    """
    from scipy.special import ndtr

    scale, own = prompts / row["prompts"], row["effective_pairs"]
    unequal = 0 if row["is_proportion"] else row["better_prompts"] + row["worse_prompts"]
    size = math.sqrt(row["mean_square"] * row["prompts"] / unequal) if unequal else 1.0
    shown = max(0.0, row["low"], -row["high"])
    churn = (own * row["mean_square"] + row["padding"]) / (own + 2) - shown * max(shown, size)
    if row["is_proportion"]:
        changed = min(1.0, churn + drop)
        differ, chance = _spread_counts(np.array([prompts]), changed)
        worse, given = _spread_counts(differ.T, (changed + drop) / (2 * changed))
        drops, square, chance = (2 * worse - differ.T) / prompts, differ.T / prompts, chance.T * given
        signs = _find_mid_p(np.minimum(worse, differ.T - worse), differ.T)
    else:
        variance, signs, ends = churn + drop * max(0.0, size - drop), 0.0, np.linspace(-5, 5, 201)
        drops = drop + (ends[1:] + ends[:-1]) / 2 * math.sqrt(variance / (own * scale))
        square, chance = variance + drops**2, np.diff(ndtr(ends))
    return float(chance[_find_p_at(row, limit, drops, square, signs, scale) <= level].sum())


def _spread_counts(n: Values, share: float) -> tuple[Values, Values]:
    """Return counts of a binomial distribution in at most 48 steps, with their chances; a row for each of `n`."""
    from scipy.special import bdtr, ndtr

    n = n.reshape(-1, 1)
    error = np.sqrt(n * share * (1 - share))
    ends = np.clip(np.floor(n * share + (4 * error + 4) * np.linspace(-1, 1, 49)), -1, n).astype(int)
    exact, normal = bdtr(np.maximum(ends, 0), n, share), ndtr((ends + 0.5 - n * share) / np.maximum(error, 1e-9))
    below = np.where(ends < 0, 0, np.where(n < 1e6, exact, normal))  # bdtr loses digits for millions
    return np.minimum(n, (ends[:, 1:] + ends[:, :-1] + 2) // 2), np.diff(below)


def find_reach(row: Row, limit: float, level: float) -> float | None:
    """Return the smallest true drop that another comparison like the row's fails with 80% power.

    It is above 1 if none is. None for a row without an interval.
    """
    from scipy.optimize import brentq

    if row["low"] is None:
        return None

    def surplus(drop: float) -> float:
        return find_power(row, drop, limit, level, row["prompts"]) - POWER

    return float(brentq(surplus, limit, 1.0, xtol=1e-4)) if surplus(1.0) >= 0 else 2.0


def count_prompts_needed(row: Row, limit: float, level: float) -> int | None:
    """Return about how many prompts like the row's fail with 80% power if a drop of twice `limit` is true.

    At least as many show with 80% power that equal runs are within it. None for a limit of 0, and for a billion.
    """
    from scipy.optimize import brentq

    if not 0 < limit < 0.5 or row["low"] is None:
        return None

    def surplus(log: float) -> float:
        return find_power(row, 2 * limit, limit, level, round(math.exp(log))) - POWER

    if surplus(MOST_LOG) < 0:
        return None
    return int(float(f"{math.exp(brentq(surplus, math.log(5), MOST_LOG, xtol=1e-3)):.2g}"))


def bound_ratio(row: Row) -> tuple[float | None, float | None]:
    """Return the 95% interval of candidate_mean / baseline_mean, from a row with the mean squares of both scores.

    It is Fieller's (1954) with the pairs of Bonett and Price: the ratios r for which the interval of the mean of
    candidate − r × baseline holds 0. So it leaves out 1 exactly if the interval of the difference leaves out 0. None
    for a row without an interval, and if the baseline's mean is not above 0 by more than chance.
    """
    if row["low"] is None:
        return None, None
    pairs, size = row["effective_pairs"] + 2, math.sqrt(row["padding"] / 2)
    new, old, new_square, old_square = (
        (row["effective_pairs"] * row[f"{side}_{moment}"] + added) / pairs
        for moment, added in (("mean", size), ("square", size**2))
        for side in ("candidate", "baseline")
    )
    product = row["effective_pairs"] * (row["candidate_square"] + row["baseline_square"] - row["mean_square"]) / 2
    share = find_t(row["effective_clusters"] - 1) ** 2 / pairs
    a = old**2 - share * (old_square - old**2)
    b = new * old - share * (product / pairs - new * old)
    c = new**2 - share * (new_square - new**2)
    if a <= 0:
        return None, None
    half = math.sqrt(max(0.0, b**2 - a * c))
    return max(0.0, (b - half) / a), (b + half) / a


def average_scores(parts: Sequence[Comparison], weights: Sequence[float], metric: str) -> Comparison:
    """Average comparisons of scores, and their limits, with these weights; without a test if one lacks an interval.

    The differences are taken for independent and normal, each with the variance of its 95% interval. The two pairs that
    each interval adds move its center to 0 by a bias that a mean would keep, so the center of the mean moves as if two
    pairs were added to all of them together. `p_beyond` is 1 if the mean is not worse.
    """
    shares = [weight / math.fsum(weights) for weight in weights]

    def average(name: str) -> float:
        return math.fsum(share * getattr(part, name) for share, part in zip(shares, parts, strict=True))

    value, baseline_value, limit = average("value"), average("baseline_value"), average("limit")
    found = Comparison(
        metric=metric,
        value=value,
        baseline_value=baseline_value,
        counts=(sum(part.counts[0] for part in parts),) * 2,
        difference=value - baseline_value,
        limit=limit,
        method="prompts",
        lost=average("lost"),
    )
    error, center = 0.0, 0.0
    for share, part in zip(shares, parts, strict=True):
        if part.low is None or part.high is None:
            return found
        error = math.hypot(error, share * (part.high - part.low) / (2 * Z))
        difference = part.difference or 0.0
        center += share * difference - share**2 * (difference - (part.high + part.low) / 2)
    return replace(
        found,
        low=center - Z * error,
        high=center + Z * error,
        p_value=_find_normal_p(abs(center), error),
        p_beyond=_find_normal_p(-center - limit, error),
    )


def _find_normal_p(surplus: float, error: float) -> float:
    """Return the two-sided p of a surplus above 0 with this standard error; 1 if it is not above 0."""
    if surplus <= ROUNDING:
        return 1.0
    return math.erfc(surplus / error / math.sqrt(2)) if error else 0.0
