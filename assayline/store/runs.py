"""The tables `runs`, `loads` and `slos`: a run's manifest and spec as rows."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from assayline.errors import StoreError
from assayline.spec.criteria import LIMITS
from assayline.store.database import transaction
from assayline.store.locks import is_worked_on
from assayline.store.manifest import Manifest, read_manifest
from assayline.store.metrics import forget_metrics

RUN_COLUMNS = (
    "run_id", "name", "prompt_set", "model", "model_id", "tokenizer_id", "template_id", "sampling_id", "spec_hash",
    "config_id", "benchmark_id", "assayline_version", "host_name", "machine", "job", "tags", "note", "purpose",
    "attempt", "state", "message",
)  # fmt: skip
"""Columns of `runs` that the manifest has as they are."""
LOAD_COLUMNS = ("warmup_s", "cooldown_s", "max_requests", "max_duration_s", "max_errors")


def save_run(connection: duckdb.DuckDBPyConnection, run: Manifest, spec_json: str) -> None:
    """Insert or replace the run's rows, in the caller's transaction."""
    counts = run.prompts
    row = {name: getattr(run, name) for name in RUN_COLUMNS} | {
        "spec_json": spec_json.encode("utf-8", "replace").decode(),  # as in its file
        "started_at": datetime.fromtimestamp(run.clock.started_wall_s, UTC).replace(tzinfo=None),
        "finished_at": datetime.fromisoformat(run.finished_at) if run.finished_at else None,
        "prompt_rows": counts and counts.prompt_rows,
        "duplicate_prompts": counts and counts.duplicate_prompts,
        "expected_requests": counts and counts.requests,
    }
    forget_metrics(connection, run.run_id)
    connection.execute("delete from runs where run_id = ?", [run.run_id])
    insert_row(connection, "runs", row)
    _save_load(connection, run.run_id, json.loads(spec_json))


def _save_load(connection: duckdb.DuckDBPyConnection, run_id: str, spec: dict[str, Any]) -> None:
    """Replace the rows of `loads` and `slos` from the spec, which may predate these fields."""
    for table in ("loads", "slos"):
        connection.execute(f"delete from {table} where run_id = ?", [run_id])  # noqa: S608 - table is ours
    if load := spec.get("load"):
        arrival = load["arrival"]
        row = {
            "arrival": arrival["kind"],
            "requests_per_s": arrival.get("rate_per_s"),
            "concurrency": arrival.get("requests"),
            "burstiness": arrival.get("burstiness"),
            **{name: load[name] for name in LOAD_COLUMNS},
        }
        insert_row(connection, "loads", {"run_id": run_id, **row})
    for slo in spec.get("slos") or ():
        for metric in LIMITS:
            if slo[metric] is not None:
                row = {"run_id": run_id, "slo": slo["name"], "metric": metric, "limit_s": slo[metric]}
                insert_row(connection, "slos", row)


def insert_row(connection: duckdb.DuckDBPyConnection, table: str, row: dict[str, Any]) -> None:
    """Insert a row, given by column."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    query = f"insert into {table} ({names}) values ({marks})"  # noqa: S608 - names are ours
    connection.execute(query, list(row.values()))


def insert_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, given by column, all at once. A column that a row lacks is NULL."""
    if rows:
        names = dict.fromkeys(name for row in rows for name in row)
        given = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        connection.register("given_rows", given)
        connection.execute(f"insert into {table} by name from given_rows")
        connection.unregister("given_rows")


def mark_interrupted(connection: duckdb.DuckDBPyConnection, runs_dir: Path) -> None:
    """Update runs in state `running` that no process works on, to the state in their manifests or to interrupted.

    Runs without a folder on this machine, and runs that are completed by their manifest, stay unchanged.
    """
    for (run_id,) in connection.execute("select run_id from raw.runs where state = 'running'").fetchall():
        with suppress(StoreError):
            run = read_manifest(runs_dir / run_id)
            if run.state == "completed" or is_worked_on(runs_dir / run_id):
                continue
            state = "interrupted" if run.state == "running" else run.state
            message = run.message or (
                "The process of the run exited without a message: it was killed, or the machine stopped. hint: resume "
                f"it with `assayline evaluate --resume {run_id}`."
            )
            with transaction(connection):
                forget_metrics(connection, run_id)
                update = "update raw.runs set state = ?, message = ? where run_id = ?"
                connection.execute(update, [state, message, run_id])


def delete_runs(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str], tables: list[str]) -> None:
    """Delete the runs' rows from these tables, in the caller's transaction."""
    forget_metrics(connection, *run_ids)
    for table in [*tables, "scorers", "scores", "loads", "slos", "loaded_parts", "runs"]:
        query = f"delete from {table} where run_id in ({', '.join('?' * len(run_ids))})"  # noqa: S608 - table is ours
        connection.execute(query, list(run_ids))


def forget_runs(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> None:
    """Delete all rows of runs, in the caller's transaction. Verdicts of other runs against them stay."""
    query = "select table_name from duckdb_columns() where schema_name = 'raw' and column_name = 'run_id'"
    tables = {table for (table,) in connection.execute(query).fetchall()}
    delete_runs(connection, run_ids, sorted(f"raw.{table}" for table in tables - {"runs"}))


def find_ghosts(connection: duckdb.DuckDBPyConnection, runs_dir: Path) -> list[str]:
    """Return the runs in the database that have no folder, oldest first."""
    stored = connection.execute("select run_id from raw.runs order by started_at").fetchall()
    return [run_id for (run_id,) in stored if not (runs_dir / run_id).is_dir()]
