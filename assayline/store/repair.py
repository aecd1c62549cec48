"""Which part files are unusable: DuckDB's own message does not always name the file.

Each part is read by itself, in a DuckDB of its own, as the one that met the error may take no more queries.
"""

from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from assayline.errors import DamagedPartsError, StoreError
from assayline.files import replace_file
from assayline.store.database import list_optional_columns
from assayline.store.parts import ledger_name
from assayline.store.tables import TABLES


def find_damaged(table: str, parts: list[Path]) -> dict[Path, str]:
    """Parts that cannot be read to their end, or are no parts of this table, each with the reason."""
    found = {}
    with duckdb.connect() as reader:
        for part in parts:
            if reason := _find_damage(reader, table, part):
                found[part] = reason
    return found


def describe_damage(run_id: str, damaged: dict[Path, str]) -> DamagedPartsError:
    """The error that names damaged parts and what helps."""
    (first, reason), more = next(iter(damaged.items())), len(damaged) - 1
    others = f" {more} more are damaged too." if more else ""
    return DamagedPartsError(
        f"Part {first} could not be loaded: {reason}.{others} Nothing of this load was stored; the parts are kept. "
        f"`assayline rebuild {run_id} --set-aside` renames what is damaged and loads the rest anew; after that "
        "the run can be resumed, and asks again for what was lost.",
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
    """How a part's columns differ from those of its table, in words; those of later versions may be missing."""
    expected, optional = TABLES[table].names, list_optional_columns(table)
    if names == [name for name in expected if name in names or name not in optional]:
        return None
    more = [name for name in names if name not in expected]
    less = [name for name in expected if name not in names and name not in optional]
    return f"its columns are not those of {table} (too many: {more or 'none'}, missing: {less or 'none'})"


def rescue_part(
    connection: duckdb.DuckDBPyConnection, run_id: str, table: str, damaged: Path, good: list[Path]
) -> bool:
    """Writes `damaged` anew, in place, from loaded rows. Returns whether that was possible. Raises StoreError."""
    query = "select loaded_rows from loaded_parts where run_id = ? and part = ?"
    ledger = connection.execute(query, [run_id, ledger_name(damaged.parent.name, damaged.name)]).fetchall()
    if not ledger:
        return False
    columns = ", ".join(TABLES[table].names)
    rest = f"select {columns} from {table} where run_id = ?"  # noqa: S608 - names are ours
    values: list[object] = [run_id]
    if good:
        none = f"select {columns} from {table} where false"  # noqa: S608 - names are ours
        every = f"{none} union all by name select * from read_parquet(?, union_by_name = true)"  # noqa: S608
        rest += f" except all select {columns} from ({every})"  # noqa: S608 - names are ours
        values.append([str(part) for part in good])
    rows = connection.sql(rest, params=values).to_arrow_table()
    if rows.num_rows != ledger[0][0]:
        return False
    try:
        replace_file(damaged, lambda file: pq.write_table(rows.cast(TABLES[table]), file, compression="zstd"))
    except OSError as error:
        raise StoreError(f"Part {damaged} cannot be written anew: {error}. Free space, then try again.") from error
    return True
