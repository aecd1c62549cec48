"""False-positive and detection rates of the gate's speed limits on simulated runs, judged by assayline's SQL.

    python -m benchmarks.false_alarms [--pairs 1000] [--seed 1]

Every pair is simulated and judged by `compare_repeats` in DuckDB, with the gate's default limits and rules. If both
sides are the same configuration, a failure is a false positive; if the candidate is truly worse, it is a detection
(measured on a quarter of the pairs). For comparison, the table has a naive test over the requests of two single runs.
`benchmarks.statistics` has the gate's accuracy limit, and every limit over a schedule of nights.

A run's level varies by a log-normal factor (1 to 5% between runs, shared by all its metrics, like the state of a
machine); each metric adds independent noise of a third of that, and requests within a run vary by 30%.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np

from assayline.comparison.gate import judge_speed
from assayline.comparison.queries import compare_speed
from assayline.spec.criteria import GateSpec
from assayline.store.database import apply_schema

LIMITS = GateSpec()
REQUESTS = 1_000
REQUEST_NOISE = 0.3
Dice = np.random.Generator


@dataclass(frozen=True)
class SpeedCase:
    """A true slowdown, measured over noisy repeats."""

    noise: float
    repeats: int
    slowdown: float


SPEED_CASES = [
    *(SpeedCase(noise, repeats, 0.0) for noise in (0.01, 0.02, 0.05) for repeats in (5, 10)),
    *(SpeedCase(noise, repeats, slowdown) for slowdown in (0.07, 0.1) for noise in (0.01, 0.02) for repeats in (5, 10)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000, help="pairs per case (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started_s = time.process_time()
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    report: dict[str, Any] = {"benchmark": "false_alarms", "pairs": options.pairs, "seed": options.seed}
    report["speed"] = list(measure_speed(connection, options.pairs, options.seed))
    report["cpu_seconds"] = round(time.process_time() - started_s)
    print(json.dumps(report))


def measure_speed(connection: duckdb.DuckDBPyConnection, pairs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Return failure rates of the gate's three speed limits together, and of the naive test."""
    replace_metrics(connection)
    print("true slowdown  noise  repeats  gate fails  gate with limits of 0  naive test of requests", flush=True)
    for number, case in enumerate(SPEED_CASES):
        dice = np.random.default_rng([seed, number])
        failures = beyond_zero = naive = 0
        cases = pairs if case.slowdown == 0 else max(1, pairs // 4)
        for _ in range(cases):
            old, new = draw_levels(dice, case, 0.0), draw_levels(dice, case, case.slowdown)
            rows = compare_levels(connection, new, old)
            checks = [judge_speed(metric, limit, rows[metric]) for metric, limit in limits().items()]
            failures += any(check.verdict == "fail" for check in checks)
            beyond_zero += any(row["holm_p"] <= 0.05 and row["worsening_share"] > 0 for row in rows.values())
            naive += test_requests(dice, new[0, 2], old[0, 2])
        row = {**case.__dict__, "pairs": cases}
        row |= {"gate": failures / cases, "limit_0": beyond_zero / cases, "naive": naive / cases}
        print(
            f"{case.slowdown:>13.0%} {case.noise:>6.0%} {case.repeats:>8} {row['gate']:>11.2%} "
            f"{row['limit_0']:>22.2%} {row['naive']:>23.2%}",
            flush=True,
        )
        yield row


def replace_metrics(connection: duckdb.DuckDBPyConnection) -> None:
    """Replace run_metric by a table of values of our own."""
    connection.execute(
        "drop view internal.run_metric; create table internal.run_metric "
        "(run_id varchar, metric varchar, value double, unit varchar, higher_is_better boolean)"
    )


def limits() -> dict[str, float]:
    """The gate's limits."""
    return {str(metric): limit for metric, limit in LIMITS.max_slowdown.items()}


def draw_levels(dice: Dice, case: SpeedCase, slowdown: float) -> np.ndarray:
    """Draw seconds, or seconds per token: repeats × metrics."""
    shared = dice.normal(0, case.noise, (case.repeats, 1))
    own = dice.normal(0, case.noise / 3, (case.repeats, len(LIMITS.max_slowdown)))
    return (1 + slowdown) * np.exp(shared + own)


def compare_levels(
    connection: duckdb.DuckDBPyConnection, new: np.ndarray, old: np.ndarray, nights: int = 1
) -> dict[str, dict[str, Any]]:
    """Compare by assayline's SQL. Throughput is the inverse of seconds."""
    connection.execute("delete from internal.run_metric")
    rows = [
        (f"{side}{i:02}", str(metric), float(1 / level if is_rate else level), is_rate)
        for side, levels in (("new", new), ("old", old))
        for column, metric in enumerate(LIMITS.max_slowdown)
        for is_rate in [str(metric).endswith("_per_s")]
        for i, level in enumerate(levels[:, column])
    ]
    connection.execute(
        "insert into run_metric select unnest(?::varchar[]), unnest(?::varchar[]), unnest(?::double[]), 's', "
        "unnest(?::boolean[])",
        [list(column) for column in zip(*rows, strict=True)],
    )
    sides = [[f"{side}{i:02}" for i in range(len(levels))] for side, levels in (("new", new), ("old", old))]
    return compare_speed(connection, sides[0], sides[1], limits(), nights)


def test_requests(dice: Dice, new_level: float, old_level: float) -> bool:
    """Naive test: Welch's test over the requests of one run each, two-sided at 0.05; True if worse."""
    samples = [level * np.exp(dice.normal(0, REQUEST_NOISE, REQUESTS)) for level in (new_level, old_level)]
    new, old = samples
    error = math.sqrt(new.var(ddof=1) / REQUESTS + old.var(ddof=1) / REQUESTS)
    return bool((new.mean() - old.mean()) / error > 1.959963984540054)


if __name__ == "__main__":
    main()
