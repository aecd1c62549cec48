"""Part `limits` of `benchmarks.statistics`: limits of a test, judged by past values as `assayline noise` judges them.

The truth of a kind is the share of its builds below the limit that 10% of them fail; scores have steps, so theirs is
less. Every table of values passes the search for level shifts first, as in the command.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from assayline.flows.cli.noise import take_level
from assayline.stats import limits
from benchmarks.statistics_nights import draw_episodes, draw_waves

Dice = np.random.Generator
Row = dict[str, Any]
Draw = Callable[[Dice, tuple[int, ...]], np.ndarray]
DRAWS = 1_000
LIMIT_SHARE, WANTED = 0.1, 0.05


def draw_rare(dice: Dice, shape: tuple[int, ...]) -> np.ndarray:
    """Draw noise with 5% of builds four standard deviations worse."""
    return dice.normal(size=shape) - 4 * (dice.random(shape) < 0.05)


def draw_shifted(dice: Dice, shape: tuple[int, ...]) -> np.ndarray:
    """Draw noise whose first half is six standard deviations lower; the limit is that of the second half."""
    return dice.normal(size=shape) - 6.0 * (np.arange(shape[-1]) < shape[-1] // 2)


KINDS: dict[str, tuple[Draw, Callable[[float], float]]] = {
    "normal": (lambda dice, shape: dice.normal(size=shape), stats.norm.cdf),
    "t with 3 degrees of freedom": (lambda dice, shape: dice.standard_t(3, shape), lambda x: stats.t.cdf(x, 3)),
    "skewed: lognormal": (lambda dice, shape: -dice.lognormal(0, 0.5, shape), lambda x: stats.lognorm.sf(-x, 0.5)),
    "scores of 200 prompts": (
        lambda dice, shape: dice.binomial(200, 0.85, shape) / 200,
        lambda x: stats.binom.cdf(np.ceil(x * 200 - 1e-9) - 1, 200, 0.85),
    ),
    "neighbors correlate by 0.5": (lambda dice, shape: draw_waves(dice, shape, 0.5), stats.norm.cdf),
    "5% of builds 4 SD worse": (draw_rare, lambda x: 0.95 * stats.norm.cdf(x) + 0.05 * stats.norm.cdf(x + 4)),
    "episodes of two weeks": (
        draw_episodes,
        lambda x: (stats.norm.cdf(x * 2**0.5 - 1) + stats.norm.cdf(x * 2**0.5 + 1)) / 2,
    ),
    "a level shift of 6 SD": (draw_shifted, stats.norm.cdf),
}


def measure_limits(dice: Dice, draws: int = DRAWS, sizes: Sequence[int] = (10, 30, 60)) -> Iterator[Row]:
    """Mean estimated rate − truth, intervals that have the truth, and failures of the limit for 5%, of 1,000 draws."""
    for kind, (draw, below) in KINDS.items():
        row: Row = {"kind": kind}
        limit = float(np.quantile(draw(dice, (4_000, 20))[:, 10:], LIMIT_SHARE))
        truth = float(below(limit))
        for n in sizes:
            levels = [take_level([float(value) for value in draw(dice, (n,))])[0] for _ in range(draws)]
            kept = [level for level in levels if len(level) >= limits.FEWEST_VALUES]
            found = [limits.find_false_alarms(level, limit) for level in kept]
            row[f"{n} values: error"] = float(np.mean([one.value for one in found]) - truth)
            row["has it"] = float(np.mean([one.low <= truth <= one.high for one in found]))
            row["5% limit"] = float(np.mean([below(limits.find_limit(level, WANTED)) for level in kept]))
            row |= {f"{n} values: has it": row.pop("has it"), f"{n} values: limit for 5%": row.pop("5% limit")}
        yield row


COUNTS = {0.84: 2, 0.845: 3, 0.85: 7, 0.855: 13, 0.86: 12, 0.865: 10, 0.87: 7, 0.875: 5, 0.88: 2}
PUBLISHED = [float(one) for one in np.random.default_rng(3).permutation(np.repeat([*COUNTS], [*COUNTS.values()]))]
"""Scores of 61 runs of one build, GSM8K with 200 questions (sgl-project/sglang-jax, pull request 1333, 2026-06-09): the
published counts of each score, in a drawn order."""


def draw_class(dice: Dice, runs: int = 120, classes: int = 4) -> np.ndarray:
    """Draw scores of 120 runs of four tests, and six bad ones in one run, with the statistics that were published.

    sgl-project/sglang, pull request 20304, 2026-03-10, has 486 values with the mean 0.9443, 17 of 120 runs with a value
    of at most 0.935, and six values of at most 0.93; the values themselves are not public.
    """
    scores = dice.normal(0.9443, 0.0052, (runs, classes))
    return np.concatenate([scores.ravel(), np.linspace(0.9083, 0.93, 6)])


def measure_published(dice: Dice) -> Iterator[Row]:
    """Rates of published limits by published scores (61), and by 486 drawn ones with published statistics."""
    scores = np.array(PUBLISHED)
    for limit, stated in ((0.85, 12 / 61), (0.84, 2 / 61), (0.83, 0.0)):
        found = limits.find_false_alarms(scores, float(np.nextafter(limit, 1)))
        yield {"values": "61, GSM8K of 200", "a build fails at or below": str(limit), "stated": stated, **_row(found)}
    scores = draw_class(dice)
    for limit, stated in ((0.935, 1 - (1 - 17 / 120) ** (120 / 486)), (0.93, 6 / 486)):
        found = limits.find_false_alarms(scores, float(np.nextafter(limit, 1)))
        yield {"values": "486, drawn", "a build fails at or below": str(limit), "stated": stated, **_row(found)}


def _row(found: limits.Estimate) -> Row:
    return {"estimate": found.value, "95% low": found.low, "95% high": found.high}
