"""How much equal runs differ: components of variance, and the difference that they seldom exceed.

A run is the mean plus an effect of its engine plus one of its own (one-way random effects), normal and of one session:
runs of another day may differ more.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

DOUBT = 0.05
FLOOR_COLUMNS = ("runs", "engines", "runs_per_engine", "between_square", "within_square")
"""Arguments of `find_floors`."""


def split_squares(values: Sequence[float], engines: Sequence[str]) -> dict[str, Any]:
    """Return number, mean and mean squares of runs with these values on these engines.

    N runs on a engines, nᵢ on engine i, have mean squares between and within engines, and n₀ runs per engine (one-way
    random effects; Searle, Casella and McCulloch 1992, section 3.6). What is undefined is NaN.
    """
    _, engine, sizes = np.unique(engines, return_inverse=True, return_counts=True)
    excess = np.asarray(values) - min(values)  # equal values have a variance of exactly 0
    means, n, a = np.bincount(engine, excess) / sizes, len(excess), len(sizes)
    more_engines, more_runs = a - 1 or math.nan, n - a or math.nan
    return {
        "runs": n,
        "engines": a,
        "mean": float(min(values) + excess.mean()),
        "runs_per_engine": (n - sizes @ sizes / n) / more_engines,
        "between_square": sizes @ (means - excess.mean()) ** 2 / more_engines,
        "within_square": np.sum((excess - means[engine]) ** 2) / more_runs,
    }


def find_floors(
    runs: Any, engines: Any, runs_per_engine: Any, between_square: Any, within_square: Any
) -> dict[str, Any]:
    """Split variances, from columns of `split_squares`; return columns, with NaN if undefined.

    run_sd: standard deviation of runs on one engine. NaN if no engine had two runs.
    engine_sd: that which a fresh engine adds: 0 if runs on different engines differ no more than runs on one.
    total_sd: that of a run on a fresh engine.
    noise_floor: difference that two equal runs exceed in at most 5% of pairs, with 95% confidence. It is z × √2 times
        the upper limit of total_sd. With B and W the mean squares between and within engines, the variance of a run
        is B / n₀ + (1 − 1 / n₀) × W, and the limit of this sum is that of Graybill and Wang (1980).
    """
    from scipy.special import chdtri, ndtri

    a, n, per, between, within = (
        np.asarray(column, float) for column in (engines, runs, runs_per_engine, between_square, within_square)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        of_run = np.where(np.isnan(within), 0, (1 - 1 / per) * within)
        more_of_engine, more_of_run = ((df / chdtri(df, 1 - DOUBT) - 1) for df in (a - 1, np.maximum(1, n - a)))
        upper = between / per + of_run + np.hypot(more_of_engine * between / per, more_of_run * of_run)
        engine = np.maximum(0, (between - within) / per)
        total = np.where(np.isnan(within), between, within + engine)
    return {
        "run_sd": np.sqrt(within),
        "engine_sd": np.sqrt(engine),
        "total_sd": np.sqrt(total),
        "noise_floor": ndtri(0.975) * np.sqrt(2 * upper),
    }
