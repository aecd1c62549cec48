"""Part files: how workers make results durable without touching the database.

A part is a Parquet file of one table's rows, written aside, synced and renamed, so a reader sees a whole part or none.
`PartWriter` buffers rows and flushes them after `flush_rows` rows or `flush_interval_s` seconds, whichever is first:
that interval is the most work that a crash can cost.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.files import UNFINISHED, replace_file
from assayline.store.tables import TABLES, Record, table_of, to_arrow

ANSWERS = "completions"


def parts_dir(run_dir: Path, table: str) -> Path:
    """Where a run's parts of one table are."""
    return run_dir / "parts" / table


def write_part(run_dir: Path, table: str, name: str, records: Iterable[Record]) -> Path:
    """Writes one part durably. Raises StoreError if the file system refuses."""
    final = parts_dir(run_dir, table) / f"{name}.parquet"
    try:
        replace_file(final, lambda file: pq.write_table(to_arrow(table, records), file, compression="zstd"))
    except OSError as error:
        raise StoreError(
            f"Part file {final} cannot be written: {error}. Free space or fix the folder's rights, then give the same "
            "command again: it resumes the run, whose parts written so far are kept."
        ) from error
    return final


def part_unreadable(part: Path, error: Exception) -> StoreError:
    """The error for a part that its file system or its format does not let read."""
    return StoreError(
        f"Part {part} cannot be read: {error}. `python -m flows.rebuild {part.parents[2].name} --set-aside` "
        "renames it; after that the run can be resumed."
    )


def list_parts(run_dir: Path, table: str) -> list[Path]:
    """Finished parts of one table, by name."""
    folder = parts_dir(run_dir, table)
    return [folder / name for name in list_part_names(run_dir, table)]


def list_part_names(run_dir: Path, table: str) -> list[str]:
    """Their names alone: for thousands of parts a tenth of the time, where it is asked again and again."""
    try:
        names = os.listdir(parts_dir(run_dir, table))  # noqa: PTH208 - names are what is wanted
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.endswith(".parquet"))


def read_request_ids(run_dir: Path, writer: str) -> list[str]:
    """The requests that a writer's parts have answers to. Raises StoreError for a damaged part."""
    found: list[str] = []
    for part in list_parts(run_dir, ANSWERS):
        if part.name.startswith(f"{writer}-"):
            try:
                found += pq.read_table(part, columns=["request_id"])["request_id"].to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise part_unreadable(part, error) from error
    return found


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


def count_table(run_dir: Path, table: str) -> int:
    """Rows of all parts of a table."""
    return sum(count_rows(part) for part in list_parts(run_dir, table))


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
                write_part(self._run_dir, table, f"{self._prefix}-{self._sequence:06d}", buffer)
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


def ledger_name(part: Path) -> str:
    """What `loaded_parts` calls a part."""
    return f"{part.parent.name}/{part.name}"
