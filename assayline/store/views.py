"""The macros and views of `sql/`: one per file, with their dependencies and definition digests."""

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
    """A macro or view, defined by one file."""

    name: str
    folder: str
    text: str

    @property
    def full_name(self) -> str:
        """Qualified name: schema `main` for users, otherwise `internal`."""
        found = _NAME.search(self.text)
        assert found, f"{self.name}.sql makes neither a view nor a macro"
        return found["full_name"]

    @property
    def is_view(self) -> bool:
        """True for a view, False for a macro."""
        return self.statement.startswith("create or replace view ")

    @property
    def statement(self) -> str:
        """The defining statement, without comments."""
        return _COMMENTS.sub("", self.text).partition("\ncomment on ")[0]

    @property
    def query(self) -> str:
        """The query of a view, which reads temporary tables and views of the same names if there are any."""
        query = self.statement.partition(" as\n")[2].strip().removesuffix(";")
        return re.sub(r"\b(raw|internal)\.", lambda found: "temp." if found[1] == "raw" else "", query)

    @property
    def pieces(self) -> tuple[str, list[str]] | None:
        """A column and its values, if a large run is computed one value at a time to save memory."""
        found = _PIECES.search(self.text)
        return (found["column"], found["values"].split(", ")) if found else None


def read_models(folder: Path) -> dict[str, Model]:
    """Read the models of an SQL folder by name, in creation order."""
    files = [file for part in ("scorers", "models") for file in sorted((folder / part).rglob("*.sql"))]
    models = [Model(name_model(file), file.parent.name, file.read_text("utf-8")) for file in files]
    return {model.name: model for model in models}


def name_model(file: Path) -> str:
    """Return the name of a file's view or macro: the file name without its number."""
    return re.sub(r"^\d+_", "", file.stem)


def list_needed(models: Mapping[str, Model], names: Iterable[str]) -> set[str]:
    """Return these models and all models that they read, directly or indirectly."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += set(_NEEDED.findall(models[name].statement)) & models.keys()
    return found


def digest_definition(models: Mapping[str, Model], name: str) -> str:
    """Return the digest of all statements behind a view, without comments, and of the DuckDB version."""
    statements = [models[needed].statement for needed in sorted(list_needed(models, [name]))]
    engine = ".".join(duckdb.__version__.split(".")[:2])
    return hashlib.sha256("\0".join([engine, *statements]).encode()).hexdigest()[:16]


def make_models(connection: duckdb.DuckDBPyConnection, models: Iterable[Model]) -> None:
    """Create macros and views in this order, in the caller's transaction.

    Creating a view binds all that it reads, down to the tables. To avoid binding the same models hundreds of times,
    each model finds empty temporary tables in place of earlier models.
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
    """Read names and types of a view's columns from the catalog; `describe` would bind the view again."""
    columns = (
        "select column_name, data_type from duckdb_columns() "
        "where database_name = current_database() and schema_name || '.' || table_name = ? order by column_index"
    )
    return connection.execute(columns, [view]).fetchall()


def _copy_comments(connection: duckdb.DuckDBPyConnection, source: str, view: str) -> None:
    """Copy column comments from the same names in `source`, unless the column has its own comment."""
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
    """Quote a text for SQL statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"
