"""The macros and views of `sql/`, one per file."""

from collections.abc import Iterable, Mapping, Sequence
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
    sources = {}
    for model in models:
        connection.execute(model.text)
        listed = [line.removeprefix(_COLUMNS_OF) for line in model.text.splitlines() if line.startswith(_COLUMNS_OF)]
        sources[model.full_name] = [source for line in listed for source in line.split(", ")]
    _fill_comments(connection, sources)


def _fill_comments(connection: duckdb.DuckDBPyConnection, sources: Mapping[str, Sequence[str]]) -> None:
    """Give each column without a comment that of the same name in a source of its view, or else in `KEYS`."""
    query = """
        select schema_name || '.' || table_name, column_name, comment
        from duckdb_columns()
        where database_name = current_database() and not internal
    """
    found: dict[str, dict[str, str]] = {}
    bare: dict[str, list[str]] = {}
    for table, column, comment in connection.execute(query).fetchall():
        known = found.setdefault(table, {})
        if comment is None:
            bare.setdefault(table, []).append(column)
        else:
            known[column] = comment
    filled = []
    for table in [*(bare.keys() - sources.keys()), *sources]:
        for column in bare.get(table, []):
            given = (found[source].get(column) for source in sources.get(table, ()))
            if comment := next(filter(None, given), KEYS.get(column)):
                found[table][column] = comment
                filled.append(f"comment on column {table}.{column} is {quote_text(comment)}")
    connection.execute(";".join(filled))


def quote_text(text: str) -> str:
    """Quote a text for SQL statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"
