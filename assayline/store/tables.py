"""The raw tables as Parquet: which record goes to which table, and its columns.

Column names and order are those of `sql/schema/`; `run_id` is not repeated in every part, the loader adds it.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import pyarrow as pa

from assayline.records import Completion, EngineEvent, Json, Prompt, Request, TelemetrySample

Record = Prompt | Request | Completion | EngineEvent | TelemetrySample

_TEXT, _INT, _BIG, _REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()

PROMPTS = pa.schema(
    [
        ("prompt_id", _TEXT),
        ("occurrence", _INT),
        ("source_row", _BIG),
        ("source_id", _TEXT),
        ("messages_json", _TEXT),
        ("target", _TEXT),
        ("options", pa.list_(_TEXT)),
        ("metadata_json", _TEXT),
    ]
)
REQUESTS = pa.schema(
    [
        ("request_id", _TEXT),
        ("prompt_id", _TEXT),
        ("occurrence", _INT),
        ("repeat_index", _INT),
        ("prompt_token_ids", pa.list_(_INT)),
        ("sampling_json", _TEXT),
        ("rendered", _TEXT),
        ("option_index", _INT),
        ("option", _TEXT),
        ("option_tokens", _INT),
        ("messages_json", _TEXT),
    ]
)
COMPLETIONS = pa.schema(
    [
        ("request_id", _TEXT),
        ("worker", _TEXT),
        ("engine_generation", _INT),
        ("window_requests", _INT),
        ("due_at_s", _REAL),
        ("sent_at_s", _REAL),
        ("arrived_at_s", _REAL),
        ("queued_at_s", _REAL),
        ("scheduled_at_s", _REAL),
        ("first_token_at_s", _REAL),
        ("last_token_at_s", _REAL),
        ("finished_at_s", _REAL),
        ("prompt_tokens", _INT),
        ("cached_tokens", _INT),
        ("output_tokens", _INT),
        ("preemptions", _INT),
        ("retries", _INT),
        ("finish_reason", _TEXT),
        ("stop_reason", _TEXT),
        ("text", _TEXT),
        ("reasoning", _TEXT),
        ("output_token_ids", pa.list_(_INT)),
        ("token_at_s", pa.list_(_REAL)),
        ("cumulative_logprob", _REAL),
        ("logprobs_json", _TEXT),
        ("prompt_logprobs_json", _TEXT),
        ("option_logprob", _REAL),
        ("error_kind", _TEXT),
        ("error_message", _TEXT),
    ]
)
ENGINE_EVENTS = pa.schema(
    [
        ("worker", _TEXT),
        ("attempt", _INT),
        ("engine_generation", _INT),
        ("event", _TEXT),
        ("at_s", _REAL),
        ("duration_s", _REAL),
        ("message", _TEXT),
        ("details_json", _TEXT),
    ]
)
TELEMETRY = pa.schema(
    [
        ("worker", _TEXT),
        ("engine_generation", _INT),
        ("at_s", _REAL),
        ("engine_steps", _BIG),
        ("in_flight_requests", _INT),
        ("output_tokens", _BIG),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "prompts": PROMPTS,
    "requests": REQUESTS,
    "completions": COMPLETIONS,
    "engine_events": ENGINE_EVENTS,
    "telemetry": TELEMETRY,
}
"""In the order in which they are loaded."""

_TABLE_OF: dict[type[Record], str] = {
    Prompt: "prompts",
    Request: "requests",
    Completion: "completions",
    EngineEvent: "engine_events",
    TelemetrySample: "telemetry",
}


def table_of(record: Record) -> str:
    """Name of the table that holds such a record."""
    return _TABLE_OF[type(record)]


def to_arrow(table: str, records: Iterable[Record]) -> pa.Table:
    """Records of one table as Arrow. JSON-like fields become text in `<name>_json`."""
    schema = TABLES[table]
    rows = [[_value(record, name) for name in schema.names] for record in records]
    columns = [
        pa.array(list(column), type=kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema) if rows else schema.empty_table()


def request_from_row(row: dict[str, Any]) -> Request:
    """A Request from a row of the `requests` part."""
    return Request(
        row["request_id"],
        row["prompt_id"],
        row["occurrence"],
        row["repeat_index"],
        row["prompt_token_ids"] or [],
        json.loads(row["sampling_json"]),
        row["rendered"],
        row["option_index"],
        row["option"],
        row["option_tokens"],
        json.loads(row["messages_json"]) if row["messages_json"] else None,
    )


def _value(record: Record, column: str) -> Any:
    read = _READERS[type(record)].get(column)
    return read(record) if read else clean(getattr(record, column))


def clean(value: Any) -> Any:
    """Lone surrogates, which JSON input can smuggle in, have no UTF-8 form: they become question marks."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _dump(value: Json) -> str:
    return str(clean(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)))


def _json_reader(name: str) -> Callable[[Any], str | None]:
    def read(record: Any) -> str | None:
        value = getattr(record, name)
        return None if value is None else _dump(value)

    return read


def _json_readers(record: type[Record]) -> dict[str, Callable[[Any], str | None]]:
    return {f"{field.name}_json": _json_reader(field.name) for field in fields(record)}


_READERS: dict[type[Record], dict[str, Callable[[Any], Any]]] = {record: _json_readers(record) for record in _TABLE_OF}
_READERS[Request]["prompt_token_ids"] = lambda record: record.prompt_token_ids or None
