"""Schedules of equal and of worse nights, judged every night as the gate does: part `nights` of benchmarks.statistics.

The rule is that for nights (`assayline.comparison.gate.NIGHTS`).

- `speed`: three metrics with the gate's limits, by the product's own functions. The baseline is ten nights, up to the
  pinned one. `NOISES` has the processes; metrics are independent unless they move together.
- `accuracy`: answers at a temperature above 0, so that nights differ by chance alone; prompts are of difficulties
  Beta(1.4, 0.6). `lucky` are periods whose baseline scored in its best tenth.

A fault begins with night 21. `found` is the share of periods with a failure within 20 nights, and `nights` the median
number of nights until then, of those found.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtr, stdtr

from assayline.comparison.gate import NIGHTS
from assayline.spec.criteria import GateSpec
from assayline.stats.families import adjust_holm
from assayline.stats.repeats import find_p_beyond as find_speed_p

Dice = np.random.Generator
Found = dict[str, Any]
BASELINE_NIGHTS = 10
WINDOW_NIGHTS = 10
FEWEST = 5
FAULT_AFTER = 20
WITHIN_NIGHTS = 20
LEVEL = 0.1 / NIGHTS
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


def sum_up(failed: np.ndarray, fault: float) -> tuple[float, int | None]:
    """Return the share of histories (periods × nights) with a failure, and with a fault its median delay in nights."""
    if not fault:
        return float(failed.any(axis=1).mean()), None
    after = failed[:, FAULT_AFTER : FAULT_AFTER + WITHIN_NIGHTS]
    found = after.any(axis=1)
    return float(found.mean()), int(np.median(after.argmax(axis=1)[found] + 1)) if found.any() else None


def judge_speed(nights: np.ndarray) -> np.ndarray:
    """Return whether a limit fails: periods × nights, of seconds by period × metric × night."""
    old = nights[..., :BASELINE_NIGHTS]
    failed = np.zeros((len(nights), NIGHTS), dtype=bool)
    for night in range(FEWEST, NIGHTS + 1):
        end = BASELINE_NIGHTS + night
        new = nights[..., max(BASELINE_NIGHTS, end - WINDOW_NIGHTS) : end]
        is_slower = np.median(new[..., :, None] - old[..., None, :], axis=(-2, -1)) > 0
        p_values = [find_speed_p(new[:, i], old[:, i], limit, NIGHTS) for i, limit in enumerate(LIMITS)]
        adjusted = adjust_holm(np.where(is_slower, np.stack(p_values, axis=-1), 1))
        failed[:, night - 1] = (adjusted <= LEVEL).any(axis=1)
    return failed


def measure_speed(dice: Dice, histories: int) -> Iterator[Found]:
    """Periods of 60 nights in which a speed limit fails, and nights until it does."""
    for noise, spread in itertools.product(NOISES, (0.01, 0.02, 0.03, 0.05)):
        equal = 1 + spread * NOISES[noise](dice, (histories, len(LIMITS), BASELINE_NIGHTS + NIGHTS))
        found: Found = {"noise": noise, "sd": spread, "failed": sum_up(judge_speed(equal), 0)[0]}
        for slowdown in (0.1, 0.2):
            slow = equal.copy()
            slow[..., BASELINE_NIGHTS + FAULT_AFTER :] *= 1 + slowdown
            name = f"{slowdown:.0%}"
            found[name], found[f"nights {name}"] = sum_up(judge_speed(slow), slowdown)
        yield found


def measure_accuracy(dice: Dice, histories: int) -> Iterator[Found]:
    """Periods of 60 nights in which the accuracy limit fails, by prompts, samples a prompt and baseline runs."""
    for (prompts, samples), drop, runs in itertools.product(((200, 1), (50, 5)), (0.0, 0.05, 0.1), (1, 3, 10)):
        ease = dice.beta(1.4, 0.6, (histories, prompts))
        baseline = dice.binomial(samples * runs, ease) / (samples * runs)
        failed = np.zeros((histories, NIGHTS), dtype=bool)
        for night in range(NIGHTS):
            ease_now = ease * (1 - drop / 0.7) if night >= FAULT_AFTER else ease
            differences = dice.binomial(samples, ease_now) / samples - baseline
            failed[:, night] = find_p_beyond(differences, is_binary=samples * runs == 1) <= LEVEL
        luck = (baseline - ease).mean(axis=1)
        is_lucky = luck >= np.quantile(luck, 0.9)
        found: Found = {"prompts": prompts, "samples": samples, "drop": drop, "baseline_runs": runs}
        found["failed"], found["nights"] = sum_up(failed, drop)
        found["lucky"] = None if drop else float(failed[is_lucky].any(axis=1).mean())
        yield found


def find_p_beyond(differences: np.ndarray, is_binary: bool) -> np.ndarray:
    """Compute the p of a drop of exactly the limit, as `assayline.stats.pairs` does."""
    n = differences.shape[1]
    center = differences.sum(axis=1) / (n + 2)
    error = np.sqrt((((differences**2).sum(axis=1) + 2) / (n + 2) - center**2) / (n + 2))
    t = (center + MAX_DROP) / error
    beyond = np.where(t < 0, 2 * (ndtr(t) if is_binary else stdtr(n - 1, t)), 1)
    return np.maximum(beyond, test_differences(differences, is_binary))


def test_differences(differences: np.ndarray, is_binary: bool) -> np.ndarray:
    """Compute the p_value of compare_runs: mid-p McNemar's for scores of 0 and 1, else a t-test."""
    if not is_binary:
        error = differences.std(axis=1, ddof=1) / differences.shape[1] ** 0.5
        return 2 * stdtr(differences.shape[1] - 1, -abs(differences.mean(axis=1)) / error)
    better, worse = (differences > 0).sum(axis=1), (differences < 0).sum(axis=1)
    fewer, n = np.minimum(better, worse), better + worse
    return np.minimum(1, bdtr(fewer, n, 0.5) + np.where(fewer > 0, bdtr(fewer - 1, n, 0.5), 0))
