"""The table `runs`: what was asked for, of which model, and how it ended."""

import socket
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from assayline import __version__


@dataclass(frozen=True, slots=True)
class RunStart:
    """What is known when a run starts."""

    run_id: str
    name: str
    prompt_set: str
    model: str
    model_id: str
    tokenizer_id: str
    template_id: str
    sampling_id: str
    spec_hash: str
    spec_json: str
    started_wall_s: float


def insert_run(connection: duckdb.DuckDBPyConnection, run: RunStart) -> None:
    """Adds the run with state `running`."""
    connection.execute(
        "insert into runs (run_id, name, prompt_set, model, model_id, tokenizer_id, template_id, sampling_id, "
        "spec_hash, spec_json, assayline_version, host_name, attempt, state, started_at) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 'running', ?)",
        [
            run.run_id,
            run.name,
            run.prompt_set,
            run.model,
            run.model_id,
            run.tokenizer_id,
            run.template_id,
            run.sampling_id,
            run.spec_hash,
            run.spec_json,
            __version__,
            socket.gethostname(),
            datetime.fromtimestamp(run.started_wall_s, UTC).replace(tzinfo=None),
        ],
    )


def record_prompt_counts(
    connection: duckdb.DuckDBPyConnection, run_id: str, prompt_rows: int, duplicate_prompts: int, expected_requests: int
) -> None:
    """Writes how many prompts were read, once all are."""
    connection.execute(
        "update runs set prompt_rows = ?, duplicate_prompts = ?, expected_requests = ? where run_id = ?",
        [prompt_rows, duplicate_prompts, expected_requests, run_id],
    )


def finish_run(connection: duckdb.DuckDBPyConnection, run_id: str, state: str) -> None:
    """Writes the end of a run: completed, failed or cancelled."""
    connection.execute(
        "update runs set state = ?, finished_at = ? where run_id = ?",
        [state, datetime.now(UTC).replace(tzinfo=None), run_id],
    )
