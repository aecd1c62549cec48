"""Ingest part files into the database, each part exactly once, however often this is called or killed.

The rows of new parts and their ledger rows are inserted in one transaction, so a part is in the database with its
ledger row or not at all. A part that is rewritten under the same name has the same rows (see `prepare.py`), so the
ledger need not track it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import DamagedPartsError
from assayline.files import replace_file, storing
from assayline.store.database import Row, read_rows, transaction
from assayline.store.metrics import forget_metrics
from assayline.store.parts import (
    ANSWERS,
    MERGED_NAME,
    TABLES,
    ledger_name,
    list_part_names,
    list_parts,
    parts_dir,
    read_sources,
)
from assayline.store.runs import delete_runs, insert_rows


class RunOutcome(NamedTuple):
    """Integrity and errors of a run."""

    broken: dict[str, int]
    """Counts of `request_integrity` that should be 0 and are not."""
    errors: dict[str, int]
    """Error rows by kind, most frequent first."""
    unsent: int
    """Requests that were not sent because the load ended."""
    sent: int
    """Results and errors of requests that reached an engine."""
    load_ends: dict[str, str]
    """Messages of workers on why the load ended early, by reason."""

    @property
    def error_rows(self) -> int:
        """Number of error rows."""
        return sum(self.errors.values())


def read_outcome(connection: duckdb.DuckDBPyConnection, run_id: str) -> RunOutcome:
    """Count integrity faults and errors of a run whose parts are ingested."""
    return read_outcomes(connection, [run_id])[run_id]


def read_outcomes(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> dict[str, RunOutcome]:
    """Count integrity faults and errors of runs whose parts are ingested."""

    def read(query: str) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {run_id: [] for run_id in run_ids}
        among = f"run_id in ({', '.join('?' * len(run_ids))})"  # one is an equality, which reaches both sides of joins
        for row in read_rows(connection, query.format(among=among), *run_ids):
            found[row.pop("run_id")].append(row)
        return found

    integrity = read("select * exclude (is_sound) from request_integrity where {among}")
    errors = read(
        "select run_id, error_kind, count(*) as requests from stg_requests where {among} and status = 'error' "
        "group by all order by requests desc, error_kind"
    )
    counts = read(
        "select run_id, count(*) filter (status = 'unsent') as unsent, "
        "count(*) filter (status in ('ok', 'error') and worker <> 'prepare') as sent from stg_requests "
        "where {among} group by run_id"
    )
    ends = read(
        "select run_id, details_json ->> '$.reason' as reason, message from engine_events "
        "where {among} and event = 'load_ended' order by at_s"
    )
    return {
        run_id: RunOutcome(
            broken={name: n for name, n in next(iter(integrity[run_id]), {"wrong_run_rows": 1}).items() if n},
            errors={str(row["error_kind"]): int(row["requests"]) for row in errors[run_id]},
            **next(iter(counts[run_id]), {"unsent": 0, "sent": 0}),
            load_ends={str(row["reason"]): str(row["message"] or "") for row in ends[run_id]},
        )
        for run_id in run_ids
    }


def find_damaged(table: str, parts: list[Path]) -> dict[Path, str]:
    """Return the parts that are unreadable or not of this table, with the reason."""
    found = {}
    with duckdb.connect() as reader:
        for part in parts:
            if reason := _find_damage(reader, table, part):
                found[part] = reason
    return found


def describe_damage(run_id: str, damaged: dict[Path, str]) -> DamagedPartsError:
    """Return the error for damaged parts, with a hint."""
    (first, reason), more = next(iter(damaged.items())), len(damaged) - 1
    others = f" {more} more are damaged too." if more else ""
    return DamagedPartsError(
        f"Part {first} could not be ingested: {reason}.{others} Nothing of this batch was stored; the parts are kept. "
        f"hint: run `assayline db rebuild {run_id} --set-aside`, which renames damaged parts and ingests the others, "
        "then resume the run to send the lost requests again.",
        damaged,
    )


def _find_damage(reader: duckdb.DuckDBPyConnection, table: str, part: Path) -> str | None:
    try:
        described = reader.execute("describe select * from read_parquet(?)", [str(part)]).fetchall()
        if difference := compare_columns(table, [str(name) for name, *_ in described]):
            return difference
        reader.execute("select bit_xor(hash(part)) from read_parquet(?) as part", [str(part)]).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def compare_columns(table: str, names: list[str]) -> str | None:
    """Describe how a part's columns differ from its table's; None if they are the same."""
    if names == (expected := TABLES[table].names):
        return None
    more = [name for name in names if name not in expected]
    less = [name for name in expected if name not in names]
    return f"its columns are not those of {table} (too many: {more or 'none'}, missing: {less or 'none'})"


def rescue_parts(
    connection: duckdb.DuckDBPyConnection, run_id: str, table: str, damaged: list[Path], good: list[Path]
) -> bool:
    """Write a table's lost parts again from ingested rows; return True if that was possible.

    Lost are those of the ledger that are not `good`, such as the sources of a damaged merged part. Which of them had a
    row is unknown, so each gets as many as it had. Raises StoreError.
    """
    kept = {ledger_name(table, name) for part in good for name in read_sources(part) or [part.name]}
    lost = {name: rows for name, rows in sorted(_read_ledger(connection, run_id, table).items()) if name not in kept}
    if not {ledger_name(table, part.name) for part in damaged if part.name != MERGED_NAME} <= lost.keys():
        return False
    columns = ", ".join(TABLES[table].names)
    rest = f"select {columns} from {table} where run_id = ?"  # noqa: S608 - names are ours
    values: list[object] = [run_id]
    if good:
        none = f"select {columns} from {table} where false"  # noqa: S608 - names are ours
        every = f"{none} union all by name select * from read_parquet(?, union_by_name = true)"  # noqa: S608
        rest += f" except all select {columns} from ({every})"  # noqa: S608 - names are ours
        values.append([str(part) for part in good])
    if table == ANSWERS:
        rest = f"from ({rest}) order by worker = 'prepare'"  # as the names of their parts
    rows = connection.sql(rest, params=values).to_arrow_table().cast(TABLES[table])
    if not lost or rows.num_rows != sum(lost.values()):
        return False
    for name, count in lost.items():
        some, rows = rows.slice(0, count), rows.slice(count)
        part = damaged[0].with_name(Path(name).name)
        with storing(f"Part {part} cannot be rewritten", "free space, then run the same command again."):
            replace_file(part, partial(pq.write_table, some, compression="zstd"))
    return True


FILES_PER_LOAD = 500
"""Maximum parts per transaction, so that a run of a million requests is ingested in steps."""

_UNREADABLE = (duckdb.Error, pa.ArrowException, OSError, ValueError)
"""Errors that a damaged part raises."""


def load_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> int:
    """Ingest the parts that are not in the ledger; return the number of rows. Raises StoreError for a damaged part."""
    loaded = 0
    for table in TABLES:
        new = list_new_parts(connection, run_id, run_dir, table)
        for start in range(0, len(new), FILES_PER_LOAD):
            parts = new[start : start + FILES_PER_LOAD]
            try:
                with transaction(connection):
                    loaded += insert_parts(connection, table, [(run_id, part) for part in parts])[run_id]
            except _UNREADABLE as error:
                if damaged := find_damaged(table, parts):
                    raise describe_damage(run_id, damaged) from error
                raise
    return loaded


def list_new_parts(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path, table: str) -> list[Path]:
    """List a table's parts that are not in the ledger, or have a source that is not in it."""
    known = _read_ledger(connection, run_id, table)
    folder, names = parts_dir(run_dir, table), list_part_names(run_dir, table)
    return [
        folder / name
        for name in names
        if any(ledger_name(table, one) not in known for one in read_sources(folder / name) or [name])
    ]


def _read_ledger(connection: duckdb.DuckDBPyConnection, run_id: str, table: str) -> dict[str, int]:
    query = "select part, loaded_rows from loaded_parts where run_id = ? and target_table = ?"
    return dict(connection.execute(query, [run_id, table]).fetchall())


def insert_parts(
    connection: duckdb.DuckDBPyConnection, table: str, parts: Sequence[tuple[str, Path]]
) -> dict[str, int]:
    """Insert parts of one table, with their runs, and their ledger rows in the caller's transaction.

    Return the number of rows by run. A merged part leaves out its sources in the ledger. Raises ValueError for other
    columns, because DuckDB fills missing columns with NULL and drops extra ones.
    """
    known = {run_id: _read_ledger(connection, run_id, table) for run_id in {run_id for run_id, _ in parts}}
    ledger: list[dict[str, Any]] = []
    ranges: list[tuple[str, str, int, int]] = []
    for run_id, part in parts:
        footer, first = pq.read_metadata(part), 0
        if difference := compare_columns(table, footer.schema.to_arrow_schema().names):
            raise ValueError(f"{part}: {difference}")
        for source, count in (read_sources(part) or {part.name: footer.num_rows}).items():
            if (name := ledger_name(table, source)) not in known[run_id]:
                ledger.append({"run_id": run_id, "part": name, "target_table": table, "loaded_rows": count})
                follows = ranges and ranges[-1][1] == str(part) and ranges[-1][3] == first
                ranges.append((run_id, str(part), ranges.pop()[2] if follows else first, first + count))
            first += count
    forget_metrics(connection, *known)
    connection.execute(
        f"insert into {table} by name "  # noqa: S608 - table is ours
        "select ranges.run_id, rows.* exclude (filename, file_row_number) "
        "from read_parquet(?, union_by_name = true, filename = true, file_row_number = true) as rows inner join "
        "(select unnest(?) as run_id, unnest(?) as filename, unnest(?) as first_row, unnest(?) as end_row) as ranges "
        "on rows.filename = ranges.filename and file_row_number >= first_row and file_row_number < end_row",
        [[str(part) for _, part in parts], *map(list, zip(*ranges, strict=True))],
    )
    if table == "tokens":  # its rows replace their JSON, which is as long as ten of them
        update = "update completions set prompt_logprobs_json = null where list_contains(?, run_id)"
        connection.execute(update, [list(known)])
    insert_rows(connection, "loaded_parts", ledger)
    return {run_id: sum(row["loaded_rows"] for row in ledger if row["run_id"] == run_id) for run_id in known}


def reload_parts(connection: duckdb.DuckDBPyConnection, run_dirs: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    """Replace the rows of runs with all their parts, in the caller's transaction; return the rows by run and table.

    Raises DamagedPartsError with every damaged part of a run.
    """
    delete_runs(connection, list(run_dirs), list(TABLES))
    rows = {run_id: dict.fromkeys(TABLES, 0) for run_id in run_dirs}
    try:
        for table in TABLES:
            parts = [(run_id, part) for run_id, run_dir in run_dirs.items() for part in list_parts(run_dir, table)]
            for start in range(0, len(parts), FILES_PER_LOAD):
                for run_id, count in insert_parts(connection, table, parts[start : start + FILES_PER_LOAD]).items():
                    rows[run_id][table] += count
    except _UNREADABLE as error:
        for run_id, run_dir in run_dirs.items():
            damaged: dict[Path, str] = {}
            for table in TABLES:
                damaged |= find_damaged(table, list_parts(run_dir, table))
            if damaged:
                raise describe_damage(run_id, damaged) from error
        raise
    return rows
