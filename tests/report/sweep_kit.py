"""A sweep to report on, made from rows: an engine that serves ten requests a second, at loads below and above that."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from assayline.settings import Settings
from assayline.store.database import connect

BENCHMARK = "20261121-120000-benchmark-sweep-0001"
CAPACITY_PER_S = 10.0
ALONE_S = 0.25
"""How long a request takes that has the engine for itself."""
FIRST_TOKEN_S = 0.05
REQUESTS = 200
RATES = (4.0, 6.0, 8.0, 9.5, 12.0)
SLOS = (
    {"slo": "interactive", "metric": "ttft_s", "limit_s": 0.2},
    {"slo": "patient", "metric": "e2e_s", "limit_s": 2.0},
)
RUN = {
    "prompt_set": "chat",
    "model": "models/small",
    "spec_hash": "hash",
    "assayline_version": "0",
    "host_name": "host",
}


def given_sweep(
    settings: Settings,
    rates: Sequence[float] = RATES,
    slos: Sequence[dict[str, Any]] = SLOS,
    late_at: float | None = None,
    failed: Sequence[str] = (),
) -> list[str]:
    """Runs of a benchmark: one at a time, each rate, and all at once. Their ids, in this order.

    At the rate `late_at` every other request is sent half a second late. `failed` are names of runs that did not
    complete.
    """
    loads = [
        ("synchronous", {"arrival": "concurrency", "concurrency": 1}, [ALONE_S * i for i in range(REQUESTS)]),
        ("throughput", {"arrival": "all_at_once"}, [0.0] * REQUESTS),
        *(
            (f"{rate:g}/s", {"arrival": "constant", "requests_per_s": rate}, [i / rate for i in range(REQUESTS)])
            for rate in rates
        ),
    ]
    rows: dict[str, list[dict[str, Any]]] = {}

    def insert(table: str, **values: Any) -> None:
        rows.setdefault(table, []).append(values)

    run_ids = []
    for number, (name, load, dues) in enumerate(loads):
        run_id = f"run-{number}"
        run_ids.append(run_id)
        insert(
            "runs",
            run_id=run_id,
            name=f"sweep {name}",
            state="failed" if name in failed else "completed",
            message="the engine died" if name in failed else None,
            benchmark_id=BENCHMARK,
            config_id=f"config-{number}",
            spec_json=json.dumps({"name": f"sweep {name}", "load": load}),
            started_at=datetime(2026, 11, 21) + timedelta(minutes=number),
            attempt=1,
            expected_requests=len(dues),
            **RUN,
        )
        insert("loads", run_id=run_id, warmup_s=0.0, cooldown_s=0.0, **load)
        insert(
            "engine_events",
            run_id=run_id,
            worker="w",
            attempt=1,
            engine_generation=0,
            event="warmed_up",
            at_s=0,
            details_json="{}",
        )
        for slo in slos:
            insert("slos", run_id=run_id, **slo)
        is_open = load["arrival"] != "concurrency"
        _insert_requests(insert, run_id, dues, is_open, late=late_at is not None and name == f"{late_at:g}/s")
    with connect(settings.database_path, 10) as connection:
        for table, values in rows.items():
            _insert_rows(connection, table, values)
    return run_ids


def _insert_rows(connection: Any, table: str, rows: list[dict[str, Any]]) -> None:
    """All rows of a table at once; what a row does not name is null."""
    names = sorted({name for row in rows for name in row})
    types = dict(
        connection.execute(
            "select column_name, data_type from duckdb_columns() where schema_name = 'main' and table_name = ?", [table]
        ).fetchall()
    )
    columns = ", ".join(f"unnest(?::{types[name]}[])" for name in names)
    values = [[row.get(name) for row in rows] for name in names]
    connection.execute(f"insert into {table} ({', '.join(names)}) select {columns}", values)


def _insert_requests(insert: Any, run_id: str, dues: Sequence[float], is_open: bool, late: bool) -> None:
    """One engine with a queue: a request waits until its turn, one every 1 / CAPACITY_PER_S seconds."""
    free_s = 1.0
    for i, due in enumerate(dues):
        due_s = 1.0 + due
        sent_s = due_s + (0.5 if late and i % 2 else 0.001)
        begins_s = max(sent_s, free_s)
        free_s = begins_s + 1 / CAPACITY_PER_S
        keys = {"run_id": run_id, "request_id": f"r{i}"}
        insert("requests", **keys, prompt_id=f"p{i}", occurrence=0, repeat_index=0, sampling_json="{}", rendered="x")
        insert(
            "prompts",
            run_id=run_id,
            prompt_id=f"p{i}",
            occurrence=0,
            source_row=i,
            messages_json="[]",
            metadata_json="{}",
        )
        insert(
            "completions",
            **keys,
            worker="w",
            engine_generation=0,
            window_requests=None if is_open else 1,
            due_at_s=due_s if is_open else None,
            sent_at_s=sent_s,
            arrived_at_s=sent_s,
            first_token_at_s=begins_s + FIRST_TOKEN_S,
            last_token_at_s=begins_s + ALONE_S,
            finished_at_s=begins_s + ALONE_S,
            output_tokens=11,
            text="y",
        )
