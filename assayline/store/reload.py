"""All of a run's parts anew: its rows are deleted and loaded again, in the caller's transaction."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from assayline.store.damage import describe_damage, find_damaged
from assayline.store.load import FILES_PER_LOAD, insert_parts
from assayline.store.parts import list_parts
from assayline.store.runs import delete_run
from assayline.store.tables import TABLES


def reload_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> dict[str, int]:
    """Returns rows by table. Raises DamagedPartsError, with every damaged part of the run, if there is one."""
    delete_run(connection, run_id, list(TABLES))
    rows = dict.fromkeys(TABLES, 0)
    try:
        for table in TABLES:
            parts = list_parts(run_dir, table)
            _check_columns(table, parts)
            for start in range(0, len(parts), FILES_PER_LOAD):
                rows[table] += insert_parts(connection, run_id, table, parts[start : start + FILES_PER_LOAD])
    except (duckdb.Error, pa.ArrowException, OSError, ValueError) as error:
        damaged: dict[Path, str] = {}
        for table in TABLES:
            damaged |= find_damaged(table, list_parts(run_dir, table))
        if damaged:
            raise describe_damage(run_id, damaged) from error
        raise
    return rows


def _check_columns(table: str, parts: list[Path]) -> None:
    """DuckDB would fill a column that a part does not have with NULL."""
    for part in parts:
        if pq.read_schema(part).names != TABLES[table].names:
            raise ValueError(f"{part} has other columns")
