"""Part `speed` of `benchmarks.statistics`: the gate on speed over repeats, and the noise floor.

The three default limits are those of latencies; metrics of a run are correlated by 0.8. Sessions differ by a normal
factor that all runs of one share. A history has eight sessions of the baseline's configuration. Repeats of one session
run in turn, and a drift is over all of them.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from assayline.comparison.gate import judge_speed
from assayline.spec.criteria import GateSpec
from assayline.stats.noise import find_floors
from assayline.stats.repeats import Sessions, compare_repeats, spread_sessions

Dice = np.random.Generator
Row = dict[str, Any]
LIMITS = {str(metric): limit for metric, limit in GateSpec().max_slowdown.items()}
REPEATS, KNOWN, PAIRS = 5, 8, 1_000


def draw(dice: Dice, runs: int, spread: float, *, is_heavy: bool = False) -> np.ndarray:
    """Draw logarithms of runs × metrics; heavy tails are t with 3 degrees of freedom."""

    def one(columns: int) -> np.ndarray:
        shape = (runs, columns)
        return dice.standard_t(3, shape) / 3**0.5 if is_heavy else dice.standard_normal(shape)

    return np.asarray(spread * (0.8**0.5 * one(1) + 0.2**0.5 * one(len(LIMITS))))


def judge(new: np.ndarray, old: np.ndarray, sessions: dict[str, Sessions] | None) -> list[str]:
    """Return the verdicts on logarithms of seconds, runs × metrics, whose runs took turns unless they are apart."""
    is_new = order_sides(len(new)) if sessions is None else np.repeat([False, True], len(new))
    seconds = np.empty((len(is_new), len(LIMITS)))
    seconds[is_new], seconds[~is_new] = np.exp(new), np.exp(old)
    rows = [
        {"metric": metric, "unit": "s", "higher_is_better": False, "is_candidate": bool(side), "value": value}
        for column, metric in enumerate(LIMITS)
        for side, value in zip(is_new, seconds[:, column].tolist(), strict=True)
    ]
    found = compare_repeats(rows, LIMITS, sessions=sessions)
    return [judge_speed(metric, limit, found[metric]).verdict for metric, limit in LIMITS.items()]


def order_sides(repeats: int) -> np.ndarray:
    """Return whether each run of two sides that take turns is the candidate's: A B B A A B …."""
    return np.array([(place % 4) in (1, 2) for place in range(2 * repeats)])


def measure_repeats(dice: Dice) -> Iterator[Row]:
    """Verdicts on 1,000 pairs a cell of one session: shares in which a limit fails or passes."""
    for repeats, noise, drift in itertools.product((3, 5, 10), ("normal", "t(3)"), (0.0, 0.08)):
        row: Row = {"repeats": repeats, "noise": noise, "drift": f"{drift:.0%}"}
        is_new = order_sides(repeats)
        for name, times, verdict in (
            ("equal fail", 0, "fail"), ("at the limit fail", 1, "fail"), ("at the limit pass", 1, "pass"),
            ("twice the limit fail", 2, "fail"), ("equal pass", 0, "pass"),
        ):  # fmt: skip
            hits = 0
            for _ in range(PAIRS):
                runs = draw(dice, 2 * repeats, 0.02, is_heavy=noise != "normal")
                runs += drift * np.linspace(-1.7, 1.7, 2 * repeats)[:, None]
                slower = np.log1p(times * np.array([*LIMITS.values()]))
                found = judge(runs[is_new] + slower, runs[~is_new], None)
                hits += (found.count(verdict) / len(found)) if verdict == "pass" else verdict in found
            row[name] = hits / PAIRS
        yield row


def measure_sessions(dice: Dice) -> Iterator[Row]:
    """Verdicts on 1,000 pairs a cell: of one session, of two without a history, and of two with a history."""
    for runs, sessions in itertools.product((0.01, 0.03), (0.0, 0.02, 0.03)):
        row: Row = {"SD of runs": f"{runs:.0%}", "SD of sessions": f"{sessions:.0%}"}
        for name, slowdown, verdict in (("equal fail", 0.0, "fail"), ("20% slower fail", 0.2, "fail")):
            for history in (None,) if not sessions else (0, KNOWN):
                hits = 0
                for _ in range(PAIRS):
                    levels = draw(dice, 2 + KNOWN, sessions)
                    new, old = (levels[side] + draw(dice, REPEATS, runs) for side in (0, 1))
                    means = levels[2:] + draw(dice, KNOWN, runs)
                    known = history if history is None else {
                        metric: spread_sessions({"old": [old[:, i].mean(), *means[:history, i]]}, 1, 1)
                        for i, metric in enumerate(LIMITS)
                    }  # fmt: skip
                    hits += verdict in judge(new + np.log1p(slowdown), old, known)
                kind = "one session" if history is None else "with history" if history else "without"
                row[f"{name}, {kind}"] = hits / PAIRS
        columns = [f"{name}, {kind}" for name in ("equal fail", "20% slower fail") for kind in (
            "one session", "without", "with history")]  # fmt: skip
        yield {key: row.get(key) for key in ["SD of runs", "SD of sessions", *columns]}


DESIGNS = ((5, 2), (10, 1), (3, 2), (10, 2))
"""Engines and runs per engine; the first one is the default."""
DIFFERENCES = 20_000


def draw_equal_runs(dice: Dice, shape: tuple[int, int, int], engine_share: float, is_heavy: bool) -> np.ndarray:
    """Draw measurements × engines × runs of variance 1; heavy tails are t with 4 degrees of freedom."""

    def one(shape: tuple[int, int, int]) -> np.ndarray:
        return dice.standard_t(4, shape) / 2**0.5 if is_heavy else dice.standard_normal(shape)

    return np.asarray(engine_share**0.5 * one((*shape[:2], 1)) + (1 - engine_share) ** 0.5 * one(shape))


def measure_noise(dice: Dice) -> Iterator[Row]:
    """Share of 20,000 measurements whose floor more than 5% of pairs of equal runs exceed; engines cause half of it."""
    for engines, runs in DESIGNS:
        row: Row = {"engines × runs": f"{engines} × {runs}"}
        for name, is_heavy in (("normal", False), ("heavy tails", True)):
            pairs = draw_equal_runs(dice, (DIFFERENCES, 2, 1), 0.5, is_heavy)[:, :, 0]
            values = draw_equal_runs(dice, (20_000, engines, runs), 0.5, is_heavy)
            within = values.var(axis=2, ddof=1).mean(axis=1) if runs > 1 else np.full(len(values), np.nan)
            between = runs * values.mean(axis=2).var(axis=1, ddof=1)
            all_runs, all_engines, runs_each = (
                np.full(len(values), float(number)) for number in (engines * runs, engines, runs)
            )
            floors = np.asarray(find_floors(all_runs, all_engines, runs_each, between, within)["noise_floor"])
            beyond = 1 - np.searchsorted(np.sort(abs(pairs[:, 0] - pairs[:, 1])), floors) / DIFFERENCES
            row |= {
                f"{name}: floor too low": float((beyond > 0.05).mean()),
                f"{name}: pairs beyond it": float(beyond.mean()),
            }
        yield row
