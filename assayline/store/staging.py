"""A run's requests, put together once for all the metrics of its end.

Every metric goes back to `stg_requests`, which takes duplicates out of three tables and joins them: for a million
requests that is seconds of work and nearly all of the memory, and a summary alone asks for it five times. `stage_run`
does it once. Its copy is a temporary table of the same name, and DuckDB looks there first for what a view names without
a schema: the models are those of `sql/models/`, whoever reads them.

    with stage_run(connection, run_id):
        read_metric_table(connection, run_id)
"""

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb


@contextmanager
def stage_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, the metrics of this run read the copy, and other runs have no requests for this connection."""
    connection.execute("create temp table stg_requests as from main.stg_requests where run_id = ?", [run_id])
    try:
        yield
    finally:
        connection.execute("drop table temp.stg_requests")
