"""The raw tables as Parquet: which record goes to which table, and its columns.

Columns are read from `sql/schema/`. Each is a field of the record, or a field's JSON where it is named `<field>_json`;
`run_id` is not repeated in every part, the loader adds it.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from assayline.records import Completion, DeviceSample, EngineEvent, Json, Prompt, Request, TelemetrySample

Record = Prompt | Request | Completion | EngineEvent | TelemetrySample | DeviceSample

_SCHEMA_FOLDER = Path(__file__).resolve().parents[2] / "sql" / "schema"
_COLUMN = re.compile(r"^    (?P<name>\w+) (?P<type>\w+)(?P<list>\[\])?", re.M)
_TYPES = {"varchar": pa.string(), "integer": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}


def _read_schema(table: str) -> pa.Schema:
    """Columns and types as the table's file in `sql/schema/` has them, but for `run_id`."""
    (file,) = _SCHEMA_FOLDER.glob(f"[0-9][0-9]_{table}.sql")
    columns = file.read_text(encoding="utf-8").partition(");")[0]
    return pa.schema(
        (found["name"], pa.list_(_TYPES[found["type"]]) if found["list"] else _TYPES[found["type"]])
        for found in _COLUMN.finditer(columns)
        if found["name"] != "run_id"
    )


TABLES: dict[str, pa.Schema] = {
    table: _read_schema(table)
    for table in ("prompts", "requests", "completions", "engine_events", "telemetry", "device_telemetry")
}
"""In the order in which they are loaded."""

_TABLE_OF: dict[type[Record], str] = {
    Prompt: "prompts",
    Request: "requests",
    Completion: "completions",
    EngineEvent: "engine_events",
    TelemetrySample: "telemetry",
    DeviceSample: "device_telemetry",
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
    """A Request from a row of a `requests` part. What an older part does not have is as the dataclass says."""
    values = {
        name.removesuffix("_json"): json.loads(value) if value and name.endswith("_json") else value
        for name, value in row.items()
    }
    return Request(**values | {"prompt_token_ids": values["prompt_token_ids"] or []})


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
