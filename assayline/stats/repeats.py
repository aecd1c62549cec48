"""A metric over repeats of two configurations, or over nights of one: shift, interval, test and verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from typing import Any

import numpy as np

from assayline.stats.families import adjust_holm
from assayline.stats.worse import LEVEL, Change, name_change

FEWEST = 5
"""Repeats a side that a test needs: the smallest p is then 0.008."""
MOST = 10
"""Repeats a side that count."""
ASSUMED_SPREAD = 0.03
"""Standard deviation of sessions, relative, if too few are known: enough to fail a run, not to pass it."""
LARGEST_CORRELATION = 0.95
ROUNDING = 1e-9
"""Tolerance for rounding: sums this close, relatively, count as equal."""
Values = Any
"""A NumPy array."""


def compare_repeats(
    rows: Sequence[Mapping[str, Any]],
    limits: Mapping[str, float],
    other_limit: float = 0.02,
    nights: int = 1,
    sessions: Mapping[str, "Sessions"] | None = None,
    rivals: int = 1,
) -> dict[str, dict[str, Any]]:
    """Compare each metric of rows of the macro line_up_repeats, by metric.

    `limits` are the relative changes that matter, and their metrics are one family of tests; `other_limit` is that of
    all other metrics. `nights`: above 1, the repeats are nights in their order, judged every night over a period of
    that many: neighbors may be correlated, and a verdict needs the evidence of the whole period. `sessions`: if the
    sides are of different ones, how much these differ, by metric; both p and the interval count it. `rivals`: every p
    is multiplied by it, the number of configurations that are compared with the best of them.

    shift: the median of all differences between a repeat of the candidate and one of the baseline (Hodges and Lehmann).
    shift_low, shift_high: ends of an interval with at least 95% confidence, the (u + 1)-th smallest and largest of
        those differences, u the largest with P(U ≤ u) ≤ 0.025 for the statistic U of Mann and Whitney; for nights at
        least as wide as that of their test. None for fewer than five repeats on a side, and for sides of different
        sessions whose spread is not known.
    ratio, ratio_low, ratio_high: the same of ratios, by logarithms. None if a value is not above 0.
    relative_shift: shift / |baseline_median|. None if that is 0. worsening_share: the same, positive if worse.
    p_value: of no difference; see `compare_means`. holm_p: adjusted for the family. None outside it.
    beyond_p: of a change of exactly minimum_effect in the direction found, adjusted for the
        family; see `find_p_beyond`.
    correlation: of neighboring nights, 0 to 0.95. None unless the repeats are nights.
    verdict: too_few: fewer than five repeats on a side; worse, better: shown beyond minimum_effect, with beyond_p at
        most 0.05, or 0.1 / nights for several nights; same: the interval is within ± minimum_effect; unclear:
        otherwise, and for a shift from a median of 0, of which a limit is not a share.
    """
    sides: dict[str, dict[bool, list[float]]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    units: dict[str, set[str]] = {}
    for row in sorted(rows, key=lambda row: (row["metric"], row["position"])):
        metric = row["metric"]
        sides.setdefault(metric, {True: [], False: []})[row["is_candidate"]].append(row["value"])
        first.setdefault(metric, row)
        units.setdefault(metric, set()).add(row["unit"])
    found = {
        metric: {
            "metric": metric,
            "unit": first[metric]["unit"],
            "higher_is_better": first[metric]["higher_is_better"],
            **_compare(
                np.array(values[True], dtype=float),
                np.array(values[False], dtype=float),
                first[metric]["higher_is_better"],
                limits.get(metric, other_limit),
                nights,
                None if sessions is None else sessions.get(metric, Sessions()),
            ),
            "in_family": metric in limits,
        }
        for metric, values in sorted(sides.items(), key=lambda one: (one[0] not in limits, one[0]))
        if values[True] and values[False] and len(units[metric]) == 1
    }
    family = [row for row in found.values() if row["in_family"] and row["p_value"] is not None]
    for name, adjusted in (("p_value", "holm_p"), ("beyond_p", "beyond_p")):
        for row, p_value in zip(family, adjust_holm(np.array([row[name] for row in family])), strict=True):
            row[adjusted] = float(p_value)
    for row in found.values():
        for name in ("p_value", "holm_p", "beyond_p"):
            row[name] = None if row[name] is None else min(1.0, rivals * row[name])
        row["verdict"] = _judge(row, find_level(nights))
    return found


def find_level(nights: int) -> float:
    """Return the largest two-sided p that is a failure: 0.05, or for several nights 0.05 / nights towards worse."""
    return LEVEL if nights == 1 else 2 * LEVEL / nights


def _judge(row: Mapping[str, Any], level: float) -> Change:
    if row["beyond_p"] is not None and not row["baseline_median"] and row["shift"]:
        return "unclear"
    most = None if row["shift_low"] is None else max(abs(row["shift_low"]), abs(row["shift_high"]))
    effect = row["minimum_effect"] * abs(row["baseline_median"])
    worsening = -row["shift"] if row["higher_is_better"] else row["shift"]
    return name_change(worsening, row["beyond_p"], most, effect * (1 + 1e-12), level)


@dataclass(frozen=True)
class Sessions:
    """How much a metric differs between sessions, such as days, as standard deviation of its logarithm."""

    spread: float = ASSUMED_SPREAD
    degrees: float = math.inf
    """Degrees of freedom of the spread, infinite if it is assumed."""
    new: int = 1
    """Sessions of the candidate's repeats."""
    old: int = 1

    @property
    def error(self) -> float:
        """Standard error of the difference of two sides."""
        return self.spread * math.sqrt(1 / self.new + 1 / self.old)

    @property
    def reach(self) -> float:
        """Half of the 95% interval of such a difference."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, 0.975)) * self.error


def spread_sessions(levels: Mapping[Any, Sequence[float]], new: int, old: int) -> Sessions:
    """Measure the spread from the mean logarithm of each session, by configuration.

    With fewer than five sessions more than configurations, it is ASSUMED_SPREAD, and the sides have no interval.
    """
    degrees = sum(len(each) - 1 for each in levels.values())
    if degrees < FEWEST:
        return Sessions(new=new, old=old)
    squares = sum(float(np.var(each)) * len(each) for each in levels.values())
    return Sessions(math.sqrt(squares / degrees), degrees, new, old)


def _compare(
    new: Values, old: Values, higher_is_better: bool, limit: float, nights: int, sessions: Sessions | None
) -> dict[str, Any]:
    differences = np.sort(np.subtract.outer(new, old), axis=None)
    base, shift = float(np.median(old)), float(np.median(differences))
    relative = shift / abs(base) if base else None
    worsening = None if relative is None else -relative if higher_is_better else relative
    row: dict[str, Any] = {"candidate_repeats": len(new), "baseline_repeats": len(old)}
    for side, values in (("candidate", new), ("baseline", old)):
        row |= {f"{side}_median": float(np.median(values)), f"{side}_lowest": float(values.min())}
        row[f"{side}_highest"] = float(values.max())
    row |= {"shift": shift, "shift_low": None, "shift_high": None, "relative_shift": relative}
    row |= {"ratio": None, "ratio_low": None, "ratio_high": None}
    row |= {"worsening_share": worsening, "minimum_effect": limit, "p_value": None, "correlation": None}
    row |= {"holm_p": None, "beyond_p": None}
    ratios = np.sort(np.divide.outer(new, old), axis=None) if min(new.min(), old.min()) > 0 else None
    if ratios is not None:
        row["ratio"] = float(np.exp(np.median(np.log(ratios))))
    if min(len(new), len(old)) < FEWEST:
        return row
    rank = _find_end_rank(len(new), len(old))
    low, high = float(differences[rank]), float(differences[-1 - rank])
    if ratios is not None:
        row |= {"ratio_low": float(ratios[rank]), "ratio_high": float(ratios[-1 - rank])}
    p_value, half, row["correlation"] = compare_means(new, old, nights)
    row |= {"shift_low": min(low, shift - half), "shift_high": max(high, shift + half)} if half else {
        "shift_low": low, "shift_high": high
    }  # fmt: skip
    beyond_p = float(find_p_beyond(new, old, limit, nights))
    if sessions and ratios is not None:
        moved, half = math.log(new.mean() / old.mean()), abs(base) * sessions.reach
        row |= {"shift_low": min(low, shift - half), "shift_high": max(high, shift + half)}
        p_value = max(p_value, _find_session_p(abs(moved), sessions))
        edge = math.log1p(limit) if moved > 0 else -math.log1p(-limit) if limit < 1 else math.inf
        beyond_p = max(beyond_p, _find_session_p(abs(moved) - edge, sessions))
    if sessions and (ratios is None or math.isinf(sessions.degrees)):
        row |= dict.fromkeys(("shift_low", "shift_high", "ratio_low", "ratio_high"))
    row |= {"p_value": p_value, "beyond_p": beyond_p}
    return row


def _find_session_p(surplus: float, sessions: Sessions) -> float:
    """Return the two-sided p of a difference of logarithms above 0, by t; 1 if it is not above 0."""
    from scipy.special import stdtr

    if surplus <= 0:
        return 1.0
    return float(2 * stdtr(sessions.degrees, -surplus / sessions.error)) if sessions.error else 0.0


def find_p_beyond(new: Values, old: Values, limit: float, nights: int = 1) -> Values:
    """Return the two-sided p of a change of exactly `limit`, in the direction found; 1 if the change is within it.

    It is that of the candidate's values divided by 1 + `limit`, or by 1 − `limit` if they are lower, against the
    baseline's. Repeats are on the last axis; only nights may have others.
    """
    direction = np.sign(np.median(new[..., :, None] - old[..., None, :], axis=(-2, -1)))
    scale = 1 + direction * limit
    at_limit = new / np.where(scale > 0, scale, 1)[..., None]
    is_beyond = (scale > 0) & (direction * (at_limit.mean(axis=-1) - old.mean(axis=-1)) > 0)
    if nights > 1:
        p_value, half, _ = compare_nights(at_limit, old)
        if at_limit.ndim > 1 or half:
            return np.where(is_beyond, p_value, 1)
    return min(1.0, 2 * float(np.mean(_permute(at_limit, old) >= 1 - ROUNDING))) if is_beyond else 1.0


@cache
def count_repeats_needed(metrics: int, level: float) -> int | None:
    """Return the fewest repeats a side with which the worst of a family of metrics fails at a level, if all are worse.

    None if ten a side do not suffice, the most that count.
    """
    for repeats in range(FEWEST, MOST + 1):
        old = np.arange(repeats, dtype=float)
        p_value = find_p_beyond(old + 2 * repeats, old, 0.0)
        if adjust_holm(np.full(metrics, p_value))[0] <= level:
            return repeats
    return None


def compare_means(new: Values, old: Values, nights: int = 1) -> tuple[float, float, float | None]:
    """Return the two-sided p of no difference of means, half the interval and the correlation of a test of nights.

    The exact permutation test: the share of all ways to assign the values to the sides whose difference is at least as
    large. It is of means and the interval is of ranks, so that one may leave out 0 when the other is above 0.05. Nights
    have the test of `compare_nights`, unless all are equal.
    """
    correlation = None
    if nights > 1:
        p_value, half, correlation = (float(one) for one in compare_nights(new, old))
        if half:
            return p_value, half, correlation
    return float(np.mean(np.abs(_permute(new, old)) >= 1 - ROUNDING)), 0.0, correlation


def compare_nights(new: Values, old: Values) -> tuple[Values, Values, Values]:
    """Return p, half the interval and the correlation of a t-test of nights, which are on the last axis.

    Its standard error counts n nights as n × (1 − correlation) / (1 + correlation). The spread is that around three
    means: of the baseline, and of the candidate before and after its best split into two or more nights each, as a
    fault may have begun among them and would hide itself in the spread. It has n − 5 degrees of freedom, as the split
    was chosen. The correlation has (1 + 3 × correlation) / n per mean added for the bias of few nights (Marriott and
    Pope 1954, Kendall 1954). Half is 0 if nights are equal.
    """
    from scipy.special import stdtr, stdtrit

    def add_up(part: Values) -> Values:
        """Return the sums of squares and of products of neighbors around the mean."""
        rest = part - part.mean(axis=-1, keepdims=True)
        return np.stack([(rest**2).sum(axis=-1), (rest[..., 1:] * rest[..., :-1]).sum(axis=-1)])

    before, n = add_up(old), new.shape[-1] + old.shape[-1]
    splits = np.stack(
        [before + add_up(new[..., :split]) + add_up(new[..., split:]) for split in range(2, new.shape[-1] - 1)]
    )
    best = splits[:, :1].argmin(axis=0, keepdims=True)
    power, products = np.take_along_axis(splits, best, axis=0)[0]
    largest = np.maximum(np.abs(new).max(axis=-1), np.abs(old).max(axis=-1))
    power = np.where(power > 1e-24 * n * largest**2, power, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(power > 0, products / power, 0)
        correlation = np.clip(found + 3 * (1 + 3 * np.maximum(found, 0)) / n, 0, LARGEST_CORRELATION)
        variance = power / (n - 5) * (1 + correlation) / (1 - correlation)
        error = np.sqrt(variance * (1 / new.shape[-1] + 1 / old.shape[-1]))
        p_value = 2 * stdtr(n - 5, -np.abs(new.mean(axis=-1) - old.mean(axis=-1)) / error)
    return p_value, stdtrit(n - 5, 0.975) * error, correlation


def _permute(new: Values, old: Values) -> Values:
    """Return the candidate's sum in every way to assign the values to the sides, over the measured one.

    They are around the mean of all, so that the difference of means grows with them alone.
    """
    values = np.concatenate([new, old])
    centered = values - values.mean()
    measured = centered[: len(new)].sum()
    largest = np.abs(centered).max()
    if not largest or abs(measured) <= ROUNDING * largest:
        return np.ones(1)
    return centered[_list_assignments(len(values), len(new))].sum(axis=1) / measured


@cache
def _list_assignments(values: int, chosen: int) -> Values:
    """Return the positions of the candidate's values in every assignment, at most 184,756 of twenty values."""
    listed = np.fromiter(chain.from_iterable(combinations(range(values), chosen)), dtype=np.intp)
    return listed.reshape(-1, chosen)


@cache
def _find_end_rank(new: int, old: int) -> int:
    """Return the largest u with P(U ≤ u) ≤ 0.025 for the statistic U of Mann and Whitney: a place counted from 0."""
    ranks = _list_assignments(new + old, new).sum(axis=1)
    below = np.cumsum(np.bincount(ranks - ranks.min())) / len(ranks)
    return int(np.flatnonzero(below <= 0.025)[-1])
