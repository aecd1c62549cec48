"""Part `nights` of `benchmarks.statistics`: schedules of equal and of worse nights, judged as the gate does.

The rule is that for nights (`assayline.stats.worse.NIGHTS`).

- `measure_speed`: three metrics with the gate's limits. The baseline is ten nights, up to the pinned one. `NOISES` has
  the processes; metrics are independent unless they move together.
- `measure_accuracy`: answers at a temperature above 0, so that nights differ by chance alone; prompts are of
  difficulties Beta(1.4, 0.6).

A fault begins with night 21, and is found if a night fails within 20 nights.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assayline.spec.criteria import GateSpec
from assayline.stats.families import adjust_holm
from assayline.stats.pairs import describe_pairs
from assayline.stats.repeats import FEWEST_NIGHTS, find_p, spread_nights
from assayline.stats.worse import NIGHTS, find_level
from benchmarks.statistics_accuracy import compare

Dice = np.random.Generator
Found = dict[str, Any]
BASELINE_NIGHTS = 10
WINDOW_NIGHTS = 10
FAULT_AFTER = 20
WITHIN_NIGHTS = 20
LEVEL = find_level(NIGHTS)
LIMITS = list(GateSpec().max_slowdown.values())
MAX_DROP = GateSpec().max_accuracy_drop


def draw_waves(dice: Dice, shape: tuple[int, ...], correlation: float, noise: str = "normal") -> np.ndarray:
    """Draw autoregressive series of order one and variance 1 along the last axis."""
    series = dice.standard_t(4, shape) / 2**0.5 if noise == "heavy tails" else dice.normal(size=shape)
    for night in range(1, shape[-1]):
        series[..., night] = correlation * series[..., night - 1] + (1 - correlation**2) ** 0.5 * series[..., night]
    return np.asarray(series)


def draw_episodes(dice: Dice, shape: tuple[int, ...], nights: int = 14) -> np.ndarray:
    """Draw two levels, as of a neighbor on the machine that comes and goes, plus noise of the same variance."""
    flips = np.cumsum(dice.random(shape) < 1 / nights, axis=-1) + dice.integers(0, 2, (*shape[:-1], 1))
    return (2 * (flips % 2) - 1 + dice.normal(size=shape)) / 2**0.5


def draw_weeks(dice: Dice, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a weekly cycle plus noise of the same variance."""
    phase = np.arange(shape[-1]) + dice.uniform(0, 7, (*shape[:-1], 1))
    return np.sin(2 * np.pi * phase / 7) + 0.5**0.5 * dice.normal(size=shape)


def mix(slow: np.ndarray, other: np.ndarray, share: float) -> np.ndarray:
    """Add two series of variance 1 so that the first has this share of the variance."""
    return np.asarray(share**0.5 * slow + (1 - share) ** 0.5 * other)


NOISES: dict[str, Callable[[Dice, tuple[int, ...]], np.ndarray]] = {
    "independent": lambda dice, shape: dice.normal(size=shape),
    "AR(1) 0.3": lambda dice, shape: draw_waves(dice, shape, 0.3),
    "AR(1) 0.6": lambda dice, shape: draw_waves(dice, shape, 0.6),
    "AR(1) 0.8": lambda dice, shape: draw_waves(dice, shape, 0.8),
    "AR(1) 0.3, heavy tails": lambda dice, shape: draw_waves(dice, shape, 0.3, "heavy tails"),
    "AR(1) 0.6, together": lambda dice, shape: mix(
        draw_waves(dice, (*shape[:-2], 1, shape[-1]), 0.6), dice.normal(size=shape), 0.9
    ),
    "half AR(1) 0.95": lambda dice, shape: mix(draw_waves(dice, shape, 0.95), dice.normal(size=shape), 0.5),
    "episodes of 14 nights": draw_episodes,
    "weekly cycle": draw_weeks,
}
"""Series of variance 1 (the weekly cycle aside) along the last axis."""


def find_share(failed: np.ndarray, fault: float) -> float:
    """Return the share of histories (periods × nights) with a failure, and with a fault with one soon after it."""
    return float((failed[:, FAULT_AFTER : FAULT_AFTER + WITHIN_NIGHTS] if fault else failed).any(axis=1).mean())


def judge_speed(nights: np.ndarray) -> np.ndarray:
    """Return whether a limit fails: periods × nights, of seconds by period × metric × night."""
    nights = np.log(nights)
    old = nights[..., :BASELINE_NIGHTS]
    failed = np.zeros((len(nights), NIGHTS), dtype=bool)
    for night in range(FEWEST_NIGHTS, NIGHTS + 1):
        end = BASELINE_NIGHTS + night
        new = nights[..., max(BASELINE_NIGHTS, end - WINDOW_NIGHTS) : end]
        error, degrees, _ = spread_nights(new, old)
        p_values = find_p(new.mean(axis=-1) - old.mean(axis=-1) - np.log1p(LIMITS), error, degrees)
        failed[:, night - 1] = (adjust_holm(p_values) <= LEVEL).any(axis=1)
    return failed


def measure_speed(dice: Dice) -> Iterator[Found]:
    """Periods of 60 nights in which a limit fails, if equal; and faults of 10% and 20% found: 200 a cell."""
    for noise in NOISES:
        found: Found = {"noise": noise}
        for spread in (0.01, 0.02, 0.03, 0.05):
            equal = 1 + spread * NOISES[noise](dice, (200, len(LIMITS), BASELINE_NIGHTS + NIGHTS))
            shares = []
            for slowdown in (0.0, 0.1, 0.2):
                slow = equal.copy()
                slow[..., BASELINE_NIGHTS + FAULT_AFTER :] *= 1 + slowdown
                shares.append(f"{find_share(judge_speed(slow), slowdown):.1%}")
            found[f"SD {spread:.0%}"] = f"{shares[0]}; {shares[1]}, {shares[2]}"
        yield found


def measure_accuracy(dice: Dice) -> Iterator[Found]:
    """Periods of 60 nights in which accuracy fails, if equal and if drops of 5 and 10 points are true: 400 a cell."""
    for (prompts, samples), runs in itertools.product(((200, 1), (50, 5)), (1, 10)):
        found: Found = {"prompts × samples": f"{prompts} × {samples}", "baseline runs": runs}
        for drop in (0.0, 0.05, 0.1):
            ease = dice.beta(1.4, 0.6, (400, prompts))
            baseline = dice.binomial(samples * runs, ease) / (samples * runs)
            failed = np.zeros((400, NIGHTS), dtype=bool)
            for night in range(NIGHTS):
                ease_now = ease * (1 - drop / 0.7) if night >= FAULT_AFTER else ease
                differences = dice.binomial(samples, ease_now) / samples - baseline
                rows = compare(differences)
                failed[:, night] = [describe_pairs(row, MAX_DROP).judge(LEVEL) == "fail" for row in rows]
            found["equal fail" if not drop else f"drop of {100 * drop:.0f} points found"] = find_share(failed, drop)
        yield found
