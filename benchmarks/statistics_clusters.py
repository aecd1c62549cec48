"""Part `clusters` of `benchmarks.statistics`: scores of 0 and 1 in clusters, such as the questions on a passage.

`accuracy` is the share of intervals of an accuracy that hold the true one, where a cluster's difficulty is
Beta(1.5, 0.7). `difference` is that of intervals of the difference of two equal runs, and `worse` the share of pairs in
which the candidate is called worse; 15% of prompts change to either side, by a normal variable whose correlation within
a cluster is 0.5. Both are judged by the product's code; a dash means that there are too few clusters. Then independent
scores, some of them partial: uniform between 0 and 1, among scores of 0 (or of 1, which is the same).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr

from assayline.stats.board import compare_pairs
from assayline.stats.clusters import bound_share, spread_clusters

Dice = np.random.Generator
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


def measure_clusters(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Coverage of intervals of an accuracy and of a difference, and false verdicts, over clusters."""
    for name, listed in SIZES.items():
        sizes = np.array(listed)
        accuracy = [_holds_accuracy(dice, sizes) for _ in range(cases)]
        pairs = [_compare_equal_runs(dice, sizes) for _ in range(cases)]
        held = [low <= 0 <= high for low, high, _ in pairs if not np.isnan(low)]
        is_given = len(held) > cases / 2
        yield {
            "clusters": name,
            "accuracy": float(np.mean(accuracy)),
            "difference": float(np.mean(held)) if is_given else None,
            "worse": float(np.mean([verdict == "worse" for *_, verdict in pairs])) if is_given else None,
        }


def measure_partial(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Coverage of the interval of a mean of independent scores, of which some are partial and the others 0."""
    for prompts in (20, 50, 200, 1_000):
        row: dict[str, Any] = {"prompts": prompts}
        for share in (0.02, 0.05, 0.2):
            held = 0
            for _ in range(cases):
                scores = np.where(dice.random(prompts) < share, dice.random(prompts), 0)
                low, high = bound_share(float(scores.mean()), float(scores.var()), prompts, prompts, prompts, np.nan)
                held += low <= share / 2 <= high
            row[f"{share:.0%}"] = held / cases
        yield row


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
        "better": better,
        "worse": worse,
    }
    found = compare_pairs(np.zeros(len(sizes), int), sums, 1)
    return found["low"][0], found["high"][0], found["verdict"][0]
