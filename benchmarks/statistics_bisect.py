"""Part `bisect` of `benchmarks.statistics`: simulated histories, and specs that differ in several fields.

A measurement is the level of a candidate, whose change is a multiple of the limit of 5%, with noise of a standard
deviation of 2%, as of a speed. Three runs measure each end, and at most three a step of a plain bisection all in all.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assayline.benchmark.bisection import RUNS_PER_STEP
from assayline.run.bisect import SPEED
from assayline.stats.bisect import (
    CONFIDENCE,
    Hypotheses,
    choose_next,
    list_fields,
    list_likely,
    list_places,
    list_subsets,
    weigh,
)

Row = dict[str, Any]
HISTORIES, LIMIT, NOISE, REPEATS = 500, 0.05, 0.02, 3
HISTORIES_OF_LONG = 150
"""Of 128 candidates, which take a hundred times as long."""
PLAIN_REPEATS = 5
"""Runs of each step of the bisection that it is compared with."""


def search(
    hypotheses: Hypotheses,
    levels: np.ndarray,
    ends: tuple[float, float],
    can_ask: np.ndarray,
    steps: int,
    draw: Callable[[], float],
) -> tuple[list[int], int, float]:
    """Search as the product does; return the likely causes, the runs, and the chance of another change.

    A candidate without a level (NaN) is broken: its run is lost.
    """
    known = [[end + draw() for _ in range(REPEATS)] for end in ends]
    asked: list[tuple[int, float]] = []
    runs, can_ask = 2 * REPEATS, can_ask.copy()
    while True:
        posterior = weigh(hypotheses, known, asked, *SPEED)
        likely = list_likely(posterior, CONFIDENCE)
        place = choose_next(posterior, can_ask) if len(likely) > 1 else None
        if place is None or runs >= RUNS_PER_STEP * steps:
            return likely, runs, posterior.more
        runs += 1
        if math.isnan(levels[place]):
            can_ask[place] = False
        else:
            asked.append((place, levels[place] + draw()))


def describe(found: list[tuple[bool, bool, int, float]], steps: int) -> Row:
    """Summarize (named, right, runs, chance of more)."""
    named = [one for one in found if one[0]]
    return {
        "one is named": len(named) / len(found),
        "it is right": float(np.mean([right for _, right, _, _ in named])) if named else None,
        "runs": f"{np.mean([runs for _, _, runs, _ in found]):.1f}",
        "of those of a plain bisection": float(np.mean([one[2] for one in found])) / (PLAIN_REPEATS * steps),
        "another change is named": float(np.mean([one[3] > 0.5 for one in found])),
    }


def measure_histories(dice: np.random.Generator) -> Iterator[Row]:
    """500 histories a row, 150 of 128 candidates: one change, two, broken candidates, or noise of t(3)."""
    for places, kind in itertools.product((8, 32, 128), ("one change", "two changes", "broken", "heavy tails")):
        hypotheses, steps = list_places(places), 2 + (places - 1 - 1).bit_length()
        inner = np.arange(places) % (places - 1) > 0
        for times in (1, 2, 5):
            found = []
            for _ in range(HISTORIES if places < 128 else HISTORIES_OF_LONG):
                first, second = 1 + dice.choice(places - 1, 2, replace=False)
                levels = times * LIMIT * (np.arange(places) >= first)
                if kind == "two changes":
                    levels += times * LIMIT / 2 * (np.arange(places) >= second)
                ends = (float(levels[0]), float(levels[-1]))
                if kind == "broken":
                    levels[inner & (dice.random(places) < 0.2)] = np.nan
                is_heavy = kind == "heavy tails"
                draw = lambda: NOISE * float(dice.standard_t(3) / 3**0.5 if is_heavy else dice.standard_normal())  # noqa: B023, E731
                likely, runs, more = search(hypotheses, levels, ends, inner, steps, draw)
                found.append((len(likely) == 1, likely == [first - 1], runs, more))
            yield {
                "list": f"{places} candidates",
                "history": kind,
                "change": f"{times} × limit",
                **describe(found, steps),
            }


def measure_fields(dice: np.random.Generator) -> Iterator[Row]:
    """500 pairs of specs a row, which differ in 6 or 12 fields."""
    for fields, kind in itertools.product((6, 12), ("one", "together", "each", "one, and another of half its size")):
        subsets, steps = list_subsets(fields), 2 + (fields - 1).bit_length()
        hypotheses = list_fields(subsets)
        for times in (1, 2, 5):
            found = []
            for _ in range(HISTORIES):
                one, other = dice.choice(fields, 2, replace=False)
                has, has_other = subsets[:, one], subsets[:, other]
                is_bad = {"together": has & has_other, "each": has | has_other}.get(kind, has)
                more = 0.5 if kind.endswith("size") else 0.0
                levels, end = times * LIMIT * (is_bad + more * has_other), times * LIMIT * (1 + more)
                name = (
                    (kind, tuple(sorted((int(one), int(other)))))
                    if kind in ("together", "each")
                    else ("one", (int(one),))
                )
                draw = lambda: NOISE * float(dice.standard_normal())  # noqa: E731
                likely, runs, another = search(hypotheses, levels, (0.0, end), np.ones(len(subsets), bool), steps, draw)
                right = [hypotheses.names[index] for index in likely] == [name]
                found.append((len(likely) == 1, right, runs, another))
            yield {"fields": f"{fields} fields", "did it": kind, "change": f"{times} × limit", **describe(found, steps)}
