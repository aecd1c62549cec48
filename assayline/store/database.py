"""The DuckDB file: open it, wait for its lock, bring its tables and views up to date.

DuckDB lets one process write a file, and while it does no other can even read it. So connections are short, a held
lock is waited for, and whoever still does not get in is told who is inside. The file keeps the format of DuckDB 1.5,
which older command-line shells and notebooks can open too.

    with connect(Path("assayline.duckdb"), wait_s=30) as connection:
        connection.sql("from run").show()

The schema `raw` has the tables, `main` the views for users, and `internal` the views and macros that compute them.
Connections of ours find names in all three.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from assayline import __version__
from assayline.errors import DatabaseLockedError, DatabaseUnusableError, StoreError
from assayline.store.views import Model, make_models, name_model, read_models
from assayline.words import as_sentence

OLDEST_VERSION = 4
"""Databases and parts of an older version are refused: no file takes them further."""

_MOVE = "12_move_tables.sql"
"""Before this migration tables were in `main`."""

_ADDED = re.compile(r"^alter table (?:if exists )?(?:raw\.)?(?P<table>\w+) add column (?P<column>\w+) ", re.M)


def list_migrations(folder: Path, version: int, wanted: int) -> list[Path]:
    """The files that take tables of `version` to `wanted`, in their order. Raises KeyError where one is not there."""
    files = _find_files(folder)
    return [files[number] for number in range(version + 1, wanted + 1)]


@cache
def list_added_columns(folder: Path, table: str) -> frozenset[str]:
    """Columns of a table that migrations have added: parts written before them do not have these."""
    texts = [file.read_text(encoding="utf-8") for file in _find_files(folder).values()]
    added = [found for text in texts for found in _ADDED.finditer(text)]
    return frozenset(found["column"] for found in added if found["table"] == table)


def _find_files(folder: Path) -> dict[int, Path]:
    return {int(file.name.partition("_")[0]): file for file in folder.glob("*.sql")}


Connection = duckdb.DuckDBPyConnection
"""For annotations elsewhere: only this package imports DuckDB."""

Config = dict[str, str | bool | int | float | list[str]]
SQL_FOLDER = Path(__file__).resolve().parents[1] / "sql"
TABLE_VERSION = 12
"""Raise it when a raw table's columns change, with a file in `sql/migrations/` that takes databases to it."""

UNUSABLE = re.compile(r"[?\\\ud800-\udfff]")
"""Characters in a path that make DuckDB open another file or, where it is not UTF-8, fail without a reason."""

_STORAGE_VERSION = "v1.5.0"
_FRUGAL_THREADS = 2
"""Each thread wants memory of its own, and an engine wants the cores."""

_RETRY_S = 0.1
_LOCKED = "Could not set lock on file"
_DAMAGED = ("not a valid DuckDB database", "Corrupt database file", "Could not read enough bytes", "checksum")
_REPAIR = "`assayline rebuild --all --set-aside` renames it and loads every run of its folder into a new one."
_HOLDER = re.compile(r"held in (?P<program>.+?) \(PID (?P<pid>\d+)\)")


@contextmanager
def connect(
    path: Path, wait_s: float, read_only: bool = False, memory_bytes: int | None = None, checkpoint: bool = True
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database at `path`, made or brought up to date unless `read_only`, and close it at the end.

    While another process holds it, try again for `wait_s` seconds. Beyond `memory_bytes` DuckDB uses the disk, in a
    folder beside the database (None: 80% of the machine's memory). Inside, what the disk or a damaged file does to a
    query becomes a StoreError; a query that is wrong stays DuckDB's error.

    Without `checkpoint`, what is written stays in the journal beside the file (`.wal`), where all who open it find it,
    until somebody closes with one. A checkpoint writes over blocks that are in use: a process that is killed during it
    may leave one half written, and then nobody can open the file.
    """
    connection = _open_database(path, wait_s, read_only, memory_bytes)
    try:
        if read_only:
            _check_models(connection)
            find_in_schemas(connection)
        else:
            apply_schema(connection)
        if not checkpoint:
            connection.execute("pragma disable_checkpoint_on_shutdown")
        yield connection
    except duckdb.Error as error:
        if (explained := _explain(path, error)) is None:
            raise
        raise explained from error
    finally:
        connection.close()


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All of the block or nothing."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        with suppress(duckdb.Error):  # a commit that fails has undone everything already
            connection.rollback()
        raise


def apply_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables, macros and views of `sql/`, in path order and one transaction, unless they are there already.

    A view binds when it is made, so the order of the files is proven each time. Tables of an older version are
    migrated in the same transaction. Views and macros are all made anew when one of their files changed, and those
    whose file is gone are dropped.
    """
    schema_files = sorted((SQL_FOLDER / "schema").glob("*.sql"))
    models = list_models()
    schema_digest, models_digest = _digest_files(schema_files), _digest_models(models)
    stored = _read_version(connection)
    if stored == (TABLE_VERSION, schema_digest, models_digest):
        find_in_schemas(connection)
        return
    migrations = list_migrations(SQL_FOLDER / "migrations", stored[0], TABLE_VERSION) if stored else []
    with transaction(connection):
        for file in migrations + schema_files:
            connection.execute(file.read_text(encoding="utf-8"))
            if file.name == _MOVE:
                _move_tables(connection, [name_model(file) for file in schema_files])
        find_in_schemas(connection)
        for (name,) in connection.execute("select unnest(model_names) from raw.schema_version").fetchall():
            for kind in ("view", "macro", "macro table"):
                connection.execute(f"drop {kind} if exists {name}")
        make_models(connection, models.values())
        connection.execute("delete from raw.schema_version")
        connection.execute(
            "insert into raw.schema_version values (?, ?, ?, ?, ?)",
            [TABLE_VERSION, schema_digest, models_digest, [model.full_name for model in models.values()], __version__],
        )


def find_in_schemas(connection: duckdb.DuckDBPyConnection) -> None:
    """Lets this connection name tables and views of all schemas without the schema."""
    connection.execute("set search_path = 'internal,raw,main'")


def _move_tables(connection: duckdb.DuckDBPyConnection, names: list[str]) -> None:
    """Moves these tables from `main` to `raw`, and drops the models that read them."""
    for (name,) in connection.execute("select unnest(model_names) from main.schema_version").fetchall():
        for kind in ("view", "macro", "macro table"):
            connection.execute(f"drop {kind} if exists main.{name}")
    tables = (
        "select table_name, sql from duckdb_tables() "
        "where schema_name = 'main' and database_name = current_database() and list_contains(?, table_name)"
    )
    for table, made_by in connection.execute(tables, [names]).fetchall():
        connection.execute(made_by.replace("CREATE TABLE ", "CREATE TABLE raw.", 1))
        connection.execute(f"insert into raw.{table} from main.{table}")
        connection.execute(f"drop table main.{table}")


def is_readable(table_version: int) -> bool:
    """Whether databases and parts of that version can be brought to today's tables."""
    return OLDEST_VERSION <= table_version <= TABLE_VERSION


def list_models() -> dict[str, Model]:
    """The macros and views of `sql/` by name, in the order in which they are made."""
    return read_models(SQL_FOLDER)


def list_optional_columns(table: str) -> frozenset[str]:
    """Columns that a table's parts may lack, as they were added after the oldest version."""
    return list_added_columns(SQL_FOLDER / "migrations", table)


def _open_database(path: Path, wait_s: float, read_only: bool, memory_bytes: int | None) -> duckdb.DuckDBPyConnection:
    if read_only and not path.exists():
        raise StoreError(f"There is no database at {path}. Run an evaluation first, or correct the path.")
    if found := UNUSABLE.findall(str(path)):
        raise StoreError(
            f"The database's path {str(path)!r} holds {found[0]!r}, which DuckDB does not take for part of a name. "
            "Give another path in ASSAYLINE_DATABASE, or another folder in ASSAYLINE_DATA_DIR."
        )
    config: Config = {"storage_compatibility_version": _STORAGE_VERSION}
    if memory_bytes is not None:
        config |= {"memory_limit": f"{memory_bytes // 2**10}KiB", "threads": _FRUGAL_THREADS}
    deadline = time.monotonic() + wait_s
    while True:
        try:
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            return _connect_file(path, read_only, config)
        except (duckdb.Error, OSError) as error:
            if _LOCKED not in str(error):
                raise _explain_opening(path, error) from error
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DatabaseLockedError(_describe_lock(path, wait_s, str(error))) from error
            time.sleep(min(_RETRY_S, left_s))


def _connect_file(path: Path, read_only: bool, config: Config) -> duckdb.DuckDBPyConnection:
    """DuckDB's own opening, by a name of ours: tests put an empty database there first."""
    return duckdb.connect(path, read_only=read_only, config=config)


def _describe_lock(path: Path, wait_s: float, message: str) -> str:
    found = _HOLDER.search(message)
    holder = f"process {found['pid']} ({found['program']})" if found else "another process"
    return (
        f"{path} is held by {holder} and was not free within {wait_s:g} s (ASSAYLINE_DATABASE_WAIT_S). "
        "hint: close that shell or wait for that run; part files can be read with read_parquet meanwhile."
    )


def _explain_opening(path: Path, error: Exception) -> StoreError:
    reason = f"{path} cannot be opened as a DuckDB database: {_first_line(error)}"
    if any(text in str(error) for text in _DAMAGED):
        return DatabaseUnusableError(f"{reason} Give another path, or, if it was ours: {_REPAIR}")
    return StoreError(f"{reason} The data folder (ASSAYLINE_DATA_DIR) must be writable and have space.")


def _explain(path: Path, error: duckdb.Error) -> StoreError | None:
    """The sentence for a query that the disk, the memory or a damaged file made fail; None for a wrong query."""
    if any(text in str(error) for text in _DAMAGED):
        return DatabaseUnusableError(f"{path} is damaged: {_first_line(error)} {_REPAIR}")
    if isinstance(error, (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.FatalException)) or (
        "Failed to commit" in str(error)
    ):
        return StoreError(
            f"{path} cannot be read or written: {_first_line(error)} Free space or memory, then give the same command "
            "again; part files are kept, and what was not loaded is loaded then."
        )
    return None


def _first_line(error: BaseException) -> str:
    return as_sentence((str(error) or type(error).__name__).splitlines()[0])


def _check_models(connection: duckdb.DuckDBPyConnection) -> None:
    """A reader cannot bring views up to date, and must not read those of another definition unawares."""
    stored = _read_version(connection)
    if stored is None:
        raise StoreError(f"{_path_of(connection)} has no tables yet. Run an evaluation first, or correct the path.")
    if stored[0] != TABLE_VERSION:
        raise StoreError(
            f"{_path_of(connection)} has tables of version {stored[0]}, and assayline {__version__} reads version "
            f"{TABLE_VERSION}. Open it once for writing, as any run and `assayline verify` do: that migrates it."
        )
    if stored[2] != _digest_models(list_models()):
        raise StoreError(
            f"The views in {_path_of(connection)} are not those of this assayline ({__version__}), and cannot be "
            "replaced while it is open for reading only. Open it once for writing, as any run does."
        )


def _read_version(connection: duckdb.DuckDBPyConnection) -> tuple[int, str, str] | None:
    """What `schema_version` says; None for a database with nothing in it; an error where it is not one of ours.

    Only a database without that table is asked for its tables: DuckDB's first list of them takes longer than all else
    that opening does here.
    """
    for schema in ("raw", "main"):
        with suppress(duckdb.CatalogException):
            query = f"select table_version, schema_digest, models_digest from {schema}.schema_version"  # noqa: S608
            rows = connection.execute(query).fetchall()
            break
    else:
        tables = connection.execute("select table_name from duckdb_tables() where not internal").fetchall()
        if not tables:
            return None
        names = ", ".join(sorted(name for (name,) in tables)[:5])
        raise StoreError(
            f"{_path_of(connection)} is a DuckDB database, but not one of assayline: it has {names}. Give another path."
        )
    if len(rows) != 1 or not is_readable(rows[0][0]):
        versions = ", ".join(str(version) for version, _, _ in rows) or "none"
        raise DatabaseUnusableError(
            f"{_path_of(connection)} has tables of version {versions}, and assayline {__version__} needs version "
            f"{TABLE_VERSION}. Give another path (ASSAYLINE_DATABASE), or read it with the assayline that made it. "
            f"{_REPAIR}"
        )
    table_version, schema_digest, models_digest = rows[0]
    return table_version, schema_digest, models_digest


def _path_of(connection: duckdb.DuckDBPyConnection) -> str:
    query = "select coalesce(path, 'The database') from duckdb_databases() where database_name = current_database()"
    return str(connection.execute(query).fetchall()[0][0])


def _digest_models(models: Mapping[str, Model]) -> str:
    texts = (f"{model.folder}/{model.name}\0{model.text}\0" for model in models.values())
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _digest_files(files: list[Path]) -> str:
    """sha256 over names and contents, so that renaming a file, which may change the order, counts as a change."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(SQL_FOLDER).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


Row = dict[str, Any]


def read_rows(connection: duckdb.DuckDBPyConnection, query: str, *values: Any) -> list[dict[str, Any]]:
    """A query's rows, by column name."""
    result = connection.execute(query, list(values))
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, values, strict=True)) for values in result.fetchall()]
