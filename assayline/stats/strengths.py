"""Strengths of judged runs, by the model of Bradley and Terry (1952) with a term for the length of answers.

Run i wins against run j with odds of exp(strength i − strength j + length × longer); longer is 1 if its answer is the
longer one, −1 if the shorter. So a judge that prefers longer answers gives no strength to the run that writes them; a
run that always has the longer answer cannot be told from the bias, and its interval is wide.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from assayline.stats.clusters import Floats, Places
from assayline.stats.families import adjust_holm, judge_pairs, rank_sides

FEWEST_PROMPTS = 5
"""Effective prompts that a test or interval needs."""
ROUNDS = 200
LARGEST_STEP = 2.0


@dataclass(frozen=True)
class Fit:
    """Maximum likelihood of comparisons in which the first run of each won `value`."""

    strengths: Floats
    """On the scale of logarithms of odds, with mean 0; the last is the effect of length."""
    information: Floats
    moves: Floats
    """How far the estimate moves if a prompt is left out, by prompt × strength: one step of Newton's method."""
    prior_moves: Floats
    """Influence of each observation that is added."""


def fit_strengths(first: Places, second: Places, prompt: Places, value: Floats, longer: Floats, runs: int) -> Fit:
    """Fit strengths to comparisons, whose runs are places from 0 and which must link every run to every other.

    Each pair of runs that met has half a win and half a loss added, so that a run that always won has a strength, too;
    and so has the length.
    """
    met = np.unique(np.stack([np.minimum(first, second), np.maximum(first, second)], 1), axis=0)
    rows = np.zeros((len(first) + 2 * len(met) + 2, runs + 1))
    observed = np.arange(len(first))
    rows[observed, first] += 1
    rows[observed, second] -= 1
    rows[observed, runs] = longer
    added = np.arange(len(first), len(rows))
    for sides, sign in ((np.repeat(met[:, 0], 2), 1), (np.repeat(met[:, 1], 2), -1)):
        rows[added[:-2], sides] = sign
    rows[added[-2:], runs] = 1
    won = np.concatenate([value, np.tile([0.0, 1.0], len(met) + 1)])
    weight = np.concatenate([np.ones(len(first)), np.full(len(added), 0.5)])
    centered = np.zeros((runs + 1, runs + 1))
    centered[:runs, :runs] = 1 / runs
    strengths = np.zeros(runs + 1)
    for _ in range(ROUNDS):
        chance = 1 / (1 + np.exp(-rows @ strengths))
        slope = chance * (1 - chance) * weight
        information = centered + rows.T @ (slope[:, None] * rows)
        step = np.linalg.solve(information, rows.T @ (weight * (won - chance)))
        largest = np.abs(step).max()
        if largest <= 1e-10:
            break
        strengths = strengths + step / max(1, largest / LARGEST_STEP)
    gaps = rows * (won - chance)[:, None]
    moves = np.empty((prompt.max() + 1, runs + 1))
    order = np.argsort(prompt, kind="stable")
    for place, of in enumerate(np.split(order, np.flatnonzero(np.diff(prompt[order])) + 1)):
        rest = information - rows[of].T @ (slope[of, None] * rows[of])
        moves[place] = np.linalg.solve(rest, gaps[of].sum(0))
    # As observations of weight 1/2, whose variance is half of that of one.
    prior = np.linalg.solve(information, np.sqrt(0.5) * gaps[len(first) :].T).T
    return Fit(strengths, information, moves, prior)


def rank_judged(
    first: Places, second: Places, prompt: Places, value: Floats, longer: Floats, runs: int
) -> dict[str, Any]:
    """Rank runs by the comparisons of their answers; return columns with a value per run.

    strength: see `fit_strengths`; NaN unless comparisons link every run to every other.
    low, high: ends of its 95% interval, by the jackknife over prompts (CR3) and Student's t with the effective number
        of prompts − 1 degrees of freedom. NaN for fewer than five.
    best_rank, worst_rank, is_winner: from the tests of all pairs of runs, one family by Holm's step-down.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.special import stdtr, stdtrit

    sides, both = np.concatenate([first, second]), np.concatenate([prompt, prompt])
    met = np.zeros((runs, prompt.max() + 1))
    np.add.at(met, (sides, both), 1)
    comparisons, prompts = met.sum(1), (met > 0).sum(1)
    effective = comparisons**2 / (met**2).sum(1)
    degrees = np.where(effective >= FEWEST_PROMPTS - 1e-9, effective - 1, np.nan)
    one, other = (np.array(places, int) for places in zip(*combinations(range(runs), 2), strict=True))
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(runs, runs))
    links, _ = connected_components(graph, directed=False)
    strengths, error = np.full(runs, np.nan), np.full(runs, np.nan)
    difference, pair_error = np.full(len(one), np.nan), np.full(len(one), np.nan)
    if links == 1:
        fit = fit_strengths(first, second, prompt, value, longer, runs)
        strengths = fit.strengths[:runs]

        def spread(moves: Floats, priors: Floats, count: Floats) -> Floats:
            found: Floats = np.sqrt((count - 1) / count * (moves**2).sum(0) + (priors**2).sum(0))
            return found

        error = spread(fit.moves[:, :runs], fit.prior_moves[:, :runs], prompts)
        moved, added = (moves[:, one] - moves[:, other] for moves in (fit.moves, fit.prior_moves))
        difference = strengths[one] - strengths[other]
        pair_error = spread(moved, added, np.minimum(prompts[one], prompts[other]))
    pair_degrees = np.minimum(degrees[one], degrees[other])
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = 2 * stdtr(pair_degrees, -np.abs(difference) / pair_error)
    half = stdtrit(degrees, 0.975) * error
    best, worst = rank_sides(one, other, judge_pairs(difference, adjust_holm(p_value)), runs)
    return {
        "comparisons": comparisons.astype(int),
        "prompts": prompts,
        "won_share": np.bincount(sides, np.concatenate([value, 1 - value]), runs) / comparisons,
        "strength": strengths,
        "low": strengths - half,
        "high": strengths + half,
        "best_rank": best,
        "worst_rank": worst,
        "is_winner": worst == 1,
    }
