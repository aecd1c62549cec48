"""Part files: how workers make results durable without touching the database.

A part is a Parquet file of one table's rows: a reader sees a whole part or none (`places/`). A worker's parts have the
number of their rows in their names, so that counting them needs no look into them.
`PartWriter` buffers rows and flushes them after `flush_rows` rows or `flush_interval_s` seconds, whichever is first:
that interval is the most work that a crash can cost.
"""

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.files import UNFINISHED
from assayline.places.home import place_of
from assayline.store.tables import TABLES, Record, table_of, to_arrow

ANSWERS = "completions"
PARTS = "parts"
SHOWN_AGE_S = 2.0
"""Age of a store's list of parts that is good enough to show how far a run is."""
ROWS = re.compile(r"-(\d+)rows\.parquet$")


def parts_dir(run_dir: Path, table: str) -> Path:
    """Where a run's parts of one table are."""
    return run_dir / PARTS / table


def part_folder(table: str) -> str:
    """The same as a key of the run's place."""
    return f"{PARTS}/{table}"


def write_part(run_dir: Path, table: str, name: str, records: Iterable[Record]) -> Path:
    """Writes one part durably. Raises StoreError if the file system, or the store, refuses."""
    place, key = place_of(run_dir), f"{part_folder(table)}/{name}.parquet"
    try:
        place.write(key, lambda file: pq.write_table(to_arrow(table, records), file, compression="zstd"))
    except OSError as error:
        raise StoreError(
            f"Part file {place.name}/{key} cannot be written: {error}. {place.advice} Then give the same command "
            "again: it resumes the run, whose parts written so far are kept."
        ) from error
    return parts_dir(run_dir, table) / f"{name}.parquet"


def part_unreadable(part: Path, error: Exception) -> StoreError:
    """The error for a part that its file system or its format does not let read."""
    return StoreError(
        f"Part {part} cannot be read: {error}. `assayline rebuild {part.parents[2].name} --set-aside` "
        "renames it; after that the run can be resumed."
    )


def list_parts(run_dir: Path, table: str) -> list[Path]:
    """Finished parts of one table, by name. Raises StoreError for a store that does not give them."""
    return fetch_parts(run_dir, table, list_part_names(run_dir, table))


def fetch_parts(run_dir: Path, table: str, names: Iterable[str]) -> list[Path]:
    """Some parts of a table, on this machine. Raises StoreError for a store that does not give them."""
    place = place_of(run_dir)
    try:
        return place.fetch(part_folder(table), names)
    except OSError as error:
        raise StoreError(f"Parts of {place.name} cannot be copied: {error}. {place.advice}") from error


def list_part_names(run_dir: Path, table: str, max_age_s: float = 0.0) -> list[str]:
    """Their names alone: for thousands of parts a tenth of the time, where it is asked again and again.

    Who only shows something to people may take a store's list that is `max_age_s` old. Raises StoreError.
    """
    place = place_of(run_dir)
    try:
        names = place.names(part_folder(table), max_age_s)
    except OSError as error:
        raise StoreError(f"Parts of {place.name} cannot be listed: {error}. {place.advice}") from error
    return sorted(name for name in names if name.endswith(".parquet"))


def read_request_ids(run_dir: Path, writer: str) -> list[str]:
    """The requests that a writer's parts have answers to. Raises StoreError for a damaged part."""
    found: list[str] = []
    for part in _fetch_answers(run_dir, [writer]):
        try:
            found += pq.read_table(part, columns=["request_id"])["request_id"].to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise part_unreadable(part, error) from error
    return found


class StoredText(NamedTuple):
    """What a request was answered, or why not."""

    text: str | None = None
    error_kind: str | None = None
    error_message: str | None = None


def read_texts(
    run_dir: Path, request_ids: Collection[str], writers: Collection[str] | None = None
) -> dict[str, StoredText]:
    """Answers in the parts of some writers (None: in all parts), by request; a result before an error.

    Raises StoreError for a damaged part.
    """
    found: dict[str, StoredText] = {}
    for part in _fetch_answers(run_dir, writers) if request_ids else ():
        for row in _read_answers(part, ["request_id", *StoredText._fields], request_ids):
            request_id = row.pop("request_id")
            if request_id not in found or row["error_kind"] is None:
                found[request_id] = StoredText(**row)
    return found


def _fetch_answers(run_dir: Path, writers: Collection[str] | None) -> list[Path]:
    names = list_part_names(run_dir, ANSWERS)
    if writers is not None:
        names = [name for name in names if any(name.startswith(f"{writer}-") for writer in writers)]
    return fetch_parts(run_dir, ANSWERS, names)


def _read_answers(part: Path, columns: list[str], request_ids: Collection[str]) -> list[dict[str, Any]]:
    try:
        rows = pq.read_table(part, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(part, error) from error
    wanted = pa.array(list(request_ids), pa.string())
    found: list[dict[str, Any]] = rows.filter(pc.is_in(rows["request_id"], value_set=wanted)).to_pylist()
    return found


def set_part_aside(run_dir: Path, part: Path) -> Path:
    """Renames a damaged part, so that it is none any more. Returns its new path on this machine. Raises StoreError."""
    place, folder = place_of(run_dir), part_folder(part.parent.name)
    number, name = 1, f"{part.name}.damaged"
    try:
        while place.exists(f"{folder}/{name}"):
            number += 1
            name = f"{part.name}.damaged-{number}"
        place.move(f"{folder}/{part.name}", f"{folder}/{name}")
    except OSError as error:
        raise StoreError(f"{part} cannot be renamed to {name}: {error}. {place.advice}") from error
    return part.with_name(name)


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
    found, others = {}, []
    for name in names:
        if match := ROWS.search(name):
            found[name] = int(match[1])
        else:
            others.append(name)
    return found | {part.name: count_rows(part) for part in fetch_parts(run_dir, table, others)}


def count_table(run_dir: Path, table: str) -> int:
    """Rows of all parts of a table."""
    return sum(count_named_rows(run_dir, table, list_part_names(run_dir, table)).values())


class PartWriter:
    """Buffers a worker's records and writes them as parts. Not thread-safe; use as a context manager."""

    def __init__(
        self,
        run_dir: Path,
        writer: str,
        flush_rows: int,
        flush_interval_s: float,
        may_store_answers: Callable[[], bool] = lambda: True,
        on_stored: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_store_answers` is asked before each part of answers, which are kept back if not; `on_stored` hears of
        every flush that kept nothing back.
        """
        self._run_dir = run_dir
        self._prefix = f"{writer}-{uuid.uuid4().hex[:8]}"
        self._may_store_answers = may_store_answers
        self._on_stored = on_stored
        self._flush_rows = flush_rows
        self._flush_interval_s = flush_interval_s
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
        """Takes one record; flushes when the buffer is full or old."""
        buffer = self._buffers[table_of(record)]
        buffer.append(record)
        if len(buffer) >= self._flush_rows or time.monotonic() - self._flushed_s >= self._flush_interval_s:
            self.flush()

    def flush(self) -> None:
        """Writes everything buffered."""
        is_kept_back = False
        for table, buffer in self._buffers.items():
            if buffer and table == ANSWERS and not self._may_store_answers():
                is_kept_back = True
            elif buffer:
                write_part(self._run_dir, table, f"{self._prefix}-{self._sequence:06d}-{len(buffer)}rows", buffer)
                self._sequence += 1
                buffer.clear()
        self._flushed_s = time.monotonic()
        if not is_kept_back:
            self._on_stored()

    def flush_old(self) -> None:
        """Writes what has waited for its time, where no record comes that would do so."""
        if time.monotonic() - self._flushed_s >= self._flush_interval_s:
            self.flush()

    def begin_anew(self, writer: str) -> None:
        """Drops the answers that are not written, and gives the parts to come another name."""
        self._buffers[ANSWERS].clear()
        self._prefix, self._sequence = writer, 0


def ledger_name(table: str, name: str) -> str:
    """What `loaded_parts` calls a part."""
    return f"{table}/{name}"
