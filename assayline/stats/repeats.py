"""A metric over repeats of two configurations, or over nights of one: change, interval, test and verdict.

The test is Student's t of the difference of mean logarithms. Its standard error is that of neighbors in turn, whose
differences have no drift in them, or of all repeats together; if the sides are of different sessions, at least that of
sessions; and of nights, one that counts similar nights for fewer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assayline.stats.families import adjust_family
from assayline.stats.worse import Comparison

FEWEST = 3
"""Repeats a side that a test needs."""
FEWEST_PAIRS = 5
"""Repeats a side from which on a test compares neighbors, if both sides ran in turn."""
FEWEST_NIGHTS = 5
"""Nights a side that a test needs."""
LIMIT = 0.02
"""Relative change that matters, of a metric without a limit."""
FEWEST_DEGREES = 5
"""Degrees of freedom that a spread of sessions needs."""
ASSUMED_SPREAD = 0.03
"""Standard deviation of sessions, relative, if too few are known: enough to fail a run, not to pass it."""
LARGEST_CORRELATION = 0.95
SMALLEST_SHARE = 1e-3
"""Values below this share of the largest one, such as 0, have its logarithm."""
ROUNDING = 1e-9
"""Tolerance for rounding: logarithms this close count as equal."""
Values = Any
"""A NumPy array."""


def compare_repeats(
    rows: Sequence[Mapping[str, Any]],
    limits: Mapping[str, float],
    nights: int = 1,
    sessions: Mapping[str, "Sessions"] | None = None,
    rivals: int = 1,
) -> dict[str, Comparison]:
    """Compare each metric of two sides, by metric.

    `rows` have metric, unit, higher_is_better, is_candidate and value, in the order of their runs. `limits` are the
    relative changes that matter, and their metrics are one family of tests; LIMIT is that of all other metrics.
    `nights`: above 1, the repeats are nights, judged every night over a period of that many: neighbors may be
    correlated, and a verdict needs the evidence of the whole period. `sessions`: if the sides are of different ones,
    how much these differ, by metric. `rivals`: every p is multiplied by it, the number of configurations that are
    compared with the best of them.

    The difference is the change of the geometric mean. No interval for fewer than three repeats (of nights, five) on a
    side, and for sides of different sessions whose spread is not known. p-values are adjusted for the family (Holm).
    """
    by_metric: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_metric.setdefault(row["metric"], []).append(row)
    found = {}
    for metric, own in sorted(by_metric.items(), key=lambda one: (one[0] not in limits, one[0])):
        if len({row["unit"] for row in own}) == 1 and len({row["is_candidate"] for row in own}) == 2:
            apart = None if sessions is None else sessions.get(metric, Sessions())
            found[metric] = _compare(own, limits.get(metric, LIMIT), nights, apart)
    tested = [one for one in found.values() if one.p_value is not None]
    families = [[one for one in tested if one.metric in limits], *([one] for one in tested if one.metric not in limits)]
    return found | {one.metric: one for family in families for one in adjust_family(family, rivals)}


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


def spread_sessions(levels: Mapping[Any, Sequence[float]], new: int, old: int) -> Sessions:
    """Measure the spread from the mean logarithm of each session, by configuration.

    With fewer than five sessions more than configurations, it is ASSUMED_SPREAD, and the sides have no interval.
    """
    degrees = sum(len(each) - 1 for each in levels.values())
    if degrees < FEWEST_DEGREES:
        return Sessions(new=new, old=old)
    squares = sum(float(np.var(each)) * len(each) for each in levels.values())
    return Sessions(math.sqrt(squares / degrees), degrees, new, old)


def _compare(rows: Sequence[Mapping[str, Any]], limit: float, nights: int, sessions: Sessions | None) -> Comparison:
    is_new, values = np.array([row["is_candidate"] for row in rows]), np.array([row["value"] for row in rows], float)
    new, old = (take_logs(values)[side] for side in (is_new, ~is_new))
    is_from_zero = values.any() and not values[~is_new].any()
    moved = float(new.mean() - old.mean())
    found = Comparison(
        **{name: rows[0][name] for name in ("metric", "unit", "higher_is_better")},
        value=float(np.median(values[is_new])),
        baseline_value=float(np.median(values[~is_new])),
        counts=(len(new), len(old)),
        difference=None if is_from_zero else math.expm1(moved),
        limit=limit,
        method="repeats" if nights == 1 else "nights",
    )
    if is_from_zero or min(found.counts) < (FEWEST if nights == 1 else FEWEST_NIGHTS):
        return found
    correlation = None
    if nights > 1:
        error, degrees, correlation = spread_nights(new, old)
    elif sessions is None and is_in_turn(is_new):
        error, degrees = float(np.std(new - old, ddof=1)) / math.sqrt(len(new)), len(new) - 1
    else:
        degrees = len(values) - 2
        error = math.sqrt((np.var(new) * len(new) + np.var(old) * len(old)) / degrees * (1 / len(new) + 1 / len(old)))
    errors = [(float(error), float(degrees))] + ([(sessions.error, sessions.degrees)] if sessions else [])
    edge = math.log1p(limit) if moved > 0 else -math.log1p(-limit) if limit < 1 else math.inf
    p_value, p_beyond = (
        max(float(find_p(surplus, *one)) for one in errors) for surplus in (abs(moved), abs(moved) - edge)
    )
    found = replace(
        found, p_value=p_value, p_beyond=p_beyond, correlation=None if correlation is None else float(correlation)
    )
    if sessions and math.isinf(sessions.degrees):
        return found
    half = max(find_reach(*one) for one in errors)
    return replace(found, low=math.expm1(moved - half), high=math.expm1(moved + half))


def take_logs(values: Values) -> Values:
    """Return logarithms of values from 0 on, of which none is below SMALLEST_SHARE of the largest."""
    return np.log(np.maximum(values, SMALLEST_SHARE * (values.max() or 1.0)))


def is_in_turn(is_new: Values) -> bool:
    """Return whether two sides ran as A B B A A B …, so that the differences of neighbors cancel a drift."""
    firsts = is_new[::2]
    return (
        len(is_new) >= 2 * FEWEST_PAIRS
        and len(is_new) % 2 == 0
        and bool((firsts != is_new[1::2]).all() and (firsts[1:] != firsts[:-1]).all())
    )


def find_p(surplus: Values, error: Values, degrees: float) -> Values:
    """Return the two-sided p of a surplus above 0 with this standard error, by t; 1 if it is not above 0."""
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(surplus > ROUNDING, 2 * stdtr(degrees, -np.divide(surplus, error)), 1.0)


def find_reach(error: float, degrees: float) -> float:
    """Return half of the 95% interval of a mean with this standard error."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975)) * error


def spread_nights(new: Values, old: Values) -> tuple[Values, int, Values]:
    """Return the standard error of a difference of nights, which are on the last axis, its degrees of freedom and r.

    It counts n nights as n × (1 − r) / (1 + r), for the correlation r of neighbors. The spread is that around three
    means: of the baseline, and of the candidate before and after its best split into two or more nights each, as a
    fault may have begun among them and would hide itself in the spread. It has n − 5 degrees of freedom, as the split
    was chosen. r has (1 + 3 × r) / n per mean added for the bias of few nights (Marriott and Pope 1954, Kendall 1954).
    """

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
    power = np.where(power > n * ROUNDING**2, power, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(power > 0, products / power, 0)
    correlation = np.clip(found + 3 * (1 + 3 * np.maximum(found, 0)) / n, 0, LARGEST_CORRELATION)
    variance = power / (n - 5) * (1 + correlation) / (1 - correlation)
    return np.sqrt(variance * (1 / new.shape[-1] + 1 / old.shape[-1])), n - 5, correlation
