"""From part files to the database: every part exactly once, however often this is called or killed.

The rows of new parts and their ledger rows go in by one transaction, so a part is in the database with its ledger row
or not at all. A part that is written again under its name holds the same rows (`prepare.py` sees to it), so the ledger
need not know that it was.
"""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from assayline.store.database import transaction
from assayline.store.kept import forget_metrics
from assayline.store.parts import ANSWERS, ledger_name, list_part_names, list_parts, parts_dir
from assayline.store.repair import compare_columns, describe_damage, find_damaged
from assayline.store.runs import delete_run
from assayline.store.tables import TABLES

FILES_PER_LOAD = 500
"""Parts per transaction, so that a run of a million requests loads in steps."""

TAKEN_OVER = "taken-over"
"""Folder in runs of earlier versions, of shards that two workers may have answered."""

DELETE_SECOND_ANSWERS = """
    delete from completions
    where run_id = $run_id and rowid in (
        select rowid
        from completions
        where run_id = $run_id
        qualify row_number() over (
            partition by request_id order by error_kind is not null, finished_at_s nulls last, rowid
        ) > 1
    )
"""
"""Keeps one row per request: a result before an error, then the one that finished first."""

_UNREADABLE = (duckdb.Error, pa.ArrowException, OSError, ValueError)
"""What a damaged part raises."""


def load_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> int:
    """Load the parts that the ledger does not have yet. Returns rows loaded. Raises StoreError for a damaged part."""
    loaded = 0
    for table in TABLES:
        new = list_new_parts(connection, run_id, run_dir, table)
        for start in range(0, len(new), FILES_PER_LOAD):
            parts = new[start : start + FILES_PER_LOAD]
            try:
                with transaction(connection):
                    loaded += insert_parts(connection, run_id, table, parts)
            except _UNREADABLE as error:
                if damaged := find_damaged(table, parts):
                    raise describe_damage(run_id, damaged) from error
                raise
    return loaded


def list_new_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path, table: str) -> list[Path]:
    """List a table's parts that the ledger does not have."""
    query = "select part from loaded_parts where run_id = ? and target_table = ?"
    known = {name for (name,) in connection.execute(query, [run_id, table]).fetchall()}
    folder, names = parts_dir(run_dir, table), list_part_names(run_dir, table)
    return [folder / name for name in names if ledger_name(table, name) not in known]


def insert_parts(connection: duckdb.DuckDBPyConnection, run_id: str, table: str, parts: list[Path]) -> int:
    """Insert parts of one table with their ledger rows, inside the caller's transaction. Returns the rows."""
    _check_columns(table, parts)
    files = [str(part) for part in parts]
    forget_metrics(connection, run_id)
    connection.execute(
        f"insert into {table} by name select ? as run_id, * from read_parquet(?, union_by_name = true)",  # noqa: S608
        [run_id, files],
    )
    connection.execute(
        "insert into loaded_parts by name "
        "select ? as run_id, ? || '/' || parse_filename(file_name) as part, ? as target_table, "
        "num_rows as loaded_rows from parquet_file_metadata(?)",
        [run_id, table, table, files],
    )
    rows = connection.execute("select sum(num_rows)::bigint from parquet_file_metadata(?)", [files]).fetchall()
    return int(rows[0][0])


def reload_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> dict[str, int]:
    """Load all parts of a run in place of its rows, inside the caller's transaction. Returns the rows by table.

    Raises DamagedPartsError, with every damaged part of the run, if there is one.
    """
    delete_run(connection, run_id, list(TABLES))
    rows = dict.fromkeys(TABLES, 0)
    try:
        for table in TABLES:
            parts = list_parts(run_dir, table)
            for start in range(0, len(parts), FILES_PER_LOAD):
                rows[table] += insert_parts(connection, run_id, table, parts[start : start + FILES_PER_LOAD])
    except _UNREADABLE as error:
        damaged: dict[Path, str] = {}
        for table in TABLES:
            damaged |= find_damaged(table, list_parts(run_dir, table))
        if damaged:
            raise describe_damage(run_id, damaged) from error
        raise
    if (run_dir / TAKEN_OVER).exists():
        [(second,)] = connection.execute(DELETE_SECOND_ANSWERS, {"run_id": run_id}).fetchall()
        rows[ANSWERS] -= second
    return rows


def _check_columns(table: str, parts: list[Path]) -> None:
    """DuckDB would fill any column that a part does not have with NULL, and leave out one that only some have."""
    for part in parts:
        if difference := compare_columns(table, pq.read_schema(part).names):
            raise ValueError(f"{part}: {difference}")
