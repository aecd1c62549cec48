"""The macros and views of `sql/`, one per file."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb

_COLUMNS_OF = "-- columns of: "
"""Begins a line with the sources of a view's column comments."""
KEYS = {
    "run_id": "The run.",
    "prompt_id": "The prompt.",
    "occurrence": "Which of the run's rows with that prompt_id.",
    "repeat_index": "0-based repeat.",
    "request_id": "The request.",
    "scorer": "The scorer, as in scorers.",
    "slo": "Name of the objective.",
    "benchmark_id": "The benchmark.",
    "high": "Upper end.",
}
"""Comments of the columns with these names that have none of their own."""


@dataclass(frozen=True, slots=True)
class Model:
    """A macro or view, defined by one file."""

    name: str
    folder: str
    text: str

    @property
    def full_name(self) -> str:
        """Qualified name: schema `main` for users, otherwise `internal`."""
        return self.statement.split()[4].partition("(")[0]

    @property
    def is_view(self) -> bool:
        """True for a view, False for a macro."""
        return self.statement.startswith("create or replace view ")

    @property
    def statement(self) -> str:
        """The defining statement, without comments."""
        lines = (line for line in self.text.splitlines() if not line.lstrip().startswith("--"))
        return "\n".join(lines).partition("\ncomment on ")[0]


def read_models(folder: Path) -> dict[str, Model]:
    """Read the models of an SQL folder by name, in creation order."""
    files = [file for part in ("macros", "models") for file in sorted((folder / part).rglob("*.sql"))]
    models = [Model(name_model(file), file.parent.name, file.read_text("utf-8")) for file in files]
    return {model.name: model for model in models}


def name_model(file: Path) -> str:
    """Return the name of a file without its number."""
    return file.stem.partition("_")[2] if file.stem[0].isdigit() else file.stem


def make_models(connection: duckdb.DuckDBPyConnection, models: Iterable[Model]) -> None:
    """Create macros and views in this order, with the comments of theirs and of tables, in the caller's transaction."""
    _fill_comments(connection)
    for model in models:
        connection.execute(model.text)
        for line in model.text.splitlines():
            if line.startswith(_COLUMNS_OF):
                for source in line.removeprefix(_COLUMNS_OF).split(", "):
                    _copy_comments(connection, source, model.full_name)
    _fill_comments(connection)


def _fill_comments(connection: duckdb.DuckDBPyConnection) -> None:
    query = """
        select schema_name || '.' || table_name, column_name
        from duckdb_columns()
        where database_name = current_database() and not internal and comment is null and list_contains(?, column_name)
    """
    for table, column in connection.execute(query, [list(KEYS)]).fetchall():
        connection.execute(f"comment on column {table}.{column} is {quote_text(KEYS[column])}")


def _copy_comments(connection: duckdb.DuckDBPyConnection, source: str, view: str) -> None:
    """Copy column comments from the same names in `source`, unless the column has its own comment."""
    query = """
        select own.column_name, given.comment
        from duckdb_columns() as own
        join duckdb_columns() as given using (database_name, column_name)
        where database_name = current_database() and own.comment is null and given.comment is not null
            and own.schema_name || '.' || own.table_name = ? and given.schema_name || '.' || given.table_name = ?
    """
    for column, comment in connection.execute(query, [view, source]).fetchall():
        connection.execute(f"comment on column {view}.{column} is {quote_text(comment)}")


def quote_text(text: str) -> str:
    """Quote a text for SQL statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"
