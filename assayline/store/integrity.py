"""Count in = count out: what `request_integrity` says of a run."""

import duckdb


def read_integrity(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, int]:
    """The run's counts of what must not be, by name; all 0 for a run that adds up."""
    found = connection.execute("select * exclude (run_id, is_sound) from request_integrity where run_id = ?", [run_id])
    names = [column[0] for column in found.description or ()]
    rows = found.fetchall()
    return dict(zip(names, rows[0], strict=True)) if rows else {"wrong_run_rows": 1}
