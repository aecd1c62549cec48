"""All pairs of a leaderboard: difference, interval and test of each, from sums over prompt rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from assayline.stats.clusters import ROUNDING, Floats, Places, spread_clusters
from assayline.stats.families import adjust_holm, judge_pairs
from assayline.stats.pairs import find_p_values, pad

FEWEST_CLUSTERS = 5
"""Effective clusters that a test or interval needs."""


def compare_pairs(pair: Places, sums: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    """Compare each pair of one family of tests; return its columns, each with a value per pair.

    `sums` has the columns of `pair_board`, and `pair` the place of each row's pair, 0 to `pairs` − 1. A pair without
    rows is too_few, and counts in the family.

    low, high: ends of the 95% interval, as in `compare_runs`. NaN for fewer than five clusters.
    p_value: see `find_p_values`.
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
    largest = np.zeros(pairs)
    np.maximum.at(largest, pair, np.asarray(sums["largest"], float))
    unequal = add(np.where(single, np.add(sums["better"], sums["worse"]), np.abs(total) > ROUNDING))
    is_proportion = (add(~np.asarray(sums["is_binary"], bool)) == 0) & (spread.clusters == spread.n)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(
            spread.effective_clusters >= FEWEST_CLUSTERS - ROUNDING, spread.effective_clusters - 1, np.nan
        )
        n, difference, square = spread.n, spread.mean, add(squares) / spread.n
        candidate_mean = add(sums["first_total"]) / n
        plain = square - difference**2
        effective = np.minimum(n, plain * spread.clusters / (spread.clusters - 1) / spread.standard_error**2)
        effective = np.where(
            plain <= ROUNDING * square, spread.clusters, np.where(spread.standard_error == 0, n, effective)
        )
        effective = np.where(spread.clusters == n, n, effective)
        padding = 2 * (1 - (better + worse) / n * (1 - largest**2))
        row = {
            "difference": difference, "mean_square": square, "padding": padding, "effective_pairs": effective,
            "effective_clusters": degrees + 1, "better_prompts": better, "worse_prompts": worse,
            "different_clusters": unequal, "is_proportion": is_proportion,
        }  # fmt: skip
        center, error = pad(row, difference, square)
        half, p_value = stdtrit(degrees, 0.975) * error, find_p_values(row) + 0 * degrees
    holm_p = adjust_holm(p_value)
    return {
        "prompts": n.astype(int),
        "candidate_mean": candidate_mean,
        "baseline_mean": candidate_mean - difference,
        "difference": difference,
        "standard_error": spread.standard_error,
        "padding": padding,
        "low": np.maximum(-1, center - half),
        "high": np.minimum(1, center + half),
        "better_prompts": better.astype(int),
        "worse_prompts": worse.astype(int),
        "p_value": p_value,
        "holm_p": holm_p,
        "verdict": judge_pairs(difference, holm_p),
    }
