"""Scores of two runs, prompt by prompt: evidence of a drop against a limit, from a row of `compare_runs`.

The interval is Bonett and Price's (2012), with one pair more that is 1 better and one that is 1 worse: a normal
interval for scores of 0 and 1 (is_proportion), otherwise one of Student's t over effective clusters.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assayline.stats.worse import LEVEL, ROUNDING, Verdict, decide_worse

Row = Mapping[str, Any]
POWER = 0.8
Z = 1.959963984540054


def find_p(row: Row) -> float | None:
    """Return the two-sided p of no difference from a row of `compare_runs`; None for a row without an interval.

    It is that of McNemar's test with the mid-p value (Fagerland et al. 2013) for proportions. Otherwise it is that of
    difference / standard_error by t with the degrees of freedom of effective clusters, but at least 2^(1 − D) for D
    clusters that differ, the smallest p if the signs of their differences were flipped. It is 1 if no pair differs.
    """
    from scipy.special import bdtr

    better, worse = row["better_prompts"], row["worse_prompts"]
    fewer, differ = min(better, worse), better + worse
    if row["low"] is None:
        return None
    if row["is_proportion"]:
        return float(min(1, bdtr(fewer, differ, 0.5) + (bdtr(fewer - 1, differ, 0.5) if fewer else 0)))
    t = abs(row["difference"]) / row["standard_error"] if row["standard_error"] else math.inf
    return max(2 * _tail(t, _degrees(row)), min(1.0, 2.0 ** (1 - row["different_clusters"]))) if differ else 1.0


def judge_drop(row: Row, limit: float, level: float = LEVEL, unscored: int = 0) -> tuple[Verdict, float | None]:
    """Judge the drop of a row of `compare_scores` against a limit; return the p of a drop of exactly the limit, too.

    `unscored`: prompts of both runs with a score in one run only. To pass, the run must be within the limit with all of
    them counted against it.
    """
    p_beyond, low = find_p_beyond(row, limit), row["low"]
    lost = unscored / (row["prompts"] + unscored) if unscored else 0.0
    return decide_worse(p_beyond, None if low is None else lost - low, limit, level), p_beyond


def find_p_beyond(row: Row, limit: float) -> float | None:
    """Return the two-sided p of a drop of exactly `limit`, at least the row's p_value; 1 if the drop is not larger.

    None for a row without an interval.
    """
    if row["low"] is None:
        return None
    center, error = _spread(row["effective_pairs"], -row["difference"], row["mean_square"])
    if center <= limit:
        return 1.0
    return max(float(row["p_value"]), 2 * _tail((center - limit) / error, _degrees(row)))


def find_reach(row: Row, limit: float, level: float, prompts: float | None = None) -> float | None:
    """Return the smallest drop that is shown to be beyond `limit` with 80% power, with `prompts` like the row's.

    It can be above 1, so that no drop is found. None for a row without an interval.
    """
    from scipy.optimize import brentq

    if row["low"] is None:
        return None
    pairs = row["effective_pairs"] * (1 if prompts is None else prompts / row["prompts"])
    square = (row["effective_pairs"] * row["mean_square"] + 2) / (row["effective_pairs"] + 2)
    quantile, power = -_quantile(level / 2, _degrees(row)), -_quantile(1 - POWER, None)

    def surplus(drop: float) -> float:
        """By how much the limit is cleared, if the estimate is low by as much as in one of five comparisons."""
        differing = max(square, drop if row["is_proportion"] else drop**2)
        center, error = _spread(pairs, drop, differing)
        return center - quantile * error - power * math.sqrt(max(0.0, differing - drop**2) / pairs) - limit

    return float(brentq(surplus, limit, 1.0)) if surplus(1.0) >= 0 else 2.0


def count_prompts_needed(row: Row, limit: float, level: float) -> int | None:
    """Return about how many prompts like the row's show with 80% power that a drop of twice `limit` is beyond it.

    About as many show with 80% power that equal runs are within it. None for a limit of 0.
    """
    from scipy.optimize import brentq

    if not 0 < limit < 0.5 or row["low"] is None:
        return None
    found = brentq(lambda log: (find_reach(row, limit, level, math.exp(log)) or 0) - 2 * limit, 0.0, 30.0, xtol=1e-3)
    return int(float(f"{math.exp(found):.2g}"))


def bound_ratio(row: Row) -> tuple[float | None, float | None]:
    """Return the 95% interval of candidate_mean / baseline_mean, from a row of `compare_runs`.

    It is Fieller's (1954) with the pairs of Bonett and Price: the ratios r for which the interval of the mean of
    candidate − r × baseline holds 0. So it leaves out 1 exactly if the interval of the difference leaves out 0. None
    for a row without an interval, and if the baseline's mean is not above 0 by more than chance.
    """
    if row["low"] is None:
        return None, None
    pairs = row["effective_pairs"] + 2
    new, old, new_square, old_square = (
        (row["effective_pairs"] * row[f"{side}_{moment}"] + 1) / pairs
        for moment in ("mean", "square")
        for side in ("candidate", "baseline")
    )
    product = row["effective_pairs"] * (row["candidate_square"] + row["baseline_square"] - row["mean_square"]) / 2
    share = _quantile(0.975, _degrees(row)) ** 2 / pairs
    a = old**2 - share * (old_square - old**2)
    b = new * old - share * (product / pairs - new * old)
    c = new**2 - share * (new_square - new**2)
    if a <= 0:
        return None, None
    half = math.sqrt(max(0.0, b**2 - a * c))
    return max(0.0, (b - half) / a), (b + half) / a


def judge_mean(
    shares: Sequence[float], ends: Sequence[tuple[float, float]], limit: float, level: float = LEVEL
) -> dict[str, Any]:
    """Judge the weighted mean of differences against a limit, from their 95% intervals and shares of the weight.

    The differences are taken for independent and normal. Returns the mean's interval, low to high, its error, the p of
    no difference, the p of a drop of exactly the limit (beyond_p), and the verdict.
    """
    error = math.hypot(*(share * (high - low) / (2 * Z) for share, (low, high) in zip(shares, ends, strict=True)))
    center = math.fsum(share * (high + low) / 2 for share, (low, high) in zip(shares, ends, strict=True))
    p_beyond, p_value = (_find_normal_p(-center - least, error) for least in (limit, 0.0))
    found = {"low": center - Z * error, "high": center + Z * error, "error": error}
    verdict = decide_worse(p_beyond, -found["low"], limit, level)
    return found | {"center": center, "p_value": p_value, "beyond_p": p_beyond, "verdict": verdict}


def _find_normal_p(surplus: float, error: float) -> float:
    """Return the two-sided p of a surplus above 0 with this standard error; 1 if it is not above 0."""
    if surplus <= ROUNDING:
        return 1.0
    return math.erfc(surplus / error / math.sqrt(2)) if error else 0.0


def _spread(pairs: float, difference: float, square: float) -> tuple[float, float]:
    """Return center and standard error with the pairs that are added; `square` is the mean squared difference."""
    center = pairs * difference / (pairs + 2)
    return center, math.sqrt(((pairs * square + 2) / (pairs + 2) - center**2) / (pairs + 2))


def _degrees(row: Row) -> float | None:
    return None if row["is_proportion"] else row["effective_clusters"] - 1


def _tail(t: float, degrees: float | None) -> float:
    from scipy.special import ndtr, stdtr

    return float(ndtr(-t) if degrees is None else stdtr(degrees, -t))


def _quantile(share: float, degrees: float | None) -> float:
    from scipy.special import ndtri, stdtrit

    return float(ndtri(share) if degrees is None else stdtrit(degrees, share))
