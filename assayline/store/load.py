"""From part files to the database: every part exactly once, however often this is called or killed.

The rows of new parts and their ledger rows go in by one transaction, so a part is in the database with its ledger row
or not at all.
"""

from pathlib import Path

import duckdb

from assayline.errors import StoreError
from assayline.store.parts import list_parts
from assayline.store.tables import TABLES

FILES_PER_LOAD = 500
"""Parts per transaction, so that a run of a million requests loads in steps."""


def load_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> int:
    """Loads the parts that the ledger does not have yet. Returns rows loaded. Raises StoreError for a damaged part."""
    known = {
        name for (name,) in connection.execute("select part from loaded_parts where run_id = ?", [run_id]).fetchall()
    }
    loaded = 0
    for table in TABLES:
        new = [part for part in list_parts(run_dir, table) if _ledger_name(part) not in known]
        for start in range(0, len(new), FILES_PER_LOAD):
            loaded += _load(connection, run_id, table, new[start : start + FILES_PER_LOAD])
    return loaded


def _load(connection: duckdb.DuckDBPyConnection, run_id: str, table: str, parts: list[Path]) -> int:
    files = [str(part) for part in parts]
    connection.execute("begin")
    try:
        connection.execute(
            f"insert into {table} by name select ? as run_id, * from read_parquet(?)",  # noqa: S608 - table is ours
            [run_id, files],
        )
        connection.execute(
            "insert into loaded_parts by name "
            "select ? as run_id, ? || '/' || parse_filename(file_name) as part, ? as target_table, "
            "num_rows as loaded_rows from parquet_file_metadata(?)",
            [run_id, table, table, files],
        )
        connection.execute("commit")
    except duckdb.Error as error:
        connection.execute("rollback")
        what = _find_damaged(connection, parts) or f"one of {parts[0].parent}"
        raise StoreError(
            f"Part {what} could not be loaded: {error}. Nothing of this load was stored; "
            "the parts are kept. If it is damaged, move it away and run again."
        ) from error
    rows = connection.execute("select sum(num_rows)::bigint from parquet_file_metadata(?)", [files]).fetchall()
    return int(rows[0][0])


def _find_damaged(connection: duckdb.DuckDBPyConnection, parts: list[Path]) -> Path | None:
    """The first part that cannot be read by itself: DuckDB's message does not always name the file."""
    for part in parts:
        try:
            connection.execute("select bit_xor(hash(part)) from read_parquet(?) as part", [str(part)]).fetchall()
        except duckdb.Error:
            return part
    return None


def _ledger_name(part: Path) -> str:
    return f"{part.parent.name}/{part.name}"
