"""Scores of two runs, prompt by prompt: evidence of a drop against a limit, from a row of `compare_runs`.

The interval is Bonett and Price's (2012), with one pair more that is 1 better and one that is 1 worse: a normal
interval for scores of 0 and 1 (is_proportion), otherwise one of Student's t over effective clusters.
"""

import math
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
POWER = 0.8
LEVEL = 0.05


def judge_difference(row: Row) -> dict[str, Any]:
    """Test a row of `compare_runs` for any difference; return the columns below.

    mcnemar_p: McNemar's test with the mid-p value (Fagerland et al. 2013). None unless the row is of proportions.
    p_value: mcnemar_p if there is one. Otherwise of difference / standard_error by t with the degrees of freedom of
        effective clusters, but at least 2^(1 − D) for D clusters that differ, the smallest p if the signs of their
        differences were flipped. 1 if no pair differs. None for a row without an interval.
    detectable_drop: the smallest drop that this test finds with 80% power. Above 1, no drop would be found.
    verdict: other_scorer: the scorers differ; too_few: no p_value; same: no pair differs; worse, better: p_value is
        below 0.05; unclear: otherwise.
    """
    from scipy.special import bdtr

    better, worse = row["better_prompts"], row["worse_prompts"]
    fewer, differ = min(better, worse), better + worse
    mcnemar = None
    if row["is_proportion"]:
        mcnemar = float(min(1, bdtr(fewer, differ, 0.5) + (bdtr(fewer - 1, differ, 0.5) if fewer else 0)))
    p_value = detectable = None
    if row["low"] is not None:
        t = abs(row["difference"]) / row["standard_error"] if row["standard_error"] else math.inf
        flipped = min(1.0, 2.0 ** (1 - row["different_clusters"]))
        p_value = mcnemar if mcnemar is not None else max(2 * _tail(t, _degrees(row)), flipped) if differ else 1.0
        pairs, reach = row["effective_pairs"], -_quantile(LEVEL / 2, _degrees(row)) - _quantile(1 - POWER, None)
        square = (pairs * row["mean_square"] + 2) / (pairs + 2)
        detectable = max(reach * math.sqrt(square / pairs), reach**2 / pairs if row["is_proportion"] else 0)
    if row["same_scorer"] is False:
        verdict = "other_scorer"
    elif p_value is None:
        verdict = "too_few"
    elif not differ:
        verdict = "same"
    else:
        verdict = "unclear" if p_value >= LEVEL else "worse" if row["difference"] < 0 else "better"
    return {"mcnemar_p": mcnemar, "p_value": p_value, "detectable_drop": detectable, "verdict": verdict}


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
