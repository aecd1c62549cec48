"""What a benchmark's plan and its report read: its runs, the points of a sweep, and the medians of configurations.

As in `report.py`, queries choose and sort, and compute nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from assayline.benchmark.result import Measured, read_measured
from assayline.errors import SpecError
from assayline.store.database import Connection, Row, read_rows
from assayline.store.kept import read_benchmark_kept


@dataclass(frozen=True, slots=True)
class BenchmarkRows:
    """One benchmark's rows, each list in the order in which it is shown."""

    benchmark_id: str
    runs: list[Row]
    """Of whatever state, the first one first."""
    points: list[Row]
    """Runs that have a load and are completed, from the lowest to the highest."""
    goodput: list[Row]
    """Of these runs."""
    slos: list[Row]
    """Limits, as the newest run has them."""
    measured: list[Measured]
    """The configurations, the first one first, where no run has a load; empty for a sweep of loads."""
    values: list[Row]
    """Rows of run_metric with config_id, of their repeats."""

    @property
    def unfinished(self) -> list[Row]:
        """The last run of each configuration that no run completed."""
        completed = {run["config_id"] for run in self.runs if run["state"] == "completed"}
        return list({run["config_id"]: run for run in self.runs if run["config_id"] not in completed}.values())


def read_achieved_rates(connection: Connection, benchmark_id: str, config_ids: Sequence[str]) -> list[float | None]:
    """Requests per second that these configurations achieved: medians over completed runs, None where nothing did."""
    query = """
        select median(requests_per_s)
        from run_summary
        where run_id in (
            select run_id from runs where benchmark_id = ? and config_id = ? and state = 'completed'
        )
    """
    with read_benchmark_kept(connection, benchmark_id):
        return [connection.execute(query, [benchmark_id, one]).fetchall()[0][0] for one in config_ids]


def read_benchmark_rows(connection: Connection, benchmark_id: str) -> BenchmarkRows:
    """Reads a benchmark. Raises SpecError where the database has none of its runs."""

    def of_benchmark(query: str) -> list[Row]:
        return read_rows(connection, query, benchmark_id)

    runs = of_benchmark("select * from runs where benchmark_id = ? order by started_at, run_id")
    if not runs:
        raise SpecError(
            f"There is no run of a benchmark {benchmark_id!r} in the database. Give the id of one, as the column "
            "benchmark_id of the table runs has it."
        )
    with read_benchmark_kept(connection, benchmark_id):
        points = of_benchmark(_POINTS)
        values = [] if points else of_benchmark(_VALUES)
    measured = []
    if not points:
        gate = json.loads(runs[0]["spec_json"]).get("gate") or {}
        measured = read_measured(connection, benchmark_id, label_configurations(runs), gate.get("max_slowdown") or {})
    with read_benchmark_kept(connection, benchmark_id):
        return BenchmarkRows(
            benchmark_id=benchmark_id,
            runs=runs,
            points=points,
            goodput=of_benchmark(_GOODPUT),
            slos=read_rows(connection, "select * from slos where run_id = ? order by slo, metric", runs[-1]["run_id"]),
            measured=measured,
            values=values,
        )


def label_configurations(runs: Sequence[Row]) -> dict[str, str]:
    """By config_id what varies, as `max_concurrency 32`: names of runs without the words that all begin with."""
    names = {run["config_id"]: run["name"].split(" ") for run in runs}
    begins = zip(*(words[:-1] for words in names.values()), strict=False)
    shared = sum(1 for _ in takewhile(lambda found: len(set(found)) == 1, begins))
    return {config_id: _shorten(" ".join(words[shared:])) for config_id, words in names.items()}


def _shorten(label: str) -> str:
    """engine.max_concurrency=32 as max_concurrency 32."""
    parts = (part.partition("=") for part in label.split(", "))
    return ", ".join(f"{field.rsplit('.', 1)[-1]} {value}" if equals else field for field, equals, value in parts)


_VALUES = """
    select run_conditions.config_id, run_metric.metric, run_metric.unit, run_metric.value
    from run_conditions
    join run_metric using (run_id)
    where run_conditions.benchmark_id = ? and run_conditions.obstacle is null and run_metric.value is not null
    order by run_metric.metric, run_id
"""

_POINTS = """
    select sweep_point.*
    from sweep_point
    join runs on runs.run_id = sweep_point.run_id
    where sweep_point.benchmark_id = ? and runs.state = 'completed'
    order by
        case sweep_point.arrival when 'concurrency' then 0 when 'all_at_once' then 2 else 1 end,
        sweep_point.concurrency,
        sweep_point.offered_requests_per_s,
        runs.started_at
"""
_GOODPUT = """
    select goodput.*
    from goodput
    join runs on runs.run_id = goodput.run_id
    left join loads on loads.run_id = goodput.run_id
    where runs.benchmark_id = ? and runs.state = 'completed'
    order by goodput.slo, loads.requests_per_s, runs.started_at
"""
