"""Part `levels` of `benchmarks.statistics`: level shifts (change points) in a history, judged by the report's code.

A page has five metrics, which are independent of each other: the worst case, as metrics of one machine are correlated.
Any shift in a stable history is a false alarm. In a shifted one, the first metric shifts by a number of standard
deviations of its noise. A shift is found if it is dated within three nights of its first and in its direction.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from assayline.report.history_rows import METRICS, LevelShift, find_level_shifts
from benchmarks.statistics_nights import NOISES, draw_waves, mix

Dice = np.random.Generator
Row = dict[str, Any]
PAGES = 150
JUDGED = [metric for metric in METRICS if metric != "cost_per_right_answer"]
"""Metrics of a history without prices, as most histories are."""


def draw_third(dice: Dice, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a slow drift that is a third of the variance."""
    return mix(draw_waves(dice, shape, 0.95), dice.normal(size=shape), 1 / 3)


def draw_trend(dice: Dice, shape: tuple[int, ...]) -> np.ndarray:
    """Draw independent noise with a trend of one standard deviation over the history."""
    return np.linspace(0, 1, shape[-1]) + dice.normal(size=shape)


STABLE = {name: draw for name, draw in NOISES.items() if "together" not in name} | {
    "third AR(1) 0.95": draw_third,
    "trend of 1 SD": draw_trend,
}


def measure_stable(dice: Dice) -> Iterator[Row]:
    """Share of 150 pages a cell that show a shift, by nights."""
    for noise, draw in STABLE.items():
        row: Row = {"noise": noise}
        for nights in (30, 60, 120):
            alarms = sum(bool(judge(list(draw(dice, (len(JUDGED), nights))))) for _ in range(PAGES))
            row[f"{nights} nights"] = alarms / PAGES
        yield row


def measure_shifted(dice: Dice) -> Iterator[Row]:
    """Share of 100 pages a cell that find the shift of a metric, and whose interval holds its size."""
    for size in (2, 3, 5):
        row: Row = {"size": f"{size} SD"}
        held = []
        for noise, nights, last in (
            ("independent", 30, 10), ("independent", 60, 10), ("independent", 60, 30), ("AR(1) 0.3", 60, 10),
            ("AR(1) 0.3", 60, 30),
        ):  # fmt: skip
            hits = 0
            for _ in range(100):
                page = list(NOISES[noise](dice, (len(JUDGED), nights)))
                page[0][nights - last :] += size
                near = [
                    one.shift
                    for one in judge(page)
                    if one.metric == JUDGED[0] and one.shift.change > 0 and abs(one.shift.index - nights + last) <= 3
                ]
                hits += bool(near)
                held += [shift.low <= size <= shift.high for shift in near]
            row[f"{noise}: {last} of {nights}"] = hits / 100
        yield row | {"interval holds": float(np.mean(held))}


def judge(page: list[np.ndarray]) -> list[LevelShift]:
    """Return the level shifts that the report detects in these metrics."""
    rows = {
        metric: [
            {"value": float(value), "is_counted": True, "position": position, "higher_is_better": True}
            for position, value in enumerate(series, 1)
        ]
        for metric, series in zip(JUDGED, page, strict=True)
    }
    return find_level_shifts(rows)
