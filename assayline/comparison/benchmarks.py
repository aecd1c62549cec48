"""Repeats of benchmarks: which count, their medians, and how much equal runs differ."""

from typing import Any

from assayline.stats import to_rows
from assayline.stats.noise import FLOOR_COLUMNS, find_floors, split_squares
from assayline.store.database import Connection, read_rows
from assayline.store.metrics import ensure_benchmark


def read_noise(connection: Connection, condition: str, *values: Any) -> list[dict[str, Any]]:
    """Read how much equal runs differ, under a condition on `noise_run` and `run_metric`.

    A row per configuration × environment × metric, with the columns of `split_squares` and `find_floors`.
    """
    rows = read_rows(connection, _NOISE.format(condition=condition), *values)
    squares = [split_squares(row.pop("run_values"), row.pop("run_engines")) for row in rows]
    floors = to_rows(find_floors(**{name: [row[name] for row in squares] for name in FLOOR_COLUMNS})) if rows else []
    found = [{**row, **square, **floor} for row, square, floor in zip(rows, squares, floors, strict=True)]
    return sorted(found, key=lambda row: (row["runs"], row["environment"]))


_NOISE = """
    select config_id, environment, benchmark_id, metric, unit, list(value) as run_values,
        list(engine_run_id) as run_engines
    from noise_run
    join run_metric using (run_id)
    where value is not null and {condition}
    group by config_id, environment, benchmark_id, metric, unit
"""


def has_benchmark(connection: Connection, candidate: str, baseline: str) -> bool:
    """Return whether a benchmark has runs of either configuration, without which its noise is unknown."""
    query = """
        select 1
        from runs
        where benchmark_id is not null and config_id in (select config_id from runs where run_id in (?, ?))
        limit 1
    """
    return bool(read_rows(connection, query, candidate, baseline))


def read_noise_floors(connection: Connection, candidate: str, baseline: str) -> dict[str, float]:
    """Read the noise floors that apply to a pair of runs, by metric; empty without a measurement.

    If the configurations of both were measured, each in its run's environment, it is the larger one.
    """
    if not has_benchmark(connection, candidate, baseline):
        return {}
    measured = (
        "(config_id, environment) in (select (config_id, environment) from run_conditions where run_id in (?, ?))"
    )
    found = sorted(
        (row["noise_floor"] or 0.0, row["metric"]) for row in read_noise(connection, measured, candidate, baseline)
    )
    return {metric: floor for floor, metric in found if floor}


def read_benchmark(connection: Connection, benchmark_id: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the repeats of each metric of a benchmark: values, median and range, by config_id and metric."""
    ensure_benchmark(connection, benchmark_id)
    rows = read_rows(connection, _MEDIANS, benchmark_id)
    return {(row["config_id"], row["metric"]): row for row in rows}


_MEDIANS = """
    select
        config_id,
        metric,
        any_value(unit) as unit,
        any_value(higher_is_better) as higher_is_better,
        count(value) as repeats,
        list(value order by run_id) filter (value is not null) as "values",
        median(value) as median_value,
        min(value) as lowest_value,
        max(value) as highest_value
    from run_conditions
    join run_metric using (run_id)
    where benchmark_id = ? and case metric when 'accuracy' then answers_obstacle else obstacle end is null
    group by config_id, metric
"""


def list_repeats(connection: Connection, benchmark_id: str) -> dict[str, tuple[list[str], list[str]]]:
    """List the runs of a benchmark that count as repeats of speed, and of accuracy, by config_id."""
    query = """
        select
            config_id,
            coalesce(list(run_id order by started_at, run_id) filter (obstacle is null), []) as speed,
            list(run_id order by started_at, run_id) as accuracy
        from run_conditions
        where benchmark_id = ? and answers_obstacle is null
        group by config_id
    """
    ensure_benchmark(connection, benchmark_id)
    rows = read_rows(connection, query, benchmark_id)
    return {row["config_id"]: (row["speed"], row["accuracy"]) for row in rows}
