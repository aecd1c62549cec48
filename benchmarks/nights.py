"""Schedules of equal and of worse nights, judged every night as the gate does: part `nights` of benchmarks.statistics.

The rule is that for nights (`assayline.comparison.gate.NIGHTS`).

- `speed`: three independent metrics with the gate's limits, autoregressive of order one. The baseline is ten nights, up
  to the pinned one.
- `accuracy`: answers at a temperature above 0, so that nights differ by chance alone; prompts are of difficulties
  Beta(1.4, 0.6). `lucky` are periods whose baseline scored in its best tenth.

A fault begins with night 21. `found` is the share of periods with a failure within 20 nights, and `nights` the median
number of nights until then, of those found.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
from scipy.special import bdtr, ndtr, stdtr

from assayline.comparison.gate import NIGHTS
from assayline.spec.criteria import GateSpec
from assayline.store.database import apply_schema
from benchmarks.false_alarms import compare_levels, replace_metrics

Dice = np.random.Generator
Found = dict[str, Any]
BASELINE_NIGHTS = 10
WINDOW_NIGHTS = 10
FEWEST = 5
FAULT_AFTER = 20
WITHIN_NIGHTS = 20
LEVEL = 0.1 / NIGHTS
LIMITS = np.array(list(GateSpec().max_slowdown.values()))
MAX_DROP = GateSpec().max_accuracy_drop


def draw_nights(dice: Dice, histories: int, noise: float, correlation: float, slowdown: float) -> np.ndarray:
    """Draw seconds: histories × metrics × nights."""
    nights = dice.normal(size=(histories, len(LIMITS), BASELINE_NIGHTS + NIGHTS))
    for night in range(1, nights.shape[2]):
        nights[..., night] = correlation * nights[..., night - 1] + (1 - correlation**2) ** 0.5 * nights[..., night]
    nights = 1 + noise * nights
    nights[..., BASELINE_NIGHTS + FAULT_AFTER :] *= 1 + slowdown
    return nights


def add_up(nights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of squares and of products of neighbors around the mean, on the last axis."""
    rest = nights - nights.mean(axis=-1, keepdims=True)
    return (rest**2).sum(axis=-1), (rest[..., 1:] * rest[..., :-1]).sum(axis=-1)


def compare_windows(old: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    """Compute columns of compare_repeats for nights on the last axis."""
    n = old.shape[-1] + new.shape[-1]
    splits = [map(add_up, (old, new[..., :split], new[..., split:])) for split in range(2, new.shape[-1] - 1)]
    summed = np.array([[sum(parts) for parts in zip(*split, strict=True)] for split in splits])
    best = summed[:, 0].argmin(axis=0)[None, None]
    squares, products = np.take_along_axis(summed, np.broadcast_to(best, (1, *summed.shape[1:])), axis=0)[0]
    found = products / squares
    correlation = np.clip(found + 3 * (1 + 3 * np.maximum(found, 0)) / n, 0, 0.95)
    variance = squares / (n - 5) * (1 + correlation) / (1 - correlation)
    widened = np.sqrt(variance * (1 / old.shape[-1] + 1 / new.shape[-1]))
    difference = new.mean(axis=-1) - old.mean(axis=-1)
    all_differences = new[..., :, None] - old[..., None, :]
    shift = np.median(all_differences.reshape(*difference.shape, -1), axis=-1) / np.median(old, axis=-1)
    return {
        "p_value": 2 * stdtr(n - 5, -abs(difference) / widened),
        "correlation": correlation,
        "relative_shift": shift,
    }


def adjust(p_values: np.ndarray) -> np.ndarray:
    """Adjust p-values on the last axis by Holm's step-down."""
    order = p_values.argsort(axis=-1)
    scaled = np.take_along_axis(p_values, order, axis=-1) * np.arange(p_values.shape[-1], 0, -1)
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(scaled, axis=-1), axis=-1)
    return adjusted


def check_against_sql(seed: int) -> None:
    """Raise unless compare_repeats, asked about nights, has these figures."""
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    replace_metrics(connection)
    old, new = np.split(draw_nights(np.random.default_rng(seed), 1, 0.05, 0.6, 0.0)[0, :, : 2 * BASELINE_NIGHTS], 2, 1)
    for nights in (FEWEST, WINDOW_NIGHTS):
        ours = compare_windows(old, new[:, :nights])
        rows = compare_levels(connection, new[:, :nights].T, old.T, NIGHTS)
        for column, metric in enumerate(GateSpec().max_slowdown):
            if not str(metric).endswith("_per_s"):  # a rate is the inverse of these seconds
                expected = {name: ours[name][column] for name in ("correlation", "p_value", "relative_shift")}
                found = {name: rows[str(metric)][name] for name in expected}
                same = np.allclose(list(found.values()), list(expected.values()), rtol=0.01)
                assert same, f"{metric}: {found} in SQL, {expected} here"


def sum_up(failed: np.ndarray, fault: float) -> tuple[float, int | None]:
    """Return the share of histories (periods × nights) with a failure, and with a fault its median delay in nights."""
    if not fault:
        return float(failed.any(axis=1).mean()), None
    after = failed[:, FAULT_AFTER : FAULT_AFTER + WITHIN_NIGHTS]
    found = after.any(axis=1)
    return float(found.mean()), int(np.median(after.argmax(axis=1)[found] + 1)) if found.any() else None


def measure_speed(dice: Dice, histories: int) -> Iterator[Found]:
    """Periods of 60 nights in which a speed limit fails, and nights until it does."""
    for slowdown, noise, correlation in itertools.product((0.0, 0.1, 0.2), (0.01, 0.02, 0.05), (0.0, 0.3, 0.6)):
        nights = draw_nights(dice, histories, noise, correlation, slowdown)
        old = nights[..., :BASELINE_NIGHTS]
        failed = np.zeros((histories, NIGHTS), dtype=bool)
        for night in range(FEWEST, NIGHTS + 1):
            end = BASELINE_NIGHTS + night
            window = nights[..., max(BASELINE_NIGHTS, end - WINDOW_NIGHTS) : end]
            compared = compare_windows(old, window / (1 + LIMITS[:, None]))
            p_values = np.where(compared["relative_shift"] > 0, compared["p_value"], 1)
            failed[:, night - 1] = (adjust(p_values) <= LEVEL).any(axis=1)
        share, delay = sum_up(failed, slowdown)
        yield {"slowdown": slowdown, "noise": noise, "correlation": correlation, "failed": share, "nights": delay}


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
