"""Part `noise` of `benchmarks.statistics`: how often equal runs differ by more than the noise floor.

Each case draws noise measurements, whose floors are those of the product. `too_low` is the share of measurements whose
floor is exceeded by more than 5% of pairs of equal runs on fresh engines, `beyond` the mean share of pairs beyond it,
and `floor` the median floor in standard deviations of a run. `engine_share` is the engines' share of the variance.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assayline.stats.noise import find_floors

Dice = np.random.Generator
DESIGNS = ((5, 2), (10, 1), (3, 2), (10, 2))
"""Engines and runs per engine; the first one is the default."""
PAIRS = 20_000
DRAWS: dict[str, Callable[[Dice, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda dice, shape: dice.standard_normal(shape),
    "heavy tails": lambda dice, shape: dice.standard_t(4, shape) / np.sqrt(2),
}
"""Noise of standard deviation 1."""


def measure_floors(values: np.ndarray) -> np.ndarray:
    """Return the product's noise floors of measurements × engines × runs."""
    cases, engines, runs = values.shape
    within = values.var(axis=2, ddof=1).mean(axis=1) if runs > 1 else np.full(cases, np.nan)
    between = runs * values.mean(axis=2).var(axis=1, ddof=1)
    columns = (np.full(cases, float(one)) for one in (engines * runs, engines, runs))
    return np.asarray(find_floors(*columns, between, within)["noise_floor"])


def draw_runs(dice: Dice, shape: tuple[int, int, int], engine_share: float, noise: str) -> np.ndarray:
    """Draw measurements × engines × runs with a standard deviation of 1."""
    draw = DRAWS[noise]
    return np.sqrt(engine_share) * draw(dice, (*shape[:2], 1)) + np.sqrt(1 - engine_share) * draw(dice, shape)


def measure_noise(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Share of measurements whose floor is too low, and of pairs of equal runs beyond it."""
    for noise, (engines, runs), engine_share in itertools.product(DRAWS, DESIGNS, (0.0, 0.5, 0.9)):
        pairs = draw_runs(dice, (PAIRS, 2, 1), engine_share, noise)[:, :, 0]
        differences = np.sort(abs(pairs[:, 0] - pairs[:, 1]))
        floors = measure_floors(draw_runs(dice, (cases, engines, runs), engine_share, noise))
        beyond = 1 - np.searchsorted(differences, floors) / PAIRS
        yield {
            "engines": engines,
            "runs": engines * runs,
            "engine_share": engine_share,
            "too_low": float((beyond > 0.05).mean()),
            "beyond": float(beyond.mean()),
            "floor": f"{np.median(floors):.2f}",
            "noise": noise,
        }
