"""Part `clusters` of `benchmarks.statistics`: scores of 0 and 1 in clusters, such as the questions on a passage.

A cluster's ease is Beta(1.5, 0.7). In a pair of equal runs, 15% of prompts change to either side, by a normal variable
whose correlation within a cluster is 0.5. A dash means that there are too few clusters.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr

from assayline.stats import to_rows
from assayline.stats.clusters import bound_share, spread_clusters
from assayline.stats.intervals import bound_ratio_of_sums
from assayline.stats.judges import audit_judge
from assayline.stats.pairs import describe_pairs, measure_pairs

Dice = np.random.Generator
Row = dict[str, Any]
CASES = 4_000
SIZES: dict[str, list[int]] = {
    "10 of 5": [5] * 10,
    "20 of 5": [5] * 20,
    "20 of 20": [20] * 20,
    "50 of 5": [5] * 50,
    "20, from 40 to 1": np.geomspace(40, 1, 20).round().astype(int).tolist(),
    "2 of 60, 40 of 2": [60] * 2 + [2] * 40,
    "1 of 100, 20 of 5": [100] + [5] * 20,
}
CHANGED = 0.15
EASE = (1.5, 0.7)
"""Beta distribution of the share of right answers in a cluster."""


def measure_clusters(dice: Dice) -> Iterator[Row]:
    """Coverage of intervals over clusters, and false verdicts on pairs of equal runs."""
    parts = (measure_scores, measure_judges, measure_costs)
    for rows in zip(*(part(own) for part, own in zip(parts, dice.spawn(3), strict=True)), strict=True):
        yield {name: value for row in rows for name, value in row.items()}


def measure_scores(dice: Dice) -> Iterator[Row]:
    """Coverage of intervals of an accuracy and of a difference, and false verdicts: 4,000 runs and pairs a row."""
    for name, listed in SIZES.items():
        sizes = np.array(listed)
        accuracy = [_holds_accuracy(dice, sizes) for _ in range(CASES)]
        pairs = [_compare_equal_runs(dice, sizes) for _ in range(CASES)]
        held = [low <= 0 <= high for low, high, _ in pairs if not np.isnan(low)]
        is_given = len(held) > CASES / 2
        yield {
            "clusters": name,
            "accuracy": float(np.mean(accuracy)),
            "difference": float(np.mean(held)) if is_given else None,
            "called worse": float(np.mean([verdict == "worse" for *_, verdict in pairs])) if is_given else None,
        }


def measure_judges(dice: Dice) -> Iterator[Row]:
    """Coverage of intervals of a judge: 1,000 audits a row, with labels in half of the clusters.

    The label is 1 with the ease of its cluster; the judge errs with a probability of Beta(1, 4) of the cluster.
    """
    share = EASE[0] / sum(EASE)
    error = 1 / 5
    said = share * (1 - error) + (1 - share) * error
    chance = share * said + (1 - share) * (1 - said)
    true = {"kappa": (1 - error - chance) / (1 - chance), "corrected_share": share}
    for name, listed in SIZES.items():
        held: dict[str, list[bool]] = {measure: [] for measure in true}
        for _ in range(1_000):
            measures = {row["measure"]: row for row in _audit(dice, np.array(listed))}
            for measure, value in true.items():
                row = measures.get(measure)
                if row and row["low"] is not None:
                    held[measure].append(row["low"] <= value <= row["high"])
        yield {"clusters": name} | {
            measure.replace("_", " "): float(np.mean(each)) if len(each) > 500 else None
            for measure, each in held.items()
        }


def _audit(dice: Dice, sizes: np.ndarray) -> list[Row]:
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    ease, wrong = dice.beta(*EASE, len(sizes))[cluster], dice.beta(1, 4, len(sizes))[cluster]
    label = (dice.random(len(cluster)) < ease).astype(float)
    verdict = np.where(dice.random(len(cluster)) < wrong, 1 - label, label)
    is_labelled = (dice.permutation(len(sizes)) % 2 == 0)[cluster]
    words, number = np.array(["no", "yes"]), np.arange(len(cluster))
    said = words[verdict.astype(int)]
    return audit_judge(
        {
            "ballot": number, "shown": number, "pair": number, "cluster": cluster, "category": said,
            "votes": np.ones(len(cluster)), "total": verdict, "squares": verdict, "first": np.full(len(cluster), ""),
            "label_category": np.where(is_labelled, words[label.astype(int)], ""),
            "label_value": np.where(is_labelled, label, np.nan), "longer": np.zeros(len(cluster)),
            "has_scale": np.zeros(len(cluster), bool),
        }
    )  # fmt: skip


def measure_costs(dice: Dice) -> Iterator[Row]:
    """Coverage of the interval of the cost per right answer, by the SQL: 1,000 runs a row.

    Each output token costs 1. Answers have log-normal lengths (0.6) and are e^0.7 longer to hard prompts, half of all,
    of which 30% are right, others 90%. Prompts of a cluster are similar if 80% or 20% of them are hard.
    """
    for name, listed in SIZES.items():
        sizes = np.array(listed)
        row: Row = {"clusters": name}
        for kind, shares in (("cost", (0.5, 0.5)), ("cost, similar prompts", (0.8, 0.2))):
            cluster = np.repeat(np.arange(len(sizes)), sizes)
            of_cluster = np.where(dice.random((1_000, len(sizes))) < 0.5, *shares)[:, cluster]
            is_hard = dice.random(of_cluster.shape) < of_cluster
            tokens = np.round(1_000 * np.exp(0.7 * is_hard + 0.6 * dice.standard_normal(is_hard.shape)))
            right = (dice.random(is_hard.shape) < np.where(is_hard, 0.3, 0.9)).astype(float)
            true = 1_000 * (1 + np.exp(0.7)) / 2 * np.exp(0.18) / 0.6
            low, high = _read_costs(cluster, tokens, right)
            row[kind] = float(np.mean((low <= true) & (true <= high)))
        yield row


def _read_costs(cluster: np.ndarray, tokens: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the interval of the cost per right answer for runs × prompts, from shares by cluster."""
    shares = [np.stack([np.bincount(cluster, row) for row in one]) for one in (tokens, right)]
    deviation = shares[0] / shares[0].sum(1, keepdims=True) - shares[1] / shares[1].sum(1, keepdims=True)
    size = np.bincount(cluster) / len(cluster)
    moves = ((deviation / (1 - size)) ** 2).sum(1)
    sums = len(size), float((size**2).sum()), float((size**4).sum())
    factor = np.array([bound_ratio_of_sums(float(one), *sums) or np.nan for one in moves])
    ratio = tokens.sum(1) / right.sum(1)
    return ratio / factor, ratio * factor


def _holds_accuracy(dice: Dice, sizes: np.ndarray) -> bool:
    total = dice.binomial(sizes, dice.beta(*EASE, len(sizes))).astype(float)
    spread = spread_clusters(np.zeros(len(sizes), int), sizes.astype(float), total)
    mean, samples = float(spread.mean[0]), int(sizes.sum())
    low, high = bound_share(
        mean,
        mean * (1 - mean),
        samples,
        len(sizes),
        float(spread.effective_clusters[0]),
        float(spread.standard_error[0]),
    )
    return low <= EASE[0] / sum(EASE) <= high


def _compare_equal_runs(dice: Dice, sizes: np.ndarray) -> tuple[float, float, str]:
    """Return the interval of the difference and its verdict."""
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    shared, own = dice.standard_normal(len(sizes))[cluster], dice.standard_normal(len(cluster))
    place = ndtr(np.sqrt(0.5) * (shared + own))

    def count(is_hit: np.ndarray) -> np.ndarray:
        return np.bincount(cluster, is_hit, len(sizes))

    worse, better = count(place < CHANGED), count(place > 1 - CHANGED)
    sums = {
        "is_single": np.zeros(len(sizes), bool),
        "is_binary": np.ones(len(sizes), bool),
        "prompts": sizes,
        "first_total": better,
        "second_total": worse,
        "squares": better + worse,
        "largest": (better + worse > 0).astype(float),
        "better": better,
        "worse": worse,
    }
    row = measure_pairs(np.zeros(len(sizes), int), sums)
    (found,) = to_rows({**row, "scorer": ["s"]})
    return row["low"][0], row["high"][0], describe_pairs(found).name_change()
