"""Given rows, expect rows: the way every SQL model is tested.

A test names only the columns it is about. `given` fills what the raw table insists on, `expect` compares the columns
that the expected rows name, in any order of rows, with None for NULL and nothing else for it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb
import pyarrow
import pytest

from assayline.store.parts import TABLES

Row = dict[str, Any]

RUN = "run"
DEFAULTS: dict[str, Row] = {
    "runs": {
        "name": "spec",
        "prompt_set": "set",
        "model": "model",
        "spec_hash": "hash",
        "spec_json": "{}",
        "assayline_version": "0",
        "host_name": "host",
        "attempt": 1,
        "state": "completed",
        "started_at": datetime(2026, 1, 1),
    },
    "prompts": {"prompt_id": "p", "occurrence": 0, "source_row": 0, "messages_json": "[]", "metadata_json": "{}"},
    "requests": {"prompt_id": "p", "occurrence": 0, "repeat_index": 0, "sampling_json": "{}"},
    "completions": {"worker": "w", "engine_generation": 0, "window_requests": 8},
    "scorers": {
        "scorer": "exact_match",
        "kind": "exact_match",
        "ordinal": 0,
        "arguments_json": "{}",
        "assayline_version": "0",
        "scored_at": datetime(2026, 1, 1),
        "definition": "digest",
    },
    "scores": {"scorer": "exact_match", "prompt_id": "p", "occurrence": 0, "repeat_index": 0},
    "engine_events": {"worker": "w", "attempt": 1, "engine_generation": 0, "at_s": 0.0, "details_json": "{}"},
    "loads": {"arrival": "poisson", "warmup_s": 0.0, "cooldown_s": 0.0},
    "slos": {"slo": "interactive"},
    "device_telemetry": {"worker": "w", "device": "cuda-0"},
    "verdicts": {"baseline_run_id": "base", "judged_at": datetime(2026, 1, 1), "ordinal": 0, "unit": "", "words": "."},
    "telemetry": {"worker": "w", "engine_generation": 0, "at_s": 0.0, "in_flight_requests": 0, "output_tokens": 0},
}


class Store:
    """A database with the whole schema and, to begin with, no rows."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def given(self, table: str, *rows: Row) -> None:
        """Insert the rows, each laid over the table's defaults. All rows of one call name the same columns."""
        if not rows:
            return
        full = [{"run_id": RUN, **DEFAULTS[table], **row} for row in rows]
        columns = list(full[0])
        assert all(row.keys() == full[0].keys() for row in full), "rows of one call name the same columns"
        values = pyarrow.table({column: [row[column] for row in full] for column in columns})
        self.connection.register("given_rows", values)
        self.connection.execute(f"insert into {table} ({', '.join(columns)}) from given_rows")
        self.connection.unregister("given_rows")
        if table in TABLES:
            parts = [list({row["run_id"] for row in full}), table]
            self.connection.execute("insert into loaded_parts select distinct unnest(?), 'by hand', ?, 0", parts)

    def given_answers(self, *answers: Row, run_id: str = RUN, target: str | None = None) -> None:
        """A run with one prompt, one request and one completion per answer, named 0, 1, 2 … where not named."""
        named = [{"request_id": str(i), **answer} for i, answer in enumerate(answers)]
        self.given("runs", {"run_id": run_id, "expected_requests": len(named)})
        keys = [{"run_id": run_id, "prompt_id": answer["request_id"]} for answer in named]
        self.given("prompts", *({**key, "target": target} for key in keys))
        self.given("requests", *({**key, "request_id": key["prompt_id"]} for key in keys))
        for columns in dict.fromkeys(tuple(answer) for answer in named):
            alike = [{"run_id": run_id, **answer} for answer in named if tuple(answer) == columns]
            self.given("completions", *alike)

    def rows(self, view: str, *columns: str, run_id: str | None = RUN) -> list[Row]:
        """The view's rows, of one run or, with None, of all."""
        where = "" if run_id is None else "where run_id = ?"
        result = self.connection.execute(
            f"select {', '.join(columns) or '*'} from {view} {where}", [] if run_id is None else [run_id]
        )
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, values, strict=True)) for values in result.fetchall()]

    def row(self, view: str, *columns: str, run_id: str = RUN) -> Row:
        """The only row of a view that has one per run."""
        (row,) = self.rows(view, *columns, run_id=run_id)
        return row

    def expect(self, view: str, *expected: Row, run_id: str | None = RUN) -> None:
        """The view has these rows and no others; all expected rows name the same columns."""
        found = self.rows(view, *(expected[0] if expected else ()), run_id=run_id)
        assert len(found) == len(expected), f"{view}: {found}"
        for one, other in zip(_sorted(found), _sorted(expected), strict=True):
            assert one == {column: _close_to(value) for column, value in other.items()}, view


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, str(type(value)), value) for value in row.values()])


def _close_to(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
