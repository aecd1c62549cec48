"""Result file in the format of `vllm bench serve`, with the fields that mean the same in both tools.

Means and standard deviations are left out, as no model in `sql/` defines them. Unmeasured values are null or absent,
never 0 as in vLLM's own file (its failed requests have a TTFT of 0.0).
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from assayline.export.rows import ExportedRun, RowStream
from assayline.store.database import Connection, Row, read_rows

BACKEND = "assayline"
NAMES = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "e2e_s": "e2el"}
PERCENTILES = {0.5: "median", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p99.9"}
SUMMARY = {
    "duration": "attempted_s",
    "completed": "ok_requests",
    "failed": "error_requests",
    "total_input_tokens": "prompt_tokens",
    "total_output_tokens": "output_tokens",
    "request_throughput": "ok_requests_per_attempted_s",
    "output_throughput": "output_tokens_per_attempted_s",
    "total_token_throughput": "total_tokens_per_attempted_s",
    "max_concurrent_requests": "max_in_flight_requests",
}
"""Fields of vLLM by columns of run_summary."""


def write_result(connection: Connection, run: ExportedRun, rows: RowStream, file: TextIO) -> None:
    """Write one JSON object. Its lists have a value per request, in the order of the prompt set."""
    run_id = run.row["run_id"]
    head = {**_describe_run(connection, run), **_summarize(connection, run_id)}
    file.write(json.dumps(head, ensure_ascii=False)[:-1])
    for name, (columns, read) in LISTS.items():
        file.write(f', "{name}": [')
        for number, value in enumerate(read(row) for row in _measured(rows, columns)):
            file.write(f"{', ' if number else ''}{json.dumps(value, ensure_ascii=False)}")
        file.write("]")
    file.write("}\n")


def _describe_run(connection: Connection, run: ExportedRun) -> dict[str, Any]:
    row = run.row
    loads = read_rows(connection, "select * from loads where run_id = ?", row["run_id"])
    rate = loads[0]["requests_per_s"] if loads else None
    return {
        "date": row["started_at"].strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": BACKEND,
        "backend": BACKEND,
        "label": row["name"],
        "model_id": row["model"],
        "tokenizer_id": run.read_spec("engine.args.tokenizer") or row["model"],
        "num_prompts": run.requests,
        "request_rate": "inf" if rate is None else rate,
        "burstiness": loads[0]["burstiness"] if loads else None,
        "max_concurrency": loads[0]["concurrency"] if loads else None,
        "run_id": row["run_id"],
        "is_complete": run.describe_gap() is None,
    }


def _summarize(connection: Connection, run_id: str) -> dict[str, Any]:
    (summary,) = read_rows(connection, "select * from run_summary where run_id = ?", run_id)
    found = {theirs: summary[ours] for theirs, ours in SUMMARY.items()}
    good = read_rows(
        connection, "select good_requests_per_attempted_s from goodput where run_id = ? order by slo", run_id
    )
    if len(good) == 1:  # vLLM's file has one SLO
        found["request_goodput"] = good[0]["good_requests_per_attempted_s"]
    percentiles = read_rows(connection, "select * from latency_percentile where run_id = ? and n > 0", run_id)
    for row in percentiles:
        if row["metric"] in NAMES and row["percentile"] in PERCENTILES:
            found[f"{PERCENTILES[row['percentile']]}_{NAMES[row['metric']]}_ms"] = row["value_s"] * 1000
    return found


def _measured(rows: RowStream, columns: str) -> Iterator[Row]:
    """Return the requests that reached an engine in the measured phase, as vLLM's file covers these."""
    return (row for row in rows.read(f"{columns}, phase") if row["phase"] in (None, "measured"))


def _list_gaps(row: Row) -> list[float] | None:
    stamps = row["token_at_s"]
    return (
        None if stamps is None else [later - sooner for sooner, later in itertools.pairwise(stamps) if later > sooner]
    )


LISTS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "input_lens": ("prompt_tokens", lambda row: row["prompt_tokens"]),
    "output_lens": ("output_tokens", lambda row: row["output_tokens"]),
    "ttfts": ("ttft_s", lambda row: row["ttft_s"]),
    "itls": ("token_at_s", _list_gaps),
    "latencies": ("e2e_s", lambda row: row["e2e_s"]),
    "start_times": ("sent_at_s", lambda row: row["sent_at_s"]),
    "generated_texts": ("text", lambda row: row["text"]),
    "errors": ("status, error_message", lambda row: "" if row["status"] == "ok" else row["error_message"]),
}
"""Lists by name: columns to read, and the list's value of a row."""
