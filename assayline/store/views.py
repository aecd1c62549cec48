"""The macros and views of `sql/`: a file each, what each one reads, and a digest of what defines it."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

_PIECES = re.compile(r"^-- in pieces: (?P<column>\w+) \((?P<values>\w+(?:, \w+)*)\)$", re.M)
_COLUMNS_OF = re.compile(r"^-- columns of: (\w+\.\w+(?:, \w+\.\w+)*)$", re.M)
_NEEDED = re.compile(r"(?:\b(?:from|join)\s+|\b(?:internal|main)\.)(?:internal\.|main\.)?(\w+)")
_NAME = re.compile(r"^create or replace (?:view|macro) (?P<full_name>\w+\.\w+)", re.M)
_COMMENTS = re.compile(r"^\s*--.*\n", re.M)


@dataclass(frozen=True, slots=True)
class Model:
    """What one file makes."""

    name: str
    folder: str
    text: str

    @property
    def full_name(self) -> str:
        """Its name with its schema: `main` if it is for users, else `internal`."""
        found = _NAME.search(self.text)
        assert found, f"{self.name}.sql makes neither a view nor a macro"
        return found["full_name"]

    @property
    def is_view(self) -> bool:
        """Whether it is a view; otherwise it is a macro."""
        return self.statement.startswith("create or replace view ")

    @property
    def statement(self) -> str:
        """What defines it, without a comment."""
        return _COMMENTS.sub("", self.text).partition("\ncomment on ")[0]

    @property
    def query(self) -> str:
        """A view's rows, computed from temporary tables and views of the same names where there are such."""
        query = self.statement.partition(" as\n")[2].strip().removesuffix(";")
        return re.sub(r"\b(raw|internal)\.", lambda found: "temp." if found[1] == "raw" else "", query)

    @property
    def pieces(self) -> tuple[str, list[str]] | None:
        """A column and its values, if a large run is to be computed one value after the other, for little memory."""
        found = _PIECES.search(self.text)
        return (found["column"], found["values"].split(", ")) if found else None


def read_models(folder: Path) -> dict[str, Model]:
    """The models of an SQL folder by name, in the order in which they are made."""
    files = [file for part in ("scorers", "models") for file in sorted((folder / part).rglob("*.sql"))]
    models = [Model(name_model(file), file.parent.name, file.read_text("utf-8")) for file in files]
    return {model.name: model for model in models}


def name_model(file: Path) -> str:
    """The view or macro that a file makes: its name without the number that orders it."""
    return re.sub(r"^\d+_", "", file.stem)


def list_needed(models: Mapping[str, Model], names: Iterable[str]) -> set[str]:
    """The models that these read, directly or through others, and they themselves."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += set(_NEEDED.findall(models[name].statement)) & models.keys()
    return found


def digest_definition(models: Mapping[str, Model], name: str) -> str:
    """Of all the statements that decide what is in a view, and of the DuckDB that computes it; not of comments."""
    statements = [models[needed].statement for needed in sorted(list_needed(models, [name]))]
    engine = ".".join(duckdb.__version__.split(".")[:2])
    return hashlib.sha256("\0".join([engine, *statements]).encode()).hexdigest()[:16]


def make_models(connection: duckdb.DuckDBPyConnection, models: Iterable[Model]) -> None:
    """Makes macros and views, in this order and inside the caller's transaction.

    A view is bound when it is made, with all that it reads, down to the tables: hundreds of times the same few. So each
    model that is made finds, among temporary tables, empty ones with the columns of those before it.
    """
    made = []
    for model in models:
        connection.execute(model.text)
        if sources := _COLUMNS_OF.search(model.text):
            for source in sources[1].split(", "):
                _copy_comments(connection, source, model.full_name)
        if model.is_view:
            columns = ", ".join(f'"{name}" {kind}' for name, kind in _read_columns(connection, model.full_name))
            connection.execute(f"create temp table {model.name} ({columns})")
            made.append(model.name)
    for name in made:
        connection.execute(f"drop table temp.{name}")


def _read_columns(connection: duckdb.DuckDBPyConnection, view: str) -> list[tuple[str, str]]:
    """Names and types of the view's columns. The catalog has them; `describe` would bind the view once more."""
    columns = (
        "select column_name, data_type from duckdb_columns() "
        "where database_name = current_database() and schema_name || '.' || table_name = ? order by column_index"
    )
    return connection.execute(columns, [view]).fetchall()


def _copy_comments(connection: duckdb.DuckDBPyConnection, source: str, view: str) -> None:
    """The view's columns mean what those of the same names in `source` do, unless they have a comment of their own."""
    comments = (
        "select column_name, comment from duckdb_columns() "
        "where database_name = current_database() and schema_name || '.' || table_name = ? and comment is not null"
    )
    known = dict(connection.execute(comments, [source]).fetchall())
    own = dict(connection.execute(comments, [view]).fetchall())
    for column, _ in _read_columns(connection, view):
        if column in known and column not in own:
            connection.execute(f"comment on column {view}.{column} is {quote_text(known[column])}")


def quote_text(text: str) -> str:
    """A text as SQL writes it, for statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"
