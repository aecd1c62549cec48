"""Database access of the flow's process: short connections in a separate thread.

In the main thread, DuckDB replaces the exception of a signal handler with its own error, so Ctrl-C and Prefect's
cancellation would look like failures.

DuckDB gets little memory, whatever the size of a run, and spills to disk. Some operations cannot spill (a percentile
keeps its values, a row of megabytes is one piece), so work that runs out of memory is retried with more.

DuckDB allows one process to write a file, and not while another one reads it, so an open shell would block every run.
While the database is locked, work goes to a stand-in: a copy, `stand-in/assayline.duckdb` in the data folder. The first
command that finds the database free moves new runs, verdicts and pins into it and removes the stand-in.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import duckdb

from assayline.errors import DatabaseLockedError, DatabaseUnusableError, StoreError
from assayline.settings import Settings
from assayline.store.database import Connection, Row, connect, read_rows, transaction
from assayline.store.parts import TABLES
from assayline.store.runs import delete_run, mark_interrupted
from assayline.store.views import quote_text

FOLDER = "stand-in"
RUN_TABLES = (*TABLES, "scorers", "scores", "loads", "slos", "loaded_parts", "measured_runs", "metric_values", "runs")
RUN_STATE = """
    select
        run_id, attempt, finished_at,
        (select count(*) from {database}.raw.loaded_parts as p where p.run_id = r.run_id) as parts,
        (select max(scored_at) from {database}.raw.scorers as s where s.run_id = r.run_id) as scored_at
    from {database}.raw.runs as r
"""
"""The state of every run. `_weigh` orders states: the greater one is newer."""

DATED_TABLES = (
    ("verdicts", ("run_id", "baseline_run_id", "judged_at"), "judged_at"),
    ("baselines", ("baseline",), "pinned_at"),
)
"""Tables of which the newest row per key counts: table, key and time column."""


def find_stand_in(database: Path) -> Path:
    """Return the path of a database's stand-in. It has the same file name, which views may rely on."""
    return database.parent / FOLDER / database.name


@contextmanager
def connect_stand_in(
    database: Path, wait_s: float, memory_bytes: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the stand-in, and create it if it is missing. Raises DatabaseLockedError or StoreError."""
    stand_in = find_stand_in(database)
    if not stand_in.exists():
        _copy(database, stand_in, wait_s)
    with connect(stand_in, wait_s, memory_bytes=memory_bytes) as connection:
        yield connection


def _copy(database: Path, stand_in: Path, wait_s: float) -> None:
    """Copy the database with its write-ahead log, then rename the copy.

    A concurrent writer can make the copy unreadable. Then the stand-in starts empty: it stores new runs, without
    earlier ones to compare them with.
    """
    draft = stand_in.parent / f"draft-{time.time_ns()}" / stand_in.name
    try:
        draft.parent.mkdir(parents=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(database, draft)
            shutil.copyfile(_log_of(database), _log_of(draft))
        try:
            with connect(draft, wait_s):
                pass
        except DatabaseUnusableError:
            draft.unlink()
            _log_of(draft).unlink(missing_ok=True)
            with connect(draft, wait_s):
                pass
        if not stand_in.exists():
            draft.rename(stand_in)
    except OSError as error:
        raise StoreError(
            f"{database} is locked by another program, and the copy {stand_in} cannot be created: {error}. hint: free "
            "space in the data folder, or close that program, then run the same command again."
        ) from error
    finally:
        shutil.rmtree(draft.parent, ignore_errors=True)


def merge_stand_in(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    """Move newer runs, verdicts and pins from the stand-in into the open database, and remove the stand-in.

    A stand-in in use by another process stays for the next time.
    """
    stand_in = find_stand_in(database)
    if not stand_in.exists():
        return
    try:
        with connect(stand_in, 0):
            pass  # migrates a stand-in of an earlier version, and checkpoints its write-ahead log
        connection.execute(f"attach {quote_text(str(stand_in))} as stand_in")
    except (DatabaseLockedError, duckdb.IOException):
        return
    try:
        with transaction(connection):
            _merge_runs(connection)
            for table, keys, time_column in DATED_TABLES:
                _merge_dated(connection, table, keys, time_column)
        done = stand_in.with_name(f"merged-{time.time_ns()}")
        stand_in.rename(done)  # while it is locked: the next process that needs a stand-in creates a new one
    finally:
        connection.execute("detach stand_in")
    done.unlink()


def _merge_runs(connection: duckdb.DuckDBPyConnection) -> None:
    here = {
        row["run_id"]: _weigh(row) for row in read_rows(connection, RUN_STATE.format(database=_name_of(connection)))
    }
    there = {row["run_id"]: _weigh(row) for row in read_rows(connection, RUN_STATE.format(database="stand_in"))}
    newer = [run_id for run_id, weight in there.items() if run_id not in here or weight > here[run_id]]
    for run_id in newer:
        delete_run(connection, run_id, list(TABLES))
        for table in RUN_TABLES:
            connection.execute(f"insert into {table} by name from stand_in.raw.{table} where run_id = ?", [run_id])


def _merge_dated(connection: duckdb.DuckDBPyConnection, table: str, keys: tuple[str, ...], time_column: str) -> None:
    here, there = f"raw.{table} as here", f"stand_in.raw.{table} as there"
    same = " and ".join(f"there.{key} = here.{key}" for key in keys)
    newer = f"{same} and there.{time_column} > here.{time_column}"
    connection.execute(f"delete from {here} where exists (from {there} where {newer})")  # noqa: S608 - names are ours
    connection.execute(f"insert into {table} by name from {there} where not exists (from {here} where {same})")


def _weigh(state: Row) -> tuple[int, bool, int, datetime]:
    return (state["attempt"], state["finished_at"] is not None, state["parts"], state["scored_at"] or datetime.min)


def _name_of(connection: duckdb.DuckDBPyConnection) -> str:
    [(name,)] = connection.execute("select current_database()").fetchall()
    return '"' + str(name).replace('"', '""') + '"'


def _log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}.wal")


Answer = TypeVar("Answer")
GENEROUS = 8
"""Memory of the second try as a multiple of the usual; the third uses DuckDB's default."""


class DatabaseThread:
    """Run work on the database, one piece after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "database")
        self._has_marked = False
        self.held: str | None = None
        """Message on the holder of the database, if the last work used the stand-in; otherwise None."""

    @property
    def path(self) -> Path:
        """The file that the last work used."""
        path = self._settings.database_path
        return path if self.held is None else find_stand_in(path)

    def run(
        self,
        work: Callable[[Connection], Answer],
        wait_s: float | None = None,
        checkpoint: bool = True,
        may_stand_in: bool = True,
    ) -> Answer:
        """Return the result of `work` on an open connection. `work` is called again if memory runs out.

        If another program locks the database for longer than `wait_s` (default: the setting), the work uses the
        stand-in, or raises DatabaseLockedError unless `may_stand_in`. Without `checkpoint`, writes of `work` stay in
        the journal next to the file (see `connect`). Raises StoreError.
        """

        def connect_and_work() -> Answer:
            usual = self._settings.database_memory_bytes
            for memory_bytes in (usual, GENEROUS * usual):
                try:
                    return connect_with(memory_bytes)
                except StoreError as error:
                    if not isinstance(error.__cause__, duckdb.OutOfMemoryException):
                        raise
            return connect_with(None)

        def connect_with(memory_bytes: int | None) -> Answer:
            path = self._settings.database_path
            wait = self._settings.database_wait_s if wait_s is None else wait_s
            has_waited = find_stand_in(path).exists()
            try:
                with connect(path, 0 if has_waited else wait, memory_bytes=memory_bytes, checkpoint=checkpoint) as own:
                    self.held = None
                    merge_stand_in(own, path)
                    if not self._has_marked:
                        mark_interrupted(own, self._settings.data_dir / "runs")
                        self._has_marked = True
                    return work(own)
            except DatabaseLockedError as error:
                if not may_stand_in:
                    raise
                self.held = str(error)
            with connect_stand_in(path, wait, memory_bytes) as stand_in:
                return work(stand_in)

        return self._thread.submit(connect_and_work).result()

    def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return the result of `work` on a read-only connection, shared with other readers and never a stand-in.

        Queries use DuckDB's default memory limit, and end when this call is interrupted. Raises StoreError.
        """
        opened: list[Connection] = []

        def connect_and_work() -> Answer:
            with connect(self._settings.database_path, self._settings.database_wait_s, read_only=True) as connection:
                opened.append(connection)
                return work(connection)

        done = self._thread.submit(connect_and_work)
        try:
            return done.result()
        except BaseException:
            while opened and not done.done():  # `work` may begin another query
                with suppress(duckdb.Error):  # it has just closed the connection
                    opened[0].interrupt()
                time.sleep(0.01)
            raise


def describe_stand_in(database: DatabaseThread) -> str | None:
    """Explain that the last work used the stand-in; None otherwise."""
    return database.held and (
        f"{database.held} Results go to a copy, {database.path}, and the next command that finds the database free "
        "moves them into it."
    )
