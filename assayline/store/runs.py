"""The table `runs`: what was asked for, of which model, and how it ended. A row is the run's manifest and spec."""

from datetime import UTC, datetime

import duckdb

from assayline.manifest import Manifest
from assayline.store.kept import forget_metrics


def save_run(connection: duckdb.DuckDBPyConnection, run: Manifest, spec_json: str) -> None:
    """Makes the run's row, or makes it anew, inside the caller's transaction."""
    counts = run.prompts
    row = {
        "run_id": run.run_id,
        "name": run.name,
        "prompt_set": run.prompt_set,
        "model": run.model,
        "model_id": run.model_id,
        "tokenizer_id": run.tokenizer_id,
        "template_id": run.template_id,
        "sampling_id": run.sampling_id,
        "spec_hash": run.spec_hash,
        "config_id": run.config_id,
        "benchmark_id": run.benchmark_id,
        "spec_json": spec_json.encode("utf-8", "replace").decode(),  # as in its file
        "assayline_version": run.assayline_version,
        "host_name": run.host_name,
        "attempt": run.attempt,
        "state": run.state,
        "message": run.message,
        "started_at": datetime.fromtimestamp(run.clock.started_wall_s, UTC).replace(tzinfo=None),
        "finished_at": datetime.fromisoformat(run.finished_at) if run.finished_at else None,
        "prompt_rows": counts.prompt_rows if counts else None,
        "duplicate_prompts": counts.duplicate_prompts if counts else None,
        "expected_requests": counts.requests if counts else None,
    }
    forget_metrics(connection, run.run_id)
    connection.execute("delete from runs where run_id = ?", [run.run_id])
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    connection.execute(f"insert into runs ({names}) values ({marks})", list(row.values()))  # noqa: S608 - names are ours


def delete_run(connection: duckdb.DuckDBPyConnection, run_id: str, tables: list[str]) -> None:
    """Deletes the run's rows of these tables, inside the caller's transaction."""
    forget_metrics(connection, run_id)
    for table in [*tables, "scorers", "scores", "loaded_parts", "runs"]:
        connection.execute(f"delete from {table} where run_id = ?", [run_id])  # noqa: S608 - table is ours
