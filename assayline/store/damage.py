"""Which part files are of no use: DuckDB's own message does not always name the file.

Each part is read by itself, in a DuckDB of its own, as the one that met the error may take no more queries.
"""

from pathlib import Path

import duckdb

from assayline.errors import DamagedPartsError
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
        f"`python -m flows.rebuild {run_id} --set-aside` renames what is damaged and loads the rest anew; after that "
        "the run can be resumed, and asks again for what was lost.",
        damaged,
    )


def _find_damage(reader: duckdb.DuckDBPyConnection, table: str, part: Path) -> str | None:
    try:
        described = reader.execute("describe select * from read_parquet(?)", [str(part)]).fetchall()
        if difference := _compare_columns(table, [str(name) for name, *_ in described]):
            return difference
        reader.execute("select bit_xor(hash(part)) from read_parquet(?) as part", [str(part)]).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def _compare_columns(table: str, names: list[str]) -> str | None:
    expected = TABLES[table].names
    if names == expected:
        return None
    more, less = [name for name in names if name not in expected], [name for name in expected if name not in names]
    return f"its columns are not those of {table} (too many: {more or 'none'}, missing: {less or 'none'})"
