"""Scores of two runs, prompt by prompt: evidence of a drop against a limit, from a row of `compare_runs`.

The interval is Bonett and Price's (2012), by Student's t over effective clusters: with two pairs more, one better and
one worse, by 1 or by the largest difference seen (the column `padding`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assayline.stats.worse import LEVEL, ROUNDING, Comparison, decide_worse

Row = Mapping[str, Any]
Values = Any
"""A number, or a NumPy array of them."""
POWER = 0.8
Z = 1.959963984540054
MOST_LOG = math.log(1e9)


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
    """Describe a row of `compare_scores` that has pairs against a limit."""
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
        lost=find_lost(row),
    )


def find_lost(row: Row) -> float:
    """Return the share of prompts with a score in one run only, from a row of `compare_runs`."""
    unpaired = row["only_candidate"] + row["only_baseline"]
    return float(unpaired / (row["prompts"] + unpaired)) if unpaired else 0.0


def _find_p_at(row: Row, limit: float, size: Values, square: Values, signs: Values, scale: float = 1.0) -> Values:
    """Return `find_p_values` for a difference, its mean square and the p of its signs, of `scale` times the prompts."""
    center, error = pad(row, size, square, scale)
    tail = _tail((center - limit) / error, row["effective_clusters"] * scale - 1)
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
    """Return the 95% interval of candidate_mean / baseline_mean, from a row of `compare_runs`.

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
    share = _quantile(0.975, row["effective_clusters"] - 1) ** 2 / pairs
    a = old**2 - share * (old_square - old**2)
    b = new * old - share * (product / pairs - new * old)
    c = new**2 - share * (new_square - new**2)
    if a <= 0:
        return None, None
    half = math.sqrt(max(0.0, b**2 - a * c))
    return max(0.0, (b - half) / a), (b + half) / a


def judge_mean(
    shares: Sequence[float],
    differences: Sequence[float],
    ends: Sequence[tuple[float, float]],
    limit: float,
    level: float = LEVEL,
    lost: float = 0.0,
) -> dict[str, Any]:
    """Judge the weighted mean of differences against a limit, from their 95% intervals and shares of the weight.

    The differences are taken for independent and normal. `lost` is the mean share of answers without a score, all of
    which are within the limit if it passes. The two pairs that each interval adds move its center to 0 by a bias that
    a mean would keep, so the center of the mean moves as if two pairs were added to all of them together.

    Returns the mean's interval, low to high, its error, the p of no difference, the p of a drop of exactly the limit
    (beyond_p), and the verdict.
    """
    error = math.hypot(*(share * (high - low) / (2 * Z) for share, (low, high) in zip(shares, ends, strict=True)))
    center = math.fsum(
        share * difference - share**2 * (difference - (high + low) / 2)
        for share, difference, (low, high) in zip(shares, differences, ends, strict=True)
    )
    p_beyond, p_value = (_find_normal_p(-center - least, error) for least in (limit, 0.0))
    found = {"low": center - Z * error, "high": center + Z * error, "error": error}
    verdict = decide_worse(p_beyond, lost - found["low"], limit, level)
    return found | {"center": center, "p_value": p_value, "beyond_p": p_beyond, "verdict": verdict}


def _find_normal_p(surplus: float, error: float) -> float:
    """Return the two-sided p of a surplus above 0 with this standard error; 1 if it is not above 0."""
    if surplus <= ROUNDING:
        return 1.0
    return math.erfc(surplus / error / math.sqrt(2)) if error else 0.0


def _tail(t: Values, degrees: float) -> Values:
    from scipy.special import stdtr

    return stdtr(degrees, np.negative(t))


def _quantile(share: float, degrees: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))
