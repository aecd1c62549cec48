"""The views of the database, in three schemas, from one file each.

A run's metrics do not change once it has ended, and computing those of a thousand runs anew for every question takes
minutes. So they are kept (`metrics.py`), and a model is made of two parts under the name that people query:

    main.run_summary            kept_metrics.run_summary union all live_metrics.run_summary
    kept_metrics.run_summary    a table: the rows of runs whose metrics are kept
    live_metrics.run_summary    the file of sql/models/, over all other runs

In `live_metrics` there is a view for each raw table, of the same name, with the rows of runs that are not kept. A name
without a schema in a view is looked up among temporary tables, then in the view's own schema, then in main: the file
finds there what is not kept, and made in main it finds everything. With nothing left to compute the live part
costs its plan and no more, as a join with no runs ends before it reads a table. Comments are in main, where people
query.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

STAGING = "10_staging"
"""Its models have a row per request: kept, they would double the database."""

_RULE = re.compile(r"(?P<no>no)|by (?P<column>\w+) \((?P<values>\w+(?:, \w+)*)\)|as (?P<table>\w+)")
_HEADER = re.compile(r"\A(?:--.*\n)+")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What one file makes."""

    name: str
    text: str
    is_view: bool
    is_kept: bool = True
    """Whether its rows are stored, if they are of runs; if not, they are computed whenever they are read."""
    column: str | None = None
    """The column whose values are kept one after the other."""
    values: tuple[str, ...] = ()
    table: str | None = None
    """The table whose rows it has for a run that is kept."""

    @property
    def definition(self) -> str:
        """The statement that makes it."""
        return self._split()[0]

    @property
    def comments(self) -> str:
        """The statements that describe it and its columns."""
        return "".join(self._split()[1:])

    def _split(self) -> tuple[str, str, str]:
        return self.text.partition("\ncomment on ")


def read_model(file: Path) -> ModelFile:
    """Reads a file. Raises ValueError for a line about keeping that is none of the three."""
    text = file.read_text(encoding="utf-8")
    name = name_model(file)
    is_view = re.search(r"^create or replace view ", text, re.M) is not None
    header = _HEADER.match(text)
    rules = re.findall(r"^-- keep:\s*(.*)$", header[0] if header else "", re.M)
    if not rules:
        return ModelFile(name, text, is_view, is_kept=file.parent.name != STAGING)
    found = _RULE.fullmatch(rules[0]) if len(rules) == 1 and is_view else None
    if found is None:
        raise ValueError(
            f"{file} says `-- keep: {rules[0]}`. Of a view, and once, it can say `no`, `by COLUMN (VALUE, VALUE)` or "
            "`as TABLE`."
        )
    values = tuple(found["values"].split(", ")) if found["values"] else ()
    return ModelFile(name, text, is_view, not found["no"], found["column"], values, found["table"])


def name_model(file: Path) -> str:
    """The view or macro that a model's file makes: its name without the number that orders it."""
    return re.sub(r"^\d+_", "", file.stem)


LIVE = "live_metrics"
KEPT = "kept_metrics"
LAYERS_VERSION = 4
"""Raise it when this module makes other views of the same files: they are made anew then, and nothing is kept."""

NOT_OF_RUNS = ("baselines", "verdicts")
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
    """Makes macros and views, in this order and inside the caller's transaction. Nothing is kept afterwards.

    A view is bound when it is made, with all that it reads, down to the tables: hundreds of times the same few. So each
    model that is made finds, among temporary tables, empty ones with the columns of those before it.
    """
    connection.execute(_FOUNDATION)
    of_runs = list_tables_of_runs(connection)
    for table in of_runs:
        live = f"select * from main.{table} where run_id in (select run_id from {LIVE}.run_ids)"  # noqa: S608
        connection.execute(f"create view {LIVE}.{table} as {live}")
        _stand_in(connection, table, _read_columns(connection, table))
    for model in models:
        if not model.is_view:
            connection.execute(model.text)
            continue
        with work_in(connection, LIVE):
            connection.execute(model.definition)
        columns = _read_columns(connection, model.name)
        _make_layers(connection, model, columns)
        _stand_in(connection, model.name, columns)
    for name in [*of_runs, *(model.name for model in models if model.is_view)]:
        connection.execute(f"drop table temp.{name}")


def list_tables_of_runs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The raw tables that models which are kept may read. A list of all columns would take ten times as long."""
    tables = connection.execute(
        "select table_name from duckdb_tables() where database_name = current_database() and schema_name = 'main' "
        "and regexp_matches(sql, '[( ]run_id ') order by all"
    ).fetchall()
    return [table for (table,) in tables if table not in NOT_OF_RUNS]


def _stand_in(connection: duckdb.DuckDBPyConnection, name: str, columns: dict[str, str]) -> None:
    connection.execute(f"create temp table {name} ({_write_columns(columns)})")


def _make_layers(connection: duckdb.DuckDBPyConnection, model: ModelFile, columns: dict[str, str]) -> None:
    """The views that a model is besides the one in `live_metrics`, which is there."""
    if "run_id" not in columns:
        connection.execute(f"drop view {LIVE}.{model.name}")
    if "run_id" not in columns or not model.is_kept:
        with work_in(connection, KEPT):  # for those who read kept runs and no others
            connection.execute(model.definition)
        connection.execute(model.text)
        return
    if model.table:
        names = ", ".join(columns)
        kept = f"select {names} from main.{model.table} where run_id in (select run_id from {KEPT}.kept_runs)"  # noqa: S608
        connection.execute(f"create view {KEPT}.{model.name} as {kept}")
    else:
        connection.execute(f"create table {KEPT}.{model.name} ({_write_columns(columns)})")
    union = f"select * from {KEPT}.{model.name} union all select * from {LIVE}.{model.name}"  # noqa: S608
    connection.execute(f"create view main.{model.name} as {union}")
    connection.execute(model.comments)
    if model.table:
        _copy_comments(connection, model.table, model.name)


def _read_columns(connection: duckdb.DuckDBPyConnection, view: str) -> dict[str, str]:
    """Names and types of the live view's columns. The catalog has them; `describe` would bind the view once more."""
    columns = (
        "select column_name, data_type from duckdb_columns() "
        "where database_name = current_database() and schema_name = ? and table_name = ? order by column_index"
    )
    return dict(connection.execute(columns, [LIVE, view]).fetchall())


def _write_columns(columns: dict[str, str]) -> str:
    return ", ".join(f'"{name}" {kind}' for name, kind in columns.items())


def _copy_comments(connection: duckdb.DuckDBPyConnection, table: str, view: str) -> None:
    """The view's columns are those of the table, and mean the same."""
    comments = (
        "select column_name, comment from duckdb_columns() "
        "where database_name = current_database() and schema_name = 'main' and table_name = ? and comment is not null"
    )
    for column, comment in connection.execute(comments, [table]).fetchall():
        connection.execute(f"comment on column main.{view}.{column} is {quote_text(comment)}")


def quote_text(text: str) -> str:
    """A text as SQL writes it, for statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


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
