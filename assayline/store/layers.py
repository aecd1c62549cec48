"""The views of the database, in three schemas, from one file each.

A run's metrics do not change once it has ended, and computing those of a thousand runs anew for every question takes
minutes. So they are kept (`kept.py`), and a model is made of two parts under the name that people query:

    main.run_summary            kept_metrics.run_summary union all live_metrics.run_summary
    kept_metrics.run_summary    a table: the rows of runs whose metrics are kept
    live_metrics.run_summary    the file of sql/models/, over all other runs

In `live_metrics` there is a view for each raw table, of the same name, with the rows of runs that are not kept. A name
without a schema in a view is looked up among temporary tables, then in the view's own schema, then in main: the file
finds there what is not kept, and made in main it finds everything. With nothing left to compute the live part
costs its plan and no more, as a join with no runs ends before it reads a table. Comments are in main, where people
query.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb

from assayline.store.model_files import ModelFile

LIVE = "live_metrics"
KEPT = "kept_metrics"
LAYERS_VERSION = 2
"""Raise it when this module makes other views of the same files: they are made anew then, and nothing is kept."""

NOT_OF_RUNS = ("baselines",)
"""Raw tables that name runs and are not about them: no model that is kept may read them."""

_FOUNDATION = f"""
drop schema if exists {LIVE} cascade;
drop schema if exists {KEPT} cascade;
create schema {LIVE};
create schema {KEPT};
create table {KEPT}.kept_runs (run_id varchar not null, kept_at timestamp not null);
create view {LIVE}.run_ids as
select run_id
from (select run_id from main.runs union select run_id from main.loaded_parts)
anti join {KEPT}.kept_runs using (run_id);
"""  # noqa: S608 - names are ours


def make_models(connection: duckdb.DuckDBPyConnection, models: list[ModelFile]) -> None:
    """Makes macros and views, in this order and inside the caller's transaction. Nothing is kept afterwards."""
    connection.execute(_FOUNDATION)
    tables = connection.execute(
        "select distinct table_name from duckdb_tables() join duckdb_columns() using (schema_name, table_name) "
        "where schema_name = 'main' and column_name = 'run_id' order by all"
    ).fetchall()
    for (table,) in tables:
        if table not in NOT_OF_RUNS:
            live = f"select * from main.{table} where run_id in (select run_id from {LIVE}.run_ids)"  # noqa: S608
            connection.execute(f"create view {LIVE}.{table} as {live}")
    for model in models:
        _make_model(connection, model)


def _make_model(connection: duckdb.DuckDBPyConnection, model: ModelFile) -> None:
    if not model.is_view:
        connection.execute(model.text)
        return
    with work_in(connection, LIVE):
        connection.execute(model.definition)
    columns = {name: kind for name, kind, *_ in connection.execute(f"describe {LIVE}.{model.name}").fetchall()}
    if "run_id" not in columns:
        connection.execute(f"drop view {LIVE}.{model.name}")
        connection.execute(model.text)
        return
    if model.reason:
        with work_in(connection, KEPT):  # for those who read one kept run and nothing else
            connection.execute(model.definition)
        connection.execute(model.text)
        return
    if model.table:
        names = ", ".join(columns)
        kept = f"select {names} from main.{model.table} where run_id in (select run_id from {KEPT}.kept_runs)"  # noqa: S608
        connection.execute(f"create view {KEPT}.{model.name} as {kept}")
    else:
        typed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        connection.execute(f"create table {KEPT}.{model.name} ({typed})")
    union = f"select * from {KEPT}.{model.name} union all select * from {LIVE}.{model.name}"  # noqa: S608
    connection.execute(f"create view main.{model.name} as {union}")
    connection.execute(model.comments)


@contextmanager
def work_in(connection: duckdb.DuckDBPyConnection, schema: str) -> Iterator[None]:
    """Meanwhile, names without a schema are of this one; what it does not have is found in main."""
    before = connection.execute("select current_schema()").fetchall()[0][0]
    connection.execute(f"set schema = '{schema}'")
    try:
        yield
    finally:
        with suppress(duckdb.TransactionException):  # one that has failed takes nothing more
            connection.execute(f"set schema = '{before}'")
