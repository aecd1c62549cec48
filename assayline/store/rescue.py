"""What the database still has of a part that got damaged after it was loaded: written as a part again.

Rows do not say which part they came from. Those that no good part holds are the damaged part's, where their number is
the one that the ledger has for it; where it is not, nothing is guessed.
"""

from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from assayline.durable import replace_file
from assayline.errors import StoreError
from assayline.store.load import ledger_name
from assayline.store.tables import TABLES


def rescue_part(
    connection: duckdb.DuckDBPyConnection, run_id: str, table: str, damaged: Path, good: list[Path]
) -> bool:
    """Writes `damaged` anew, in place, from loaded rows. Returns whether that was possible. Raises StoreError."""
    query = "select loaded_rows from loaded_parts where run_id = ? and part = ?"
    ledger = connection.execute(query, [run_id, ledger_name(damaged)]).fetchall()
    if not ledger:
        return False
    columns = ", ".join(TABLES[table].names)
    rest = f"select {columns} from {table} where run_id = ?"  # noqa: S608 - names are ours
    values: list[object] = [run_id]
    if good:
        rest += f" except all select {columns} from read_parquet(?)"  # noqa: S608 - names are ours
        values.append([str(part) for part in good])
    rows = connection.sql(rest, params=values).to_arrow_table()
    if rows.num_rows != ledger[0][0]:
        return False
    try:
        replace_file(damaged, lambda file: pq.write_table(rows.cast(TABLES[table]), file, compression="zstd"))
    except OSError as error:
        raise StoreError(f"Part {damaged} cannot be written anew: {error}. Free space, then try again.") from error
    return True
