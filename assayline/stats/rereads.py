"""Two engines that read the same answers: means over prompts by t on the logarithm, and the verdict on their ratio.

The unit is a prompt: tokens of one answer are not independent. Divergences by prompt have long tails, so their ratio is
that of a typical prompt: the mean logarithm of kl / floor, paired by prompt.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assayline.stats.clusters import spread_clusters
from assayline.stats.worse import LEVEL, Verdict, decide_worse

LIMIT = 3.0
"""How many times an engine's difference from itself another one may differ from it."""
SMALLEST = 1e-5
"""Divergences below it, nats per token, count as equal: in float32 an engine differs from itself by less."""
SHARE = 0.1
"""So do those below this share of the mean floor: by chance, an engine reads some answers twice in like batches."""
FEWEST = 5
"""Prompts that a verdict needs."""
POWER = 0.8
MOST_PROMPTS = 100_000


class Mean(NamedTuple):
    """A mean over prompts with its 95% interval, by t over effective clusters; NaN if there is none."""

    value: float
    error: float
    degrees: float

    @property
    def half(self) -> float:
        return _quantile(0.975, self.degrees) * self.error if self.degrees > 0 else math.nan


class Distance(NamedTuple):
    """How far a candidate is from the reference that it is compared with: arithmetic mean, and ratio to the floor."""

    kl: Mean
    floor: float
    log_ratio: Mean
    prompts: int

    @property
    def ends(self) -> tuple[float, float]:
        """The 95% interval of the mean kl: t on its logarithm, whose standard error is that of the mean / the mean."""
        share = self.kl.half / self.kl.value if self.kl.value > 0 else 0.0
        return self.kl.value * math.exp(-share), self.kl.value * math.exp(share)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """How many times its own difference the reference differs from the candidate, with the 95% interval."""
        log, half = self.log_ratio.value, self.log_ratio.half
        return math.exp(log), math.exp(log - half), math.exp(log + half)


def average(values: Sequence[float], clusters: Sequence[Hashable]) -> Mean:
    """Return the mean of one value per prompt row; rows of one cluster are not independent."""
    places = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    place = np.array([places[cluster] for cluster in clusters], dtype=np.intp)
    size, total = np.bincount(place).astype(float), np.bincount(place, np.array(values)).astype(float)
    spread = spread_clusters(np.zeros(len(size), dtype=np.intp), size, total)
    return Mean(float(spread.mean[0]), float(spread.standard_error[0]), float(spread.effective_clusters[0]) - 1)


def read_answers(rows: Sequence[Mapping[str, Any]]) -> Distance | None:
    """Compare by rows of `95_reread`; None without a floor."""
    rows = [row for row in rows if row["floor_kl"] is not None]
    if not rows:
        return None
    clusters = [row["cluster"] for row in rows]
    floor = average([row["floor_kl"] for row in rows], clusters).value
    least = max(SMALLEST, SHARE * floor)
    ratios = [math.log(max(row["kl"], least) / max(row["floor_kl"], least)) for row in rows]
    return Distance(average([row["kl"] for row in rows], clusters), floor, average(ratios, clusters), len(rows))


def judge_reading(
    reading: Distance, max_kl: float | None = None, level: float = LEVEL, tests: int = 1
) -> tuple[Verdict, float | None, int | None]:
    """Judge a reading by its ratio to the floor, or its kl by `max_kl`, nats per token.

    `tests`: verdicts that hold together (Bonferroni). Return the verdict, the two-sided p of a reading that is exactly
    at the limit, and about how many prompts would decide with 80% power if it is inconclusive; None if more than
    100,000 would.
    """
    from scipy.special import stdtr

    found, limit = reading.log_ratio, math.log(LIMIT)
    if max_kl is not None:
        value = max(reading.kl.value, 1e-12)
        found, limit = Mean(math.log(value), reading.kl.error / value, reading.kl.degrees), math.log(max_kl)
    if found.degrees < FEWEST - 1:
        return "inconclusive", None, FEWEST
    surplus = found.value - limit
    p_beyond = 1.0
    if surplus > 0:
        p_beyond = float(2 * stdtr(found.degrees, -surplus / found.error)) if found.error else 0.0
    most = found.value + _quantile(1 - LEVEL / 2 / tests, found.degrees) * found.error
    verdict = decide_worse(p_beyond, most, limit, level / tests)
    if verdict != "inconclusive":
        return verdict, p_beyond, None
    return verdict, p_beyond, _count_needed(abs(surplus) / found.error, found.degrees, reading.prompts, level / tests)


def _count_needed(distance: float, degrees: float, prompts: int, level: float) -> int | None:
    """Return how many prompts show a difference of `distance` standard errors, now of `prompts`, with 80% power."""
    from scipy.special import nctdtr

    for more in np.geomspace(1, MOST_PROMPTS / prompts, 200) if prompts < MOST_PROMPTS else ():
        of_more = (degrees + 1) * more - 1
        if 1 - nctdtr(of_more, distance * math.sqrt(more), _quantile(1 - level / 2, of_more)) >= POWER:
            return int(float(f"{prompts * more:.2g}"))
    return None


def _quantile(share: float, degrees: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))
