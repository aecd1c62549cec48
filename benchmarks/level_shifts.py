"""False-positive and detection rates of level shifts (change points) in a simulated history.

    python -m benchmarks.level_shifts [--pages 1000] [--seed 1]

Histories of five metrics are simulated and judged by the report's code (`assayline.report.history`), which divides the
false-positive rate among the metrics.

Stable histories have no shift, so any detection is a false positive. Noise is normal, heavy-tailed (Student's t with
three degrees of freedom), with outliers (one night in twenty is slow by four to eight standard deviations), or coarse
(the number of right answers of 40 prompts); independent, or autocorrelated (order one, with correlation `alike`), or
one of `benchmarks.nights`, such as a slow drift. The
metrics of a history are independent of each other, which is the worst case: metrics of one machine are correlated.

In shifted histories, one metric shifts by a number of standard deviations of the noise. A shift is found if it is
detected within three nights and in its direction. `mended` shifts revert after ten nights. For comparison, the table
has a t-test at 5% of the last ten nights against the earlier ones, on a stable history.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from assayline.report.history_rows import METRICS, LevelShift, find_level_shifts
from benchmarks.nights import NOISES

Dice = np.random.Generator
NEAR_NIGHTS = 3
PROMPTS = 40
T_LIMIT = 2.0
WITHOUT_PRICE = [metric for metric in METRICS if metric.key != "cost_per_right_answer"]
"""Metrics of a history without prices, as most histories are."""


@dataclass(frozen=True)
class Stable:
    """A history without a shift."""

    nights: int
    noise: str = "normal"
    alike: float = 0.0


@dataclass(frozen=True)
class Shifted:
    """A history in which the level of one metric shifts."""

    nights: int
    size: float
    """Size of the shift in standard deviations of the noise."""
    last: int
    """Nights at the new level, to the end."""
    alike: float = 0.0
    mended: bool = False


STABLE = [
    *(Stable(nights) for nights in (10, 14, 30, 60, 120)),
    *(Stable(nights, noise) for noise in ("heavy", "odd", "coarse") for nights in (14, 60)),
    *(Stable(nights, alike=alike) for alike in (0.2, 0.4, 0.6) for nights in (14, 30, 60, 120)),
    *(Stable(60, noise) for noise in ("AR(1) 0.8", "half AR(1) 0.95", "episodes of 14 nights", "weekly cycle")),
]
SHIFTED = [
    *(Shifted(30, size, last) for size in (1.5, 2, 3, 5) for last in (5, 10, 15)),
    *(Shifted(60, size, last) for size in (1.5, 2, 3, 5) for last in (5, 10, 30)),
    *(Shifted(60, size, 10, alike=0.4) for size in (2, 3, 5)),
    *(Shifted(60, size, 30, alike=0.4) for size in (2, 3, 5)),
    *(Shifted(60, size, 30, mended=True) for size in (2, 3, 5)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=1000, help="histories per case (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started_s = time.process_time()
    report: dict[str, Any] = {"benchmark": "level_shifts", "pages": options.pages, "seed": options.seed}
    report["stable"] = list(measure_stable(options.pages, options.seed))
    report["shifted"] = list(measure_shifted(max(1, options.pages // 4), options.seed))
    report["cpu_seconds"] = round(time.process_time() - started_s)
    print(json.dumps(report))


def measure_stable(pages: int, seed: int) -> Iterator[dict[str, Any]]:
    """Return the share of histories with a false positive."""
    print("nights  noise    corr.  pages with a shift  t-test of the last ten", flush=True)
    for number, case in enumerate(STABLE):
        dice = np.random.default_rng([seed, number])
        alarms = naive = 0
        for _ in range(pages):
            page = [draw(dice, case.nights, case.noise, case.alike) for _ in WITHOUT_PRICE]
            alarms += bool(judge(page))
            naive += case.nights > 12 and any(differs(series) for series in page)
        found = {**asdict(case), "false_alarm_share": alarms / pages, "t_test_share": naive / pages}
        print(
            f"{case.nights:>6}  {case.noise:<7} {case.alike:>6.1f} {found['false_alarm_share']:>19.1%} "
            f"{found['t_test_share']:>23.1%}",
            flush=True,
        )
        yield found


def measure_shifted(pages: int, seed: int) -> Iterator[dict[str, Any]]:
    """Return the share of shifts found, and the distance of the reported night from the true one, in nights."""
    print("nights  size  last nights  corr.  revert  found  named night off by, median", flush=True)
    for number, case in enumerate(SHIFTED):
        dice = np.random.default_rng([seed, 1000 + number])
        begin = case.nights - case.last
        hits, offsets = 0, []
        for _ in range(pages):
            page = [draw(dice, case.nights, "normal", case.alike) for _ in WITHOUT_PRICE]
            page[0][begin : begin + 10 if case.mended else None] += case.size
            mine = [one for one in judge(page) if one.metric is WITHOUT_PRICE[0] and one.shift.change > 0]
            near = [abs(one.shift.index - begin) for one in mine if abs(one.shift.index - begin) <= NEAR_NIGHTS]
            hits += bool(near)
            offsets += near[:1]
        found = {**asdict(case), "pages": pages, "found_share": hits / pages}
        found["nights_off_median"] = float(np.median(offsets)) if offsets else None
        print(
            f"{case.nights:>6} {case.size:>5g} {case.last:>12} {case.alike:>6.1f} {case.mended!s:>7} "
            f"{found['found_share']:>6.1%} {found['nights_off_median']}",
            flush=True,
        )
        yield found


def draw(dice: Dice, nights: int, noise: str, alike: float) -> np.ndarray:
    """Draw values of successive nights, with standard deviation 1 for normal noise."""
    if noise == "heavy":
        return dice.standard_t(3, nights)
    if noise in NOISES:
        return NOISES[noise](dice, (1, nights))[0]
    if noise == "coarse":
        return dice.binomial(PROMPTS, 0.8, nights) / PROMPTS
    series = dice.normal(size=nights)
    for night in range(1, nights):
        series[night] = alike * series[night - 1] + (1 - alike**2) ** 0.5 * series[night]
    if noise == "odd":
        series += np.where(dice.random(nights) < 0.05, dice.uniform(4, 8, nights), 0)
    return series


def judge(page: list[np.ndarray]) -> list[LevelShift]:
    """Return the level shifts that the report detects in these metrics."""
    rows = {
        metric.key: [
            {"value": float(value), "is_counted": True, "position": position, "higher_is_better": True}
            for position, value in enumerate(series, 1)
        ]
        for metric, series in zip(WITHOUT_PRICE, page, strict=True)
    }
    return find_level_shifts(rows)


def differs(series: np.ndarray) -> bool:
    """Naive test: Welch's test of the last ten nights, at about 5%."""
    new, old = series[-10:], series[:-10]
    error = np.sqrt(new.var(ddof=1) / len(new) + old.var(ddof=1) / len(old))
    return bool(error > 0 and abs(new.mean() - old.mean()) / error > T_LIMIT)


if __name__ == "__main__":
    main()
