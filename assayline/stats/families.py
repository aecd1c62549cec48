"""Families of tests between pairs: Holm's step-down, and the ranks that its verdicts leave open."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assayline.stats.clusters import Floats, Places
from assayline.stats.worse import Comparison, name_change


def adjust_holm(p: Floats) -> Floats:
    """Return p-values of the last axis adjusted by Holm's step-down (1979).

    Tests without a p (NaN) count, and stay without.
    """
    order = np.argsort(p, axis=-1, kind="stable")
    scaled = np.minimum(1, np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1))
    adjusted = np.empty(p.shape)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(scaled, axis=-1), axis=-1)
    return adjusted


def adjust_family(found: Sequence[Comparison], rivals: int = 1) -> list[Comparison]:
    """Return comparisons, with or without a p, as one family of tests, and one of `rivals` such families."""
    p_values = np.array([(one.p_value, one.p_beyond) for one in found], float).reshape(-1, 2)
    adjusted = np.minimum(1, rivals * adjust_holm(p_values.T).T).tolist()
    return [
        one if one.p_value is None else replace(one, p_value=p_value, p_beyond=p_beyond)
        for one, (p_value, p_beyond) in zip(found, adjusted, strict=True)
    ]


def judge_pairs(difference: Floats, holm_p: Floats) -> list[str]:
    """Return a verdict per pair: too_few without a p, better or worse at the level of the family, else unclear.

    The limit of a ranking is 0: any difference counts.
    """
    return [
        name_change(-more, None if p_value != p_value else p_value, None, 0.0)
        for more, p_value in zip(difference.tolist(), holm_p.tolist(), strict=True)
    ]


def rank_sides(first: Places, second: Places, verdicts: list[str], sides: int) -> tuple[Places, Places]:
    """Return the best and the worst rank that each side may have, from the verdicts on all pairs of its group.

    The best is 1 + the sides that are better, the worst the number of sides − those that are worse. If all pairs are
    one family, all true ranks lie within these intervals at once, 19 times in 20 (Mogstad, Romano, Shaikh and Wilhelm
    2024). A side is the winner if its worst rank is 1.
    """
    verdict = np.array(verdicts, str)
    better, worse = verdict == "better", verdict == "worse"
    winners = np.concatenate([first[better], second[worse]])
    losers = np.concatenate([second[better], first[worse]])
    pairs = np.bincount(np.concatenate([first, second]), minlength=sides)
    best = 1 + np.bincount(losers, minlength=sides)
    worst = 1 + pairs - np.bincount(winners, minlength=sides)
    return best, worst
