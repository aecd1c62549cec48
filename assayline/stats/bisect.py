"""Which change did it: the probability of each cause by a few noisy measurements, and what to measure next.

By hypothesis, a candidate has the good level or the bad one: the bad one from one place of a list on, or with one
field; or there is a second change, with any level between; or two fields do it only together, or each alone. Runs of
one level differ by normal noise of unknown size, so evidence is by a t-distribution; levels have flat priors. The next
candidate is the one whose level is most uncertain, which splits the posterior best (Burnashev and Zigangirov 1974, "An
interval estimation problem for controlled observations").
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

Array = Any
CONFIDENCE, MOST_PLACES, MOST_FIELDS, MOST_SUBSETS = 0.95, 256, 40, 1024
GOOD, BAD, MIDDLE, MIRRORED = range(4)
BASIS = np.array([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 1], [0.5, 0.5, -1]])
"""The four levels by the good one, the bad one, and the distance of a middle one from their mean."""
SINGLE_PLACE, SINGLE_FIELD = 0.8, 0.4
"""Prior probability that one place, or one field, did it alone."""
NOTABLE, LEAST_UNCERTAIN = 0.2, 1e-3
"""Share of the difference that makes a second change, and chance of either level that makes a candidate, worth it."""


class Hypotheses(NamedTuple):
    """Possible causes (`one`, `together` or `each`, with places or fields), and hypotheses that end in one of them.

    A hypothesis has two indices of causes, if a middle level is nearer to the bad one, and if to the good one; the
    level of each candidate; and the logarithm of its prior.
    """

    names: list[tuple[str, tuple[int, ...]]]
    cause: Array
    level: Array
    prior: Array


class Posterior(NamedTuple):
    """Probabilities after measurements: that a cause did it, or the larger part of it; that the level of a candidate is
    nearer to the bad one; and of another change of at least NOTABLE among candidates that were measured."""

    causes: Array
    is_bad: Array
    more: float


def list_places(places: int) -> Hypotheses:
    """List the hypotheses on a list whose first candidate is good, and whose last is bad: since which place."""
    singles, pairs = [(one, one) for one in range(1, places)], [*combinations(range(1, places), 2)]
    ends, place = np.array([*singles, *pairs]), np.arange(places)
    level = np.where(place < ends[:, :1], GOOD, np.where(place < ends[:, 1:], MIDDLE, BAD)).astype(np.int8)
    names: list[tuple[str, tuple[int, ...]]] = [("one", (one,)) for one in range(1, places)]
    return Hypotheses(names, ends - 1, level, _share(SINGLE_PLACE, len(singles), len(pairs)))


def list_subsets(fields: int) -> Array:
    """Return subsets × fields: all but the empty and the full one, of many fields a sample, the smallest first."""
    if 2**fields <= MOST_SUBSETS:
        found = np.arange(1, 2**fields - 1)[:, None] >> np.arange(fields) & 1 == 1
    else:
        dice, one = np.random.default_rng(1), np.eye(fields, dtype=bool)
        drawn = dice.random((MOST_SUBSETS, fields)) < dice.uniform(0.2, 0.8, (MOST_SUBSETS, 1))
        found = np.unique(np.concatenate([one, ~one, drawn]), axis=0)
        found = found[found.any(axis=1) & ~found.all(axis=1)]
    return found[np.argsort(found.sum(axis=1), kind="stable")]


def list_fields(subsets: Array) -> Hypotheses:
    """List the hypotheses on fields, for candidates that change the fields of the subsets: one, or two of them."""
    has = subsets.T
    names: list[tuple[str, tuple[int, ...]]] = [("one", (one,)) for one in range(len(has))]
    cause, level = [(one, one) for one in range(len(has))], [*np.where(has, BAD, GOOD)]
    for one, other in combinations(range(len(has)), 2):
        for kind, bad in (("together", has[one] & has[other]), ("each", has[one] | has[other])):
            cause.append((len(names), len(names)))
            names.append((kind, (one, other)))
            level.append(np.where(bad, BAD, GOOD))
        cause.append((one, other))
        level.append(np.select([has[one] & has[other], has[one], has[other]], [BAD, MIDDLE, MIRRORED], GOOD))
    levels = np.array(level, np.int8).reshape(len(cause), len(subsets))
    return Hypotheses(names, np.array(cause), levels, _share(SINGLE_FIELD, len(has), len(cause) - len(has)))


def _share(share: float, singles: int, others: int) -> Array:
    return np.log(np.repeat([share / singles, (1 - share) / max(others, 1)], [singles, others]))


def weigh(
    hypotheses: Hypotheses,
    ends: Sequence[Sequence[float]],
    asked: Sequence[tuple[int, float]],
    spread: float,
    degrees: float,
) -> Posterior:
    """Weigh the hypotheses by the values of the good and the bad end, and of runs of candidates by their index.

    `spread`: standard deviation of runs of one level as it is known beforehand, with its degrees of freedom.
    """
    from scipy.special import stdtr

    means = [float(np.mean(end)) for end in ends]
    step, runs = means[1] - means[0], len(ends[0]) + len(ends[1])
    within = sum(float(np.sum((np.asarray(end) - mean) ** 2)) for end, mean in zip(ends, means, strict=True))
    noise = math.sqrt((degrees * spread**2 + within) / (degrees + runs - 2)) or abs(step) * 1e-6 or 1.0
    both = [*ends, [value for _, value in asked]]
    good, bad, values = ((np.asarray(each) - sum(means) / 2) / math.copysign(noise, step) for each in both)
    level = hypotheses.level[:, [place for place, _ in asked]]
    counts, sums = (np.stack([(level == kind) @ each for kind in range(4)], 1) for each in (values**0, values))
    counts[:, :2] += [len(good), len(bad)]
    sums[:, :2] += [good.sum(), bad.sum()]
    half = max(abs(step) / noise / 2, 1e-9)
    precision = np.einsum("hk,ki,kj->hij", counts, BASIS, BASIS) + np.diag([0, 0, half**-2])
    target, inverse = sums @ BASIS, np.linalg.inv(precision)
    fitted = np.einsum("hij,hj->hi", inverse, target)
    total = sum(float(each @ each) for each in (good, bad, values))
    rest = degrees * (spread / noise) ** 2 + np.maximum(total - (fitted * target).sum(axis=1), 1e-9)
    freedom = degrees + runs + len(asked) - 2
    log = hypotheses.prior - np.log(np.linalg.det(precision)) / 2 - freedom / 2 * np.log(rest)
    chance = np.exp(log - log.max())
    chance /= chance.sum()
    middle, error = fitted[:, 2], np.sqrt(inverse[:, 2, 2] * rest / freedom)
    nearer = stdtr(freedom, middle / error)
    shares = (chance * nearer, chance * (1 - nearer))
    causes = sum(np.bincount(hypotheses.cause[:, side], shares[side], len(hypotheses.names)) for side in (0, 1))
    levels = zip((BAD, MIDDLE, MIRRORED), (chance, *shares), strict=True)
    is_bad = sum(share @ (hypotheses.level == kind) for kind, share in levels)
    is_notable = counts[:, 2:].any(axis=1) & (np.abs(np.abs(middle) - half) > 2 * NOTABLE * half)
    return Posterior(np.clip(causes, 0, 1), np.clip(is_bad, 0, 1), float(chance[is_notable].sum()))


def choose_next(posterior: Posterior, can_ask: Sequence[bool]) -> int | None:
    """Return the candidate to measure, of those that can be; None if none would say more."""
    uncertain = np.where(can_ask, np.minimum(posterior.is_bad, 1 - posterior.is_bad), 0.0).round(9)
    return int(uncertain.argmax()) if uncertain.max(initial=0.0) >= LEAST_UNCERTAIN else None


def list_likely(posterior: Posterior, confidence: float = CONFIDENCE) -> list[int]:
    """Return the fewest causes that did it with this probability together, the likeliest first."""
    order = np.argsort(-posterior.causes, kind="stable")
    needed = int(np.searchsorted(np.cumsum(posterior.causes[order]), confidence - 1e-12)) + 1
    return [int(one) for one in order[:needed]]
