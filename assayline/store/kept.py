"""A run's metrics, kept when it has ended: rows of the models that are read as a table from then on.

Whoever changes rows of a run calls `forget_metrics` in the same transaction. So what is kept is never older than what
it was computed from, and a run that is under way, taken up again or scored anew is computed when it is read.

    with stage_run(connection, run_id):
        keep_metrics(connection, run_id)
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime

import duckdb

from assayline.errors import StoreError
from assayline.store.database import list_models, transaction
from assayline.store.views import KEPT, LIVE, ModelFile, list_tables_of_runs, quote_text, read_model, work_in

MANY_REQUESTS = 50_000
"""A run of more is computed in pieces where a model says so, for little memory; a smaller one at once, for time."""


def keep_metrics(connection: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    """Computes and stores the run's rows of every model that is kept, in a transaction of its own.

    Returns whether they are kept: they are not where a request or an answer is there twice, as readers then have to
    leave one out. Raises StoreError if there is no such run.
    """
    if not connection.execute("select 1 from main.runs where run_id = ?", [run_id]).fetchall():
        raise StoreError(f"There is no run {run_id} in the database. `from runs` lists those that there are.")
    with transaction(connection):
        forget_metrics(connection, run_id)
        models = [read_model(file) for file in list_models()]
        if any(_leaves_rows_out(connection, model, run_id) for model in models if model.table):
            return False
        tables = _list_tables(connection)
        kept = [model for model in models if model.name in tables]
        requests = connection.execute("select count(*) from main.requests where run_id = ?", [run_id]).fetchall()[0][0]
        with _read_alone(connection, run_id):
            for model in kept:
                _keep_model(connection, model, run_id, in_pieces=requests > MANY_REQUESTS)
            for model in kept:
                connection.execute(f"drop view temp.{model.name}")
        now = datetime.now(UTC).replace(tzinfo=None)
        connection.execute(f"insert into {KEPT}.kept_runs values (?, ?)", [run_id, now])  # noqa: S608 - names are ours
    return True


def forget_metrics(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """The run's metrics are computed when they are read, from now on. Inside the caller's transaction."""
    if not is_kept(connection, run_id):
        return
    for table in _list_tables(connection):
        connection.execute(f"delete from {KEPT}.{table} where run_id = ?", [run_id])  # noqa: S608 - names are ours


def is_kept(connection: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    """Whether the run's metrics are kept."""
    return bool(connection.execute(f"select 1 from {KEPT}.kept_runs where run_id = ?", [run_id]).fetchall())  # noqa: S608


@contextmanager
def read_kept(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> Iterator[None]:
    """Meanwhile, if the metrics of all these runs are kept, views named without a schema are read where they are kept.

    For queries that ask of these runs and no others. The same rows would come from `main`, but planning the part that
    computes takes longer than reading the other: a tenth of a second for one view, and two for a comparison of speeds.
    """
    with work_in(connection, KEPT) if run_ids and _are_kept(connection, run_ids) else nullcontext():
        yield


@contextmanager
def read_all_kept(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> Iterator[None]:
    """The same for queries that ask of these runs and of all that have ended: if none is left to be computed."""
    are_kept = _are_kept(connection, run_ids) and not list_unkept(connection)
    with work_in(connection, KEPT) if are_kept else nullcontext():
        yield


@contextmanager
def read_benchmark_kept(connection: duckdb.DuckDBPyConnection, benchmark_id: str) -> Iterator[None]:
    """The same for queries that ask of the runs of a benchmark that are completed."""
    completed = "select run_id from main.runs where benchmark_id = ? and state = 'completed'"
    rows = connection.execute(completed, [benchmark_id]).fetchall()
    with read_kept(connection, *(run_id for (run_id,) in rows)):
        yield


def _are_kept(connection: duckdb.DuckDBPyConnection, run_ids: tuple[str, ...]) -> bool:
    kept = f"select count(*) from {KEPT}.kept_runs where list_contains(?::varchar[], run_id)"  # noqa: S608
    return connection.execute(kept, [list(run_ids)]).fetchall() == [(len(set(run_ids)),)]


def list_unkept(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Runs that have ended and whose metrics are not kept, oldest first."""
    unkept = f"from main.runs anti join {KEPT}.kept_runs using (run_id) where state <> 'running'"
    rows = connection.execute(f"select run_id {unkept} order by started_at, run_id").fetchall()
    return [run_id for (run_id,) in rows]


def _list_tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    tables = "select table_name from duckdb_tables() where schema_name = ? and database_name = current_database()"
    return [name for (name,) in connection.execute(tables, [KEPT]).fetchall()]


def _leaves_rows_out(connection: duckdb.DuckDBPyConnection, model: ModelFile, run_id: str) -> bool:
    counts = [
        connection.execute(f"select count(*) from {relation} where run_id = ?", [run_id]).fetchall()  # noqa: S608
        for relation in (f"main.{model.table}", f"{LIVE}.{model.name}")
    ]
    return counts[0] != counts[1]


def _keep_model(connection: duckdb.DuckDBPyConnection, model: ModelFile, run_id: str, in_pieces: bool) -> None:
    """Stores the model's rows, and lets the models after it read them instead of computing them again."""
    insert = f"insert into {KEPT}.{model.name} select * from {LIVE}.{model.name} where run_id = ?"  # noqa: S608
    if model.column and in_pieces:
        for value in model.values:
            connection.execute(f"{insert} and {model.column} = ?", [run_id, value])
    else:
        connection.execute(insert, [run_id])
    _narrow(connection, KEPT, model.name, run_id)


def _narrow(connection: duckdb.DuckDBPyConnection, schema: str, name: str, run_id: str) -> None:
    """Until the view is dropped, a name without a schema has this run's rows of it and no others."""
    of_run = f"select * from {schema}.{name} where run_id = {quote_text(run_id)}"  # noqa: S608 - names are ours
    connection.execute(f"create temp view {name} as {of_run}")


@contextmanager
def _read_alone(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, raw tables named without a schema have this run's rows and no others; they cannot be written.

    Views say the same of the run, with a fifth to a third less to plan: none asks which runs are kept.
    """
    here = connection.execute("select current_database()").fetchall()[0][0].replace('"', '""')
    tables = list_tables_of_runs(connection)
    for table in tables:  # with the database's name, as `main.runs` is the temporary view, too
        _narrow(connection, f'"{here}".main', table, run_id)
    try:
        yield
    finally:
        with suppress(duckdb.TransactionException):  # one that has failed takes nothing more, and leaves no view
            for table in tables:
                connection.execute(f"drop view temp.{table}")


@contextmanager
def read_computed(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, of a run whose metrics are not kept, views are read with the least work; other runs have no rows."""
    with stage_run(connection, run_id), _read_alone(connection, run_id):
        yield


@contextmanager
def stage_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, the metrics of this run read the copy, and other runs have no requests for this connection."""
    connection.execute("create temp table stg_requests as from main.stg_requests where run_id = ?", [run_id])
    try:
        yield
    finally:
        connection.execute("drop table temp.stg_requests")
