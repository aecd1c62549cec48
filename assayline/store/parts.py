"""Part files: durable results without the database, and the mapping of records to tables.

A part is a Parquet file with rows of one table, which a reader sees completely or not at all. A writer's parts have
their number of rows in the file name, so that counting does not open them. `PartWriter` flushes its buffer after
`flush_rows` rows or `flush_interval_s` seconds, whichever is first; a crash loses at most that interval.

When a run is complete, `merge_parts` copies the parts of each table into one, which names its sources. From then on,
the sources are ignored wherever they are still found: after a kill, or in a copy that a tool made earlier. The
database's ledger has the sources, so a merge does not change it, and `split_parts` restores them before a resume.

Columns are read from `sql/schema/`. Each is a field of the record, or its JSON if named `<field>_json`. Parts omit
`run_id`; ingestion adds it.
"""

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM, UNFINISHED, replace_file, storing
from assayline.records import Completion, DeviceSample, EngineEvent, Prompt, Request, TelemetrySample, Token

Record = Prompt | Request | Completion | EngineEvent | TelemetrySample | DeviceSample | Token

_SCHEMA_FOLDER = Path(__file__).resolve().parents[1] / "sql" / "schema"
_COLUMN = re.compile(r"^    (?P<name>\w+) (?P<type>\w+)(?P<list>\[\])?", re.M)
_TYPES = {"varchar": pa.string(), "integer": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}


def _read_schema(table: str) -> pa.Schema:
    """Read columns and types, except `run_id`, from the table's file in `sql/schema/`."""
    (file,) = _SCHEMA_FOLDER.glob(f"[0-9][0-9]_{table}.sql")
    columns = file.read_text(encoding="utf-8").partition(");")[0]
    return pa.schema(
        (found["name"], pa.list_(_TYPES[found["type"]]) if found["list"] else _TYPES[found["type"]])
        for found in _COLUMN.finditer(columns)
        if found["name"] != "run_id"
    )


TABLES: dict[str, pa.Schema] = {
    table: _read_schema(table)
    for table in ("prompts", "requests", "completions", "engine_events", "telemetry", "device_telemetry", "tokens")
}
"""Schemas by table, in ingestion order."""

_TABLE_OF: dict[type[Record], str] = {
    Prompt: "prompts",
    Request: "requests",
    Completion: "completions",
    EngineEvent: "engine_events",
    TelemetrySample: "telemetry",
    DeviceSample: "device_telemetry",
    Token: "tokens",
}


def table_of(record: Record) -> str:
    """Return the table of a record."""
    return _TABLE_OF[type(record)]


def to_arrow(table: str, records: Iterable[Record]) -> pa.Table:
    """Convert records of one table to Arrow. JSON-like fields become text in `<name>_json`."""
    schema, rows = TABLES[table], list(records)
    columns = [_make_column(list(map(_reader_of(one.name), rows)), one.type) for one in schema]
    return pa.Table.from_arrays(columns, schema=schema)


@cache
def _reader_of(column: str) -> Callable[[Any], Any]:
    """Return the function that reads a column from a record."""
    read = attrgetter(column.removesuffix("_json"))
    if column.endswith("_json"):
        return lambda record: None if (value := read(record)) is None else _dump(value)
    return (lambda record: read(record) or None) if column == "prompt_token_ids" else read


def _make_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except UnicodeEncodeError:
        return pa.array(list(map(clean, values)), type=kind)


def request_from_row(row: dict[str, Any]) -> Request:
    """Build a Request from a row of a `requests` part."""
    values = {
        name.removesuffix("_json"): json.loads(value) if value and name.endswith("_json") else value
        for name, value in row.items()
    }
    return Request(**values | {"prompt_token_ids": values["prompt_token_ids"] or []})


def clean(value: Any) -> Any:
    """Replace lone surrogates from JSON input with question marks, because they have no UTF-8 form."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


_dump = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


ANSWERS = "completions"
PARTS = "parts"
ROWS = re.compile(r"-(\d+)rows\.parquet$")
MERGED_NAME = "merged.parquet"
_SOURCES = b"sources"
_ROW_GROUP_BYTES = 2**26
"""Size of a merged part's row groups in memory."""


def parts_dir(run_dir: Path, table: str) -> Path:
    """Return the folder of a run's parts of one table."""
    return run_dir / PARTS / table


def write_part(run_dir: Path, table: str, name: str, records: Iterable[Record]) -> Path:
    """Write one part durably. Raises StoreError if the file system refuses."""
    path = parts_dir(run_dir, table) / f"{name}.parquet"
    hint = f"{MAKE_ROOM} Then run the same command again to resume the run; parts written so far are kept."
    with storing(f"Part file {path} cannot be written", hint):
        replace_file(path, lambda file: pq.write_table(to_arrow(table, records), file, compression="zstd"))
    return path


def part_unreadable(part: Path, error: Exception) -> StoreError:
    """Return the error for an unreadable part."""
    return StoreError(
        f"Part {part} cannot be read: {error}. hint: run `assayline db rebuild {part.parents[2].name} --set-aside`, "
        "which renames it, then resume the run."
    )


@contextmanager
def open_part(part: Path) -> Iterator[pq.ParquetFile]:
    """Open a part to read it. Raises StoreError if it is damaged."""
    try:
        with pq.ParquetFile(part) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(part, error) from error


def list_parts(run_dir: Path, table: str) -> list[Path]:
    """List the finished parts of one table, by name. Raises StoreError."""
    folder = parts_dir(run_dir, table)
    return [folder / name for name in list_part_names(run_dir, table)]


def list_part_names(run_dir: Path, table: str) -> list[str]:
    """List the names of a table's finished parts, without the sources of a merged one. Raises StoreError."""
    folder = parts_dir(run_dir, table)
    with storing(f"The parts in {folder} cannot be listed", "fix the folder's permissions."):
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names are needed, no paths
        except FileNotFoundError:
            return []
    sources = read_sources(folder / MERGED_NAME) if MERGED_NAME in names else ()
    return sorted(name for name in names if name.endswith(".parquet") and name not in sources)


def read_sources(part: Path) -> dict[str, int]:
    """Return the names and numbers of rows of a merged part's sources, in the order of its rows; none if it has none.

    A damaged part has none: reading its rows raises the error.
    """
    with suppress(OSError, pa.ArrowException):
        found: dict[str, int] = json.loads((pq.read_metadata(part).metadata or {}).get(_SOURCES, b"{}"))
        return found if part.name == MERGED_NAME else {}
    return {}


def merge_parts(run_dir: Path) -> None:
    """Copy each table's parts into one and remove them. Raises StoreError, which leaves every row in one place."""
    for table in TABLES:
        folder, parts = parts_dir(run_dir, table), list_parts(run_dir, table)
        merged = folder / MERGED_NAME
        with storing(f"The parts in {folder} cannot be merged", MAKE_ROOM):
            if len(parts) > 1 and merged not in parts:
                replace_file(merged, partial(_write_merged, table, parts))
            for name in read_sources(merged):
                (folder / name).unlink(missing_ok=True)


def _write_merged(table: str, parts: list[Path], file: BinaryIO) -> None:
    sources: dict[str, int] = {}
    group: list[pa.Table] = []
    size = 0
    with pq.ParquetWriter(file, TABLES[table], compression="zstd") as writer:
        for part in parts:
            with open_part(part) as source:
                group.append(source.read(use_threads=False))
            sources[part.name], size = group[-1].num_rows, size + group[-1].nbytes
            if part == parts[-1] or size >= _ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(group))
                group, size = [], 0
        writer.add_key_value_metadata({_SOURCES: json.dumps(sources)})


def split_parts(run_dir: Path) -> None:
    """Undo `merge_parts`, for an attempt that compares the parts with its own. Raises StoreError."""
    for table in TABLES:
        merged = parts_dir(run_dir, table) / MERGED_NAME
        if not (sources := read_sources(merged)):
            continue
        with open_part(merged) as file:
            batches, rows = file.iter_batches(4096), TABLES[table].empty_table()
            for name, count in sources.items():
                while rows.num_rows < count:
                    rows = pa.concat_tables([rows, pa.Table.from_batches([next(batches)])])
                some, rows = rows.slice(0, count), rows.slice(count)
                with storing(f"{merged} cannot be split", MAKE_ROOM):
                    replace_file(merged.with_name(name), partial(pq.write_table, some, compression="zstd"))
        with storing(f"{merged} cannot be removed", MAKE_ROOM):
            merged.unlink()


class StoredText(NamedTuple):
    """The answer to a request, or its error."""

    text: str | None = None
    error_kind: str | None = None
    error_message: str | None = None


def read_texts(run_dir: Path, request_ids: Collection[str]) -> dict[str, StoredText]:
    """Read the answers of some requests from the parts of a run, by request; a result before an error.

    Raises StoreError for a damaged part.
    """
    found: dict[str, StoredText] = {}
    wanted = pa.array(list(request_ids), pa.string())
    for part in list_parts(run_dir, ANSWERS) if request_ids else ():
        with open_part(part) as file:
            rows = file.read(["request_id", *StoredText._fields])
        for row in rows.filter(pc.is_in(rows["request_id"], value_set=wanted)).to_pylist():
            request_id = row.pop("request_id")
            if request_id not in found or row["error_kind"] is None:
                found[request_id] = StoredText(**row)
    return found


def set_part_aside(part: Path) -> Path:
    """Rename a damaged part, which removes it from all lists; return its new path. Raises StoreError."""
    number, aside = 1, part.with_name(f"{part.name}.damaged")
    with storing(f"{part} cannot be renamed to {aside.name}", MAKE_ROOM):
        while aside.exists():
            number += 1
            aside = part.with_name(f"{part.name}.damaged-{number}")
        return part.rename(aside)


def remove_unfinished(run_dir: Path) -> None:
    """Remove unfinished files of a killed writer; requires that no process is writing. Raises StoreError."""
    with storing(f"Unfinished files of {run_dir} cannot be removed", "fix the folder's permissions."):
        for path in run_dir.glob(f"parts/*/.*{UNFINISHED}"):
            path.unlink(missing_ok=True)


def count_rows(part: Path) -> int:
    """Return the number of rows of a part, from its footer."""
    return int(pq.read_metadata(part).num_rows)


def count_table(run_dir: Path, table: str) -> int:
    """Return the number of rows of all parts of a table, from their names or else their footers. Raises StoreError."""
    parts = list_parts(run_dir, table)
    return sum(int(match[1]) if (match := ROWS.search(part.name)) else count_rows(part) for part in parts)


class PartWriter:
    """Buffers records and writes them as parts. Several threads may add records."""

    def __init__(self, run_dir: Path, writer: str, flush_rows: int, flush_interval_s: float) -> None:
        self._run_dir = run_dir
        self._prefix = f"{writer}-{uuid.uuid4().hex[:8]}"
        self._flush_rows = flush_rows
        self._flush_interval_s = flush_interval_s
        self._lock = threading.Lock()
        self._buffers: dict[str, list[Record]] = {table: [] for table in TABLES}
        self._flushed_s = time.monotonic()
        self._sequence = 0

    def add(self, record: Record) -> None:
        """Add one record; flush if its buffer is full or old. Raises StoreError."""
        with self._lock:
            buffer = self._buffers[table_of(record)]
            buffer.append(record)
            if len(buffer) >= self._flush_rows or self._is_old():
                self._flush()

    def flush(self) -> None:
        """Write all buffers. Raises StoreError; rows that were not written stay buffered."""
        with self._lock:
            self._flush()

    def flush_old(self) -> None:
        """Write all buffers if the flush interval is over, for times without records. Raises StoreError."""
        with self._lock:
            if self._is_old():
                self._flush()

    def _is_old(self) -> bool:
        return time.monotonic() - self._flushed_s >= self._flush_interval_s

    def _flush(self) -> None:
        for table, buffer in self._buffers.items():
            if buffer:
                write_part(self._run_dir, table, f"{self._prefix}-{self._sequence:06d}-{len(buffer)}rows", buffer)
                self._sequence += 1
                buffer.clear()
        self._flushed_s = time.monotonic()


def ledger_name(table: str, name: str) -> str:
    """Return the name of a part in `loaded_parts`."""
    return f"{table}/{name}"


def recall_lengths(
    connection: duckdb.DuckDBPyConnection, model_id: str | None, prompt_set: str, benchmark_id: str | None
) -> pa.Table:
    """Return prompt_id and the median output_tokens of its answers, thinking included, sorted by prompt_id.

    The newest ten completed runs of the model on the prompt set count, whatever their settings. `benchmark_id` is that
    of the current run, if any; other runs of the same benchmark are excluded, so that all of its repeats know the same.
    """
    query = """
        select prompt_id, cast(ceil(median(output_tokens)) as integer) as output_tokens
        from raw.requests
        join raw.completions using (run_id, request_id)
        where option_index is null and error_kind is null and output_tokens is not null and run_id in (
            select run_id
            from raw.runs
            where state = 'completed' and model_id = $1 and prompt_set = $2
                and ($3::varchar is null or benchmark_id is distinct from $3)
            order by started_at desc, run_id desc
            limit 10
        )
        group by prompt_id
        order by prompt_id
    """
    return connection.sql(query, params=[model_id, prompt_set, benchmark_id]).to_arrow_table()
