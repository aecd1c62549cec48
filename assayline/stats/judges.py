"""How far a judge can be trusted: agreement with labels, corrected shares, reliability and biases.

A measure is the mean of a number x over its cases, which are ballots, answers or pairs, and its standard error is the
jackknife's over judged prompts (`clusters.py`). For shares x is 0 or 1; for kappa and the corrected share it is the
case's influence on the measure, so that one formula also serves repeats (the delta method).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from assayline.stats import to_rows
from assayline.stats.clusters import ROUNDING, Floats, Places, bound_share, spread_clusters

MEASURES = (
    "agreement", "kappa", "weighted_kappa", "sensitivity", "specificity", "raw_share", "corrected_share", "flip_share",
    "repeated_samples", "nominal_alpha", "interval_alpha", "position_bias", "consistent_share", "length_bias",
)  # fmt: skip
FEWEST_CLUSTERS = 5
"""Effective prompts that an interval with Student's t needs."""


@dataclass(frozen=True)
class Measure:
    """A measure with its standard error and 95% interval; NaN if undefined."""

    measure: str
    value: float
    standard_error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int | None = None
    """Its cases."""


@dataclass(frozen=True)
class Ballots:
    """The verdicts that are compared with labels: one per request, or in a panel one per answer and order."""

    cluster: Places
    """The judged prompt."""
    category: Places
    """The verdict as an unordered word: of a panel that of most verdicts, of equally many the lowest one."""
    value: Floats
    """The mean verdict, 0 to 1."""
    label_category: Places
    label_value: Floats
    """NaN without a label."""
    pair: Places
    """The pair of answers in either order, with the judge's repeat."""
    first: Any
    """Answer that was shown first, a or b; empty without pairs."""
    longer: Floats
    """1 if answer a is the longer one, −1 if the shorter, else 0."""


def audit_judge(votes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measures of one judge or panel that are defined, as rows with the fields of `Measure`.

    `votes` has a row per ballot × word with the columns of `_VOTES` in `comparison/judges.py`.

    agreement: share of labelled ballots with the label's word. sensitivity, specificity: of those labelled 0.5 or
        more, and less, the share with a verdict on the same side.
    kappa: agreement beyond chance (Cohen 1960), and weighted_kappa with weights 1 − (verdict − label)² (1968), of
        scales alone. Not defined if all labels are equal. Without repeats the variance is that of Fleiss, Cohen and
        Everitt (1969) × G / (G − 1) for G prompts. The interval is symmetric in Fisher's z.
    raw_share: mean verdict. corrected_share: the same + the mean of label − verdict over labelled ballots, which is
        prediction-powered inference (Angelopoulos et al. 2023). Its interval has 1 / labelled² added to the variance,
        as if one more label differed from its verdict (after Agresti and Min 2005).
    flip_share: of the answers with several verdicts, the share whose verdicts differ. nominal_alpha, interval_alpha:
        Krippendorff's alpha (2004) of them as unordered words, and of the values of scales with squared differences.
    position_bias: of the pairs judged in both orders, the mean verdict for a if shown first − that if shown second.
        consistent_share: share of them with the same winner, or a tie, in both orders.
    length_bias: of the verdicts on answers of different lengths, the share for the longer − the share for the shorter.
    """
    if not len(votes["votes"]):
        return []
    ballots, has_scale = _combine(votes), bool(np.any(votes["has_scale"]))
    measures = [
        *_measure_agreement(ballots, has_scale),
        *_measure_shares(ballots),
        *_measure_repeats(votes, has_scale),
        *_measure_pairs(ballots),
    ]
    return to_rows({field.name: [getattr(one, field.name) for one in measures] for field in fields(Measure)})


def _combine(votes: Mapping[str, Any]) -> Ballots:
    words = np.concatenate([votes["category"], votes["label_category"]])
    _, codes = np.unique(words, return_inverse=True)
    category, label_category = np.split(codes, 2)
    ballot, number = (np.asarray(votes[key]) for key in ("ballot", "votes"))
    order = np.lexsort((category, votes["total"] / number, -number, ballot))
    _, first, place = np.unique(ballot[order], return_index=True, return_inverse=True)
    chosen = order[first]

    def add(name: str) -> Floats:
        return np.bincount(place, np.asarray(votes[name], float)[order]).astype(float)

    columns = ("cluster", "label_value", "pair", "first", "longer")
    return Ballots(
        category=category[chosen],
        label_category=label_category[chosen],
        value=add("total") / add("votes"),
        **{name: np.asarray(votes[name])[chosen] for name in columns},
    )


def _measure_agreement(ballots: Ballots, has_scale: bool) -> Iterator[Measure]:
    labelled = ~np.isnan(ballots.label_value)
    if not labelled.any():
        return
    cluster, verdict, label = (each[labelled] for each in (ballots.cluster, ballots.value, ballots.label_value))
    word, other = ballots.category[labelled], ballots.label_category[labelled]
    yield _average_share("agreement", word == other, cluster)
    for name, side in (("sensitivity", label >= 0.5), ("specificity", label < 0.5)):
        if side.any():
            yield _average_share(name, (verdict >= 0.5)[side] == (label >= 0.5)[side], cluster[side])
    if len(np.unique(other)) < 2:
        return
    size = max(word.max(), other.max()) + 1
    of_verdict, of_label = (np.bincount(each, minlength=size) / len(word) for each in (word, other))
    yield from _measure_kappa(
        "kappa", word == other, of_label[word] + of_verdict[other], float(of_verdict @ of_label), cluster
    )
    if has_scale:
        mean, square = (np.array([(each**power).mean() for each in (verdict, label)]) for power in (1, 2))
        chance = 2 - (verdict**2 - 2 * verdict * mean[1] + square[1]) - (label**2 - 2 * label * mean[0] + square[0])
        expected = float(1 - (square.sum() - 2 * mean.prod()))
        yield from _measure_kappa("weighted_kappa", 1 - (verdict - label) ** 2, chance, expected, cluster)


def _measure_kappa(name: str, weight: Any, chance: Floats, expected: float, cluster: Places) -> Iterator[Measure]:
    """Measure (observed − expected) / (1 − expected) by each ballot's influence, whose mean is 0."""
    rest = 1 - expected
    if rest > ROUNDING:
        observed = float(np.mean(weight))
        influence = weight * rest - chance * (1 - observed) - (observed * expected - 2 * expected + observed)
        found = _average_signed(name, (observed - expected) / rest + influence / rest**2, cluster)
        yield found if found.standard_error > ROUNDING else Measure(name, found.value, found.standard_error, n=found.n)


def _measure_shares(ballots: Ballots) -> Iterator[Measure]:
    yield _average_share("raw_share", ballots.value, ballots.cluster)
    labelled = ~np.isnan(ballots.label_value)
    if not labelled.any():
        return
    gap = np.where(labelled, ballots.label_value - ballots.value, 0)
    gaps, correction = labelled.sum(), gap.sum() / labelled.sum()
    x = ballots.value + correction + len(gap) / gaps * np.where(labelled, gap - correction, 0)
    yield _average_signed("corrected_share", x, ballots.cluster, least=0, extra=1 / gaps, only=labelled)


def _measure_repeats(votes: Mapping[str, Any], has_scale: bool) -> Iterator[Measure]:
    _, shown = np.unique(votes["shown"], return_inverse=True)
    raters = np.bincount(shown, votes["votes"])
    kept = raters[shown] > 1
    if not kept.any():
        return
    numbers = [np.asarray(votes[key], float)[kept] for key in ("votes", "total", "squares")]
    _, answer = np.unique(shown[kept], return_inverse=True)
    _, first = np.unique(answer, return_index=True)
    words, word = np.unique(np.asarray(votes["category"])[kept], return_inverse=True)
    pairs = answer * len(words) + word
    cells, place = np.unique(pairs, return_inverse=True)
    number, total, squares = (np.bincount(place, each) for each in numbers)
    of_cell = cells // len(words)
    yield _average_share("flip_share", np.bincount(of_cell) > 1, np.asarray(votes["cluster"])[kept][first])
    yield Measure("repeated_samples", len(first))
    rater = np.bincount(of_cell, number)
    word_gap = (rater**2 - np.bincount(of_cell, number**2)) / (rater - 1)
    value_gap = 2 * (rater * np.bincount(of_cell, squares) - np.bincount(of_cell, total) ** 2) / (rater - 1)
    verdicts = number.sum()
    if len(words) > 1:
        spread = verdicts**2 - (np.bincount(cells % len(words), number) ** 2).sum()
        yield Measure("nominal_alpha", float(1 - (verdicts - 1) * word_gap.sum() / spread))
        if has_scale:
            spread = 2 * (verdicts * squares.sum() - total.sum() ** 2)
            yield Measure("interval_alpha", float(1 - (verdicts - 1) * value_gap.sum() / spread))


def _measure_pairs(ballots: Ballots) -> Iterator[Measure]:
    _, first, pair = np.unique(ballots.pair, return_index=True, return_inverse=True)
    sides = [ballots.first == side for side in ("a", "b")]
    counts = [np.bincount(pair[side], minlength=len(first)) for side in sides]
    both = (counts[0] > 0) & (counts[1] > 0)
    if both.any():
        ahead, behind = (
            np.bincount(pair[side], ballots.value[side], len(first))[both] / number[both]
            for side, number in zip(sides, counts, strict=True)
        )
        cluster = ballots.cluster[first][both]
        yield _average_signed("position_bias", ahead - behind, cluster)
        winners = [np.sign(np.round(each - 0.5, 6)) for each in (ahead, behind)]
        yield _average_share("consistent_share", winners[0] == winners[1], cluster)
    apart = ballots.longer != 0
    if apart.any():
        x = (2 * ballots.value[apart] - 1) * ballots.longer[apart]
        yield _average_signed("length_bias", x, ballots.cluster[apart])


def _average_signed(
    name: str, x: Floats, cluster: Places, least: float = -1, extra: float = 0, only: Any = None
) -> Measure:
    """Average x with an interval of Student's t, cut to `least` and 1.

    `extra` is added to the standard error as a square, and the degrees of freedom are those of the cases `only`.
    That of kappa is symmetric in Fisher's z, the inverse hyperbolic tangent, as few clusters skew it.
    """
    from scipy.special import stdtrit

    value, error, _ = _spread(x, cluster)
    clusters = _spread(x if only is None else x[only], cluster if only is None else cluster[only])[2]
    half = math.nan
    if clusters >= FEWEST_CLUSTERS - ROUNDING:
        half = float(stdtrit(clusters - 1, 0.975)) * math.hypot(error, extra)
    low, high = value - half, value + half
    if name.endswith("kappa") and abs(value) < 1:
        low, high = np.tanh(np.arctanh(value) + np.array([-half, half]) / (1 - value**2))
    value, low, high = (float(np.clip(end, least, 1)) for end in (value, low, high))
    return Measure(name, value, error, low, high, len(x))


def _average_share(name: str, x: Any, cluster: Places) -> Measure:
    """Average x of 0 to 1 with the interval of `bound_share`."""
    x = np.asarray(x, float)
    value, error, clusters = _spread(x, cluster)
    count = len(np.unique(cluster))
    low, high = bound_share(value, float(np.mean((x - value) ** 2)), len(x), count, clusters, error)
    return Measure(name, value, error, low, high, len(x))


def _spread(x: Floats, cluster: Places) -> tuple[float, float, float]:
    """Return mean, standard error and effective clusters."""
    _, place = np.unique(cluster, return_inverse=True)
    size, total = (np.bincount(place, each).astype(float) for each in (np.ones(len(x)), x))
    found = spread_clusters(np.zeros(len(size), int), size, total)
    return float(found.mean[0]), float(found.standard_error[0]), float(found.effective_clusters[0])
