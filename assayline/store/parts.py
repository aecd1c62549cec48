"""Part files: how a run makes results durable without touching the database.

A part is a Parquet file of one table's rows: a reader sees a whole part or none. A writer's parts have the number of
their rows in their names, so that counting them needs no look into them.
`PartWriter` buffers rows and flushes them after `flush_rows` rows or `flush_interval_s` seconds, whichever is first:
that interval is the most work that a crash can cost.
"""

import os
import re
import threading
import time
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM, UNFINISHED, replace_file
from assayline.store.tables import TABLES, Record, table_of, to_arrow

ANSWERS = "completions"
PARTS = "parts"
ROWS = re.compile(r"-(\d+)rows\.parquet$")


def parts_dir(run_dir: Path, table: str) -> Path:
    """Where a run's parts of one table are."""
    return run_dir / PARTS / table


def write_part(run_dir: Path, table: str, name: str, records: Iterable[Record]) -> Path:
    """Writes one part durably. Raises StoreError if the file system refuses."""
    path = parts_dir(run_dir, table) / f"{name}.parquet"
    try:
        replace_file(path, lambda file: pq.write_table(to_arrow(table, records), file, compression="zstd"))
    except OSError as error:
        raise StoreError(
            f"Part file {path} cannot be written: {error}. {MAKE_ROOM} Then give the same command again: it resumes "
            "the run, whose parts written so far are kept."
        ) from error
    return path


def part_unreadable(part: Path, error: Exception) -> StoreError:
    """The error for a part that its file system or its format does not let read."""
    return StoreError(
        f"Part {part} cannot be read: {error}. `assayline rebuild {part.parents[2].name} --set-aside` "
        "renames it; after that the run can be resumed."
    )


def list_parts(run_dir: Path, table: str) -> list[Path]:
    """List the finished parts of one table, by name. Raises StoreError."""
    folder = parts_dir(run_dir, table)
    return [folder / name for name in list_part_names(run_dir, table)]


def list_part_names(run_dir: Path, table: str) -> list[str]:
    """List the names of a table's finished parts, without making a path of each. Raises StoreError."""
    folder = parts_dir(run_dir, table)
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are needed, no paths
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"The parts in {folder} cannot be listed: {error}. hint: fix the folder's rights.") from error
    return sorted(name for name in names if name.endswith(".parquet"))


class StoredText(NamedTuple):
    """What a request was answered, or why not."""

    text: str | None = None
    error_kind: str | None = None
    error_message: str | None = None


def read_texts(run_dir: Path, request_ids: Collection[str]) -> dict[str, StoredText]:
    """Read the answers of some requests from the parts of a run, by request; a result before an error.

    Raises StoreError for a damaged part.
    """
    found: dict[str, StoredText] = {}
    for part in list_parts(run_dir, ANSWERS) if request_ids else ():
        for row in _read_answers(part, ["request_id", *StoredText._fields], request_ids):
            request_id = row.pop("request_id")
            if request_id not in found or row["error_kind"] is None:
                found[request_id] = StoredText(**row)
    return found


def _read_answers(part: Path, columns: list[str], request_ids: Collection[str]) -> list[dict[str, Any]]:
    try:
        rows = pq.read_table(part, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(part, error) from error
    wanted = pa.array(list(request_ids), pa.string())
    found: list[dict[str, Any]] = rows.filter(pc.is_in(rows["request_id"], value_set=wanted)).to_pylist()
    return found


def set_part_aside(part: Path) -> Path:
    """Rename a damaged part, so that no list has it any more. Returns its new path. Raises StoreError."""
    number, aside = 1, part.with_name(f"{part.name}.damaged")
    try:
        while aside.exists():
            number += 1
            aside = part.with_name(f"{part.name}.damaged-{number}")
        return part.rename(aside)
    except OSError as error:
        raise StoreError(f"{part} cannot be renamed to {aside.name}: {error}. {MAKE_ROOM}") from error


def remove_unfinished(run_dir: Path) -> None:
    """Removes what a killed writer had begun: nobody may be writing. Raises StoreError."""
    try:
        for path in run_dir.glob(f"parts/*/.*{UNFINISHED}"):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{error}: unfinished files of {run_dir} cannot be removed. Fix its rights.") from error


def count_rows(part: Path) -> int:
    """Rows of a part, from its footer."""
    return int(pq.read_metadata(part).num_rows)


def count_named_rows(run_dir: Path, table: str, names: Iterable[str]) -> dict[str, int]:
    """Rows of some parts: by their names, or else by their footers. Raises StoreError."""
    folder = parts_dir(run_dir, table)
    return {name: int(match[1]) if (match := ROWS.search(name)) else count_rows(folder / name) for name in names}


def count_table(run_dir: Path, table: str) -> int:
    """Rows of all parts of a table."""
    return sum(count_named_rows(run_dir, table, list_part_names(run_dir, table)).values())


class PartWriter:
    """Buffers records and writes them as parts. Several threads may add records; use as a context manager."""

    def __init__(self, run_dir: Path, writer: str, flush_rows: int, flush_interval_s: float) -> None:
        self._run_dir = run_dir
        self._prefix = f"{writer}-{uuid.uuid4().hex[:8]}"
        self._flush_rows = flush_rows
        self._flush_interval_s = flush_interval_s
        self._lock = threading.Lock()
        self._buffers: dict[str, list[Record]] = {table: [] for table in TABLES}
        self._flushed_s = time.monotonic()
        self._sequence = 0

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()

    def add(self, record: Record) -> None:
        """Take one record; flush when its buffer is full or old. Raises StoreError."""
        with self._lock:
            buffer = self._buffers[table_of(record)]
            buffer.append(record)
            if len(buffer) >= self._flush_rows or self._is_old():
                self._flush()

    def flush(self) -> None:
        """Write everything buffered. Raises StoreError; what was not written stays buffered."""
        with self._lock:
            self._flush()

    def flush_old(self) -> None:
        """Write everything buffered if the flush interval is over, when no record comes. Raises StoreError."""
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
    """What `loaded_parts` calls a part."""
    return f"{table}/{name}"
