"""The report of GuideLLM (schema version 2), of what means the same in both.

Its classes demand numbers for whole distributions. Those of a value per request are computed by its definitions
(`distributions.py`). Of throughput and of what was in flight the mean is ours, and the spread "NaN": its own is of gaps
between neighbouring events, and no measurement of ours. A distribution of no values is as there, of count 0, and an
average of its scheduler's delays −1. Where arrivals have no name there, as those in bursts, the run is refused.
"""

import datetime
import json
from collections.abc import Iterator
from typing import Any, TextIO

from assayline.errors import SpecError
from assayline.export.distributions import EMPTY, STATUSES, describe_mean, read_distributions
from assayline.export.guidellm_requests import describe_request
from assayline.export.rows import ExportedRun, RowStream
from assayline.spec.engine import BACKENDS
from assayline.store.database import Connection, Row, read_rows

SCHEMA_VERSION = 2
NONE_S = -1.0
"""What GuideLLM writes for an average of no values."""

REQUIRED = (
    "request_latency", "request_streaming_iterations_count", "prompt_token_count", "output_token_count",
    "total_token_count", "time_to_first_token_ms", "time_to_first_output_token_ms", "time_per_output_token_ms",
    "inter_token_latency_ms", "time_to_last_round_trip_ms", "avg_round_trip_time_ms", "output_tokens_per_iteration",
    "iter_tokens_per_iteration",
)  # fmt: skip
"""Distributions that its class demands, measured or not."""

RATES = {
    "requests_per_second": "requests_per_s",
    "prompt_tokens_per_second": "total_tokens_per_s - output_tokens_per_s",
    "output_tokens_per_second": "output_tokens_per_s",
    "tokens_per_second": "total_tokens_per_s",
}
"""Theirs, and of run_summary."""

MEDIA = {
    "text": ("tokens", "words", "characters"),
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}
"""Kinds of summaries that may be null, and their fields."""

DELAYS = (
    "queued_time_avg", "resolve_start_delay_avg", "resolve_targeted_start_delay_avg", "request_start_delay_avg",
    "resolve_end_delay_avg", "resolve_time_avg", "finalized_delay_avg", "processed_delay_avg",
)  # fmt: skip
"""Averages of its own scheduler."""


def write_report(connection: Connection, run: ExportedRun, rows: RowStream, file: TextIO) -> None:
    """One JSON object with one benchmark. Raises SpecError for arrivals that GuideLLM has no name for."""
    loads = read_rows(connection, "select * from loads where run_id = ?", run.row["run_id"])
    load = loads[0] if loads else None
    strategy = _describe_strategy(run, load, _read_limit(connection, run))
    benchmark = _describe_benchmark(connection, run, load, strategy)
    report = _describe_report(run, load, strategy) | {"benchmarks": [benchmark]}
    file.write(json.dumps(report, ensure_ascii=False).removesuffix("}]}") + ', "requests": {')
    started_s = _read_epoch_s(run.row["started_at"])
    for status, ours in (("successful", "ok"), ("errored", "error")):
        file.write(f'"{status}": [')
        for number, row in enumerate(_read_measured(rows, ours)):
            text = json.dumps(describe_request(row, started_s), ensure_ascii=False)
            file.write(f"{', ' if number else ''}{text}")
        file.write("], ")
    file.write('"incomplete": [], "total": null}}]}\n')


def _read_measured(rows: RowStream, status: str) -> Iterator[Row]:
    """Those of a status that metrics are about, and whose end is known: their class holds no others."""
    for row in rows.read():
        if row["status"] == status and row["phase"] in (None, "measured") and row["finished_at_s"] is not None:
            yield row


def _read_limit(connection: Connection, run: ExportedRun) -> int:
    """The most requests that could be in flight."""
    ((window,),) = connection.execute("select max(window_requests) from temp.exported_rows").fetchall()
    return window or max(run.requests, 1)


def _describe_report(run: ExportedRun, load: Row | None, strategy: dict[str, Any]) -> dict[str, Any]:
    row = run.row
    labels = {"name": row["name"], "run_id": row["run_id"], "model_id": row["model_id"], "host_name": row["host_name"]}
    return {
        "metadata": {
            "version": SCHEMA_VERSION,
            "guidellm_version": f"none: exported by assayline {row['assayline_version']}",
            "python_version": "not recorded",
            "platform": "not recorded",
        },
        "config": {
            "metadata": {"labels": {name: value for name, value in labels.items() if value is not None}},
            "spec": {
                "backend": _describe_backend(run),
                "profile": _describe_profile(load, strategy),
                "data": [{"kind": "huggingface", "source": _name_source(run)}],
            },
        },
        "conclusions": [],
    }


def _describe_backend(run: ExportedRun) -> dict[str, Any]:
    kind = BACKENDS.get(run.read_spec("engine.backend"))
    if kind is not None and kind.is_served:
        chats = run.read_spec("engine.server.endpoint") == "chat"
        return {
            "kind": "openai_http",
            "target": run.read_spec("engine.server.url") or "",
            "model": run.read_spec("engine.server.model") or run.row["model"],
            "request_format": "/v1/chat/completions" if chats else "/v1/completions",
        }
    template = run.read_spec("chat.template") or "default"
    return {
        "kind": "vllm_python",
        "model": run.row["model"],
        "vllm_config": run.read_spec("engine.args") or {},
        "request_format": "default-template" if template == "default" else template,
    }


def _describe_profile(load: Row | None, strategy: dict[str, Any]) -> dict[str, Any]:
    match strategy["type_"]:
        case "concurrent":
            profile: dict[str, Any] = {"kind": "concurrent", "streams": [strategy["streams"]]}
        case "constant" | "poisson" as kind:
            profile = {"kind": kind, "rate": [strategy["rate"]]}
        case "trace":
            profile = {"kind": "replay", "time_scale": strategy["time_scale"], "schedule_turn": "timestamp"}
        case _:
            profile = {"kind": "throughput", "max_concurrency": strategy["max_concurrency"]}
    return profile | _describe_windows(load)


def _describe_windows(load: Row | None) -> dict[str, Any]:
    windows = {name: load[f"{name}_s"] for name in ("warmup", "cooldown")} if load is not None else {}
    return {name: {"value": value, "mode": "duration"} for name, value in windows.items() if value}


def _describe_strategy(run: ExportedRun, load: Row | None, limit: int) -> dict[str, Any]:
    """The load by their names; without one, as many are in flight as may be."""
    arrival = None if load is None else load["arrival"]
    if load is None or arrival == "all_at_once":
        return {"type_": "throughput", "max_concurrency": limit}
    if arrival == "concurrency":
        return {"type_": "concurrent", "streams": load["concurrency"]}
    if arrival == "trace":
        speed = run.read_spec("load.arrival.speed") or 1.0
        return {"type_": "trace", "time_scale": 1 / speed, "schedule_turn": "timestamp"}
    if arrival == "constant":
        return {"type_": "constant", "rate": load["requests_per_s"]}
    if arrival == "poisson" or load["burstiness"] == 1:
        seed = run.read_spec("load.arrival.seed") or 0
        return {"type_": "poisson", "rate": load["requests_per_s"], "random_seed": seed}
    raise SpecError(
        f"Requests of run {run.row['run_id']} came in bursts (load.arrival.kind {arrival}), for which GuideLLM's "
        "reports have no name: constant, poisson, concurrent, throughput and trace. Export it as vllm-bench."
    )


def _name_source(run: ExportedRun) -> str:
    name = run.read_spec("prompts.source.path") or run.read_spec("prompts.source.dataset") or run.row["prompt_set"]
    return str(name)


def _describe_benchmark(
    connection: Connection, run: ExportedRun, load: Row | None, strategy: dict[str, Any]
) -> dict[str, Any]:
    """All of a benchmark but its requests."""
    row, run_id = run.row, run.row["run_id"]
    rates = ", ".join(f"{ours} as {theirs}" for theirs, ours in RATES.items())
    (summary,) = read_rows(
        connection,
        f"select mean_in_flight_requests, {rates} from run_summary where run_id = ?",  # noqa: S608 - RATES are ours
        run_id,
    )
    (moments,) = read_rows(
        connection,
        "select count(*) filter (status = 'ok') as ok, count(*) filter (status = 'error') as errors, "
        "min(arrived_at_s) as begin_s, min(arrived_at_s) filter (phase = 'measured') as measured_begin_s, "
        "max(finished_at_s) filter (phase = 'measured') as measured_end_s, max(finished_at_s) as end_s, "
        "count(*) filter (is_finished) as finished "
        "from temp.exported_rows where status in ('ok', 'error')",
    )
    found = read_distributions(connection)
    started_s = _read_epoch_s(row["started_at"])
    ended_s = NONE_S if row["finished_at"] is None else _read_epoch_s(row["finished_at"])
    begin_s, end_s = (started_s + (moments[name] or 0.0) for name in ("measured_begin_s", "measured_end_s"))
    counts = {"successful": moments["ok"], "incomplete": 0, "errored": moments["errors"]}
    counts["total"] = moments["ok"] + moments["errors"]
    return {
        "type_": "generative_benchmark",
        "config": {
            "id_": run_id,
            "run_id": row["benchmark_id"] or run_id,
            "run_index": 0,
            "strategy": strategy,
            "constraints": _describe_constraints(load),
            "confidence": None,
            "warnings": [],
            "profile": _describe_profile(load, strategy),
            "requests": {"data": _name_source(run), "prompt_set": row["prompt_set"]},
            "backend": _describe_backend(run),
            "environment": {"client": "assayline", "version": row["assayline_version"], "host_name": row["host_name"]},
            **_describe_windows(load),
        },
        "scheduler_state": {
            "start_time": started_s,
            "end_time": None if row["finished_at"] is None else ended_s,
            "created_requests": run.requests,
            "processed_requests": counts["total"],
            "successful_requests": counts["successful"],
            "errored_requests": counts["errored"],
        },
        "scheduler_metrics": {
            "start_time": started_s,
            "request_start_time": started_s + (moments["begin_s"] or 0.0),
            "measure_start_time": begin_s,
            "measure_end_time": end_s,
            "request_end_time": started_s + (moments["end_s"] or 0.0),
            "end_time": ended_s,
            "requests_made": counts,
            **dict.fromkeys(DELAYS, NONE_S),
            "request_targeted_start_delay_avg": _read_mean(found, "request_dispatch_delay"),
            "request_time_avg": _read_mean(found, "request_latency"),
            "dataset_incomplete": run.describe_gap() is not None,
            "strategy_type": strategy["type_"],
        },
        "metrics": _describe_metrics(found, summary, moments["finished"]),
        "warnings": [],
        "start_time": begin_s,
        "end_time": end_s,
        "duration": end_s - begin_s,
    }


def _describe_constraints(load: Row | None) -> dict[str, dict[str, Any]]:
    limits = {"max_requests": "count", "max_duration": "seconds", "max_errors": "count"}
    values = {} if load is None else {"max_duration": load["max_duration_s"], **load}
    return {name: {unit: values[name]} for name, unit in limits.items() if values.get(name) is not None}


def _describe_metrics(found: dict[str, dict[str, Any]], summary: Row, finished: int) -> dict[str, Any]:
    missing = dict.fromkeys(STATUSES, EMPTY)
    totals = {status: found.get("requests", missing)[status]["count"] for status in STATUSES}
    metrics: dict[str, Any] = {
        "request_totals": totals,
        **dict.fromkeys(REQUIRED, missing),
        **{name: values for name, values in found.items() if name != "requests"},
    }
    for theirs in RATES:
        described = describe_mean(summary[theirs], finished)
        metrics[theirs] = missing | {"successful": described, "total": described}  # an error is no throughput
    in_flight = describe_mean(summary["mean_in_flight_requests"], totals["total"])
    metrics["request_concurrency"] = missing | ({} if totals["errored"] else {"successful": in_flight})
    metrics["request_concurrency"]["total"] = in_flight
    for kind, names in MEDIA.items():
        metrics[kind] = dict.fromkeys(names)
    return metrics


def _read_mean(found: dict[str, dict[str, Any]], name: str) -> float:
    return float(found[name]["total"]["mean"]) if name in found else NONE_S


def _read_epoch_s(moment: datetime.datetime) -> float:
    """A UTC moment without a zone, as the database has it."""
    return moment.replace(tzinfo=datetime.UTC).timestamp()
