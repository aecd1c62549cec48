"""The run of a page: its row, stored metrics, engines and events, which the sections of the page share.

A section reads the rest itself: metrics from metric_values, and by queries of `sql/queries` what a page alone needs,
few enough for a page whatever the size of the run.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from assayline.errors import StoreError
from assayline.store.database import SQL_FOLDER, Connection, Row, read_rows, transaction
from assayline.store.measure import PERCENTILES, list_facts, run_tables
from assayline.store.metrics import ensure_metrics, list_warnings
from assayline.words import count

Values = dict[tuple[str, str | None], Row]
"""Rows of metric_values by metric and statistic, and scorer or SLO."""
COUNTS = ("requests", "rows", "engines", "times", "prompts", "tokens", "workers", "attempts", "steps", "GPUs")
"""Units of whole numbers."""
EVENTS = 100
ENGINES = 50


def say_answered(summary: Row) -> str:
    """Return how many requests were answered."""
    if summary["expected_requests"] is None:
        return "Its file states totals alone"
    if not summary["expected_requests"]:
        return "No request was sent"
    return f"{summary['ok_requests']:,} of {count(summary['expected_requests'], 'request')} answered"


def read_values(connection: Connection, run_id: str) -> Values:
    """Return the stored metrics of a run by `metric statistic` and detail. Counts are whole numbers."""
    rows = read_rows(connection, "select * from metric_values where run_id = ?", run_id)
    for row in rows:
        if row["unit"] in COUNTS and row["statistic"] == "total" and row["value"] is not None:
            row["value"] = int(row["value"])
    return {(f"{row['metric']} {row['statistic']}", row["detail"]): row for row in rows}


def _summarize(values: Values, accuracy: list[Row]) -> Row:
    """Return the metrics that a run has once by name, and the mean of its first scorer."""
    summary = {
        row["metric"]: row["value"] for (name, detail), row in values.items()
        if detail is None and name.endswith((" total", " mean"))
    }  # fmt: skip
    if summary["expected_requests"] is None:  # a file of totals alone
        summary |= {name: summary.get(name) or 0 for name in ("unasked_rows", "error_requests")}
    first = next((row for row in accuracy if row["mean"] is not None), {})
    named = {"scorer": "scorer", "accuracy": "mean", "accuracy_low": "mean_low", "accuracy_high": "mean_high"}
    scored = {name: first.get(key) for name, key in named.items()}
    return {**summary, **scored, "scored_samples": first.get("samples", 0)}


def list_percentiles(values: Values, *metrics: str) -> list[dict[str, Row]]:
    """List the rows of latencies by percentile; none if no request has any of them."""
    found = [{name: values.get((f"{metric} {name}", None), {}) for name in PERCENTILES} for metric in metrics]
    return found if any(rows["p50"].get("n") for rows in found) else []


def list_repeats(values: Values, wanted: str) -> list[Row]:
    """List pass@k, or the majority vote, by scorer."""
    found = []
    for (name, scorer), row in values.items():
        if name.startswith(wanted):
            error = values.get((f"standard_error {row['metric']}", scorer))
            found.append({
                "scorer": scorer, "k": int(row["metric"].partition("@")[2] or 0), "mean": row["value"],
                "standard_error": error and error["value"], "mean_low": row["low"], "mean_high": row["high"],
                "prompts": row["n"],
            })  # fmt: skip
    return sorted(found, key=lambda row: (row["scorer"], row["k"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """A run, and its rows that several sections show, each list in display order."""

    connection: Connection
    row: Row
    """Its row of `runs`, with the `obstacle` that keeps its speed out of repeats."""
    spec: dict[str, Any]
    values: Values
    summary: Row
    accuracy: list[Row]
    facts: set[str]
    """Names of the data that it has, by `list_facts`."""
    engines: list[Row]
    events: list[Row]
    """Engine events, without the openings and closings of every run."""
    warnings: list[str]
    """Warnings about the answers; see `list_warnings`."""

    @property
    def run_id(self) -> str:
        return str(self.row["run_id"])

    def read(self, query: str, *more: Any) -> list[Row]:
        """Return the rows of a query, whose first parameter is the run's id."""
        return read_rows(self.connection, query, self.run_id, *more)

    def query(self, name: str, *needed: str) -> list[Row]:
        """Return the rows of a query of `sql/queries`, inside `open_run`; none if the run lacks the `needed` facts."""
        if not {*needed} <= self.facts:
            return []
        return read_rows(self.connection, (SQL_FOLDER / "queries" / f"{name}.sql").read_text("utf-8"))

    def value(self, metric: str, statistic: str = "total", detail: str | None = None) -> Any:
        """Return a stored metric; None if it is undefined or was not measured."""
        return (self.values.get((f"{metric} {statistic}", detail)) or {}).get("value")


@contextmanager
def open_run(connection: Connection, run_id: str) -> Iterator[RunRows]:
    """Read a stored run, and store its metrics if they are missing. Names find its own tables inside the block.

    Raises StoreError if the run is missing.
    """
    ensure_metrics(connection, [run_id])
    with transaction(connection), run_tables(connection, run_id):
        runs = "select runs.*, obstacle from runs left join run_conditions using (run_id) where run_id = ?"
        found = read_rows(connection, runs, run_id)
        if not found:
            raise StoreError(f"Run {run_id} is not in the database. hint: list the runs with `from run`.")
        values = read_values(connection, run_id)
        accuracy = read_rows(connection, "select * from accuracy where run_id = ? order by ordinal, scorer", run_id)
        yield RunRows(
            connection=connection,
            row=found[0],
            spec=json.loads(found[0]["spec_json"]),
            values=values,
            summary=_summarize(values, accuracy),
            accuracy=accuracy,
            facts=list_facts(connection),
            engines=read_rows(connection, _ENGINES, run_id, ENGINES),
            events=read_rows(connection, _EVENTS, run_id, EVENTS),
            warnings=list_warnings(connection, run_id),
        )


_ENGINES = "select * from engine where run_id = ? order by worker, engine_generation limit ?"
_EVENTS = """
    select worker, attempt, engine_generation, event, at_s, left(message, 300) as message
    from engine_events
    where run_id = ? and event in ('failed', 'reduced', 'isolated', 'restored', 'grown', 'idle')
    order by at_s, worker, engine_generation
    limit ?
"""
