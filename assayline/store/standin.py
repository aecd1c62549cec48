"""The stand-in: a copy of the database that runs write to while another program holds the file itself.

DuckDB lets one process write a file, and none while another one reads it, so an open shell would stop every run. A
stand-in is a copy of the database, `stand-in/assayline.duckdb` in the data folder. Runs, gates and reports use it as
long as the database is held. The first command that finds the database free moves new runs, verdicts and pins into it
and removes the stand-in.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import duckdb

from assayline.errors import DatabaseLockedError, DatabaseUnusableError, StoreError
from assayline.store.database import Row, connect, read_rows, transaction
from assayline.store.kept import keep_metrics, list_unkept, stage_run
from assayline.store.runs import delete_run
from assayline.store.tables import TABLES
from assayline.store.views import quote_text

FOLDER = "stand-in"
RUN_TABLES = (*TABLES, "scorers", "scores", "loads", "slos", "loaded_parts", "runs")
RUN_STATE = """
    select
        run_id, attempt, finished_at,
        (select count(*) from {database}.main.loaded_parts as p where p.run_id = r.run_id) as parts,
        (select max(scored_at) from {database}.main.scorers as s where s.run_id = r.run_id) as scored_at
    from {database}.main.runs as r
"""
"""The state of every run: of two states, the one that compares greater in `_weigh` is the newer one."""

DATED_TABLES = (
    ("verdicts", ("run_id", "baseline_run_id", "judged_at"), "judged_at"),
    ("baselines", ("baseline",), "pinned_at"),
)
"""Tables of which the newest rows of a key count: the table, its key and when a row was made."""


def find_stand_in(database: Path) -> Path:
    """Where the stand-in of a database is, if there is one. It has the same file name, which views may rely on."""
    return database.parent / FOLDER / database.name


@contextmanager
def connect_stand_in(
    database: Path, wait_s: float, memory_bytes: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens the stand-in, which is made if there is none. Raises DatabaseLockedError or StoreError."""
    stand_in = find_stand_in(database)
    if not stand_in.exists():
        _copy(database, stand_in, wait_s)
    with connect(stand_in, wait_s, memory_bytes=memory_bytes) as connection:
        yield connection


def _copy(database: Path, stand_in: Path, wait_s: float) -> None:
    """Copies the database with its write-ahead log, then gives the copy its name.

    A program that writes at this moment can make the copy unreadable. Then the stand-in begins empty: it holds the runs
    to come, and nothing to compare them with.
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
            f"{database} is held by another program, and {stand_in} cannot be made in its place: {error}. Free space "
            "in the data folder, or close that program, then give the same command again."
        ) from error
    finally:
        shutil.rmtree(draft.parent, ignore_errors=True)


def merge_stand_in(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    """Moves newer runs, verdicts and pins from the stand-in into the open database, and removes the stand-in.

    If another process uses the stand-in, it stays for the next time.
    """
    stand_in = find_stand_in(database)
    if not stand_in.exists():
        return
    try:
        with connect(stand_in, 0):
            pass  # migrates a stand-in of an earlier version, and empties its write-ahead log
        connection.execute(f"attach {quote_text(str(stand_in))} as stand_in")
    except (DatabaseLockedError, duckdb.IOException):
        return
    try:
        with transaction(connection):
            run_ids = _merge_runs(connection)
            for table, keys, time_column in DATED_TABLES:
                _merge_dated(connection, table, keys, time_column)
        done = stand_in.with_name(f"merged-{time.time_ns()}")
        stand_in.rename(done)  # while it is locked: the next process to look for a stand-in makes a new one
    finally:
        connection.execute("detach stand_in")
    done.unlink()
    for run_id in set(run_ids) & set(list_unkept(connection)):
        with stage_run(connection, run_id):
            keep_metrics(connection, run_id)


def _merge_runs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    here = {
        row["run_id"]: _weigh(row) for row in read_rows(connection, RUN_STATE.format(database=_name_of(connection)))
    }
    there = {row["run_id"]: _weigh(row) for row in read_rows(connection, RUN_STATE.format(database="stand_in"))}
    newer = [run_id for run_id, weight in there.items() if run_id not in here or weight > here[run_id]]
    for run_id in newer:
        delete_run(connection, run_id, list(TABLES))
        for table in RUN_TABLES:
            connection.execute(f"insert into {table} by name from stand_in.main.{table} where run_id = ?", [run_id])
    return newer


def _merge_dated(connection: duckdb.DuckDBPyConnection, table: str, keys: tuple[str, ...], time_column: str) -> None:
    here, there = f"main.{table} as here", f"stand_in.main.{table} as there"
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
