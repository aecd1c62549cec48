"""The DuckDB file: open it, wait for its lock, and update its tables and views.

DuckDB allows one process to write a file, and no other process can read it meanwhile. So connections are short, opening
waits for a held lock, and the error after a timeout names the holder. A lock file next to the database admits one
assayline process at a time to write. If other programs only read the file, it is copied, written and renamed into
place: open readers keep the old file, and the next ones read the new one. The file keeps the format of DuckDB 1.5,
which older shells and notebooks can open.

    with connect(Path("assayline.duckdb"), wait_s=30) as connection:
        connection.sql("from run").show()

The schema `raw` has the tables, `main` the views for users, and `internal` the views and macros behind them. These
connections resolve names in all three.
"""

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from assayline import __version__
from assayline.errors import DatabaseInUseError, DatabaseLockedError, DatabaseUnusableError, StoreError
from assayline.files import MAKE_ROOM, list_memory_groups, storing, sync_folder
from assayline.store.locks import lock_file, name_holder
from assayline.store.views import Model, make_models, quote_text, read_models
from assayline.words import as_sentence

Connection = duckdb.DuckDBPyConnection
"""For annotations in other packages: only this package imports DuckDB."""

Config = dict[str, str | bool | int | float | list[str]]
SQL_FOLDER = Path(__file__).resolve().parents[1] / "sql"
TABLE_VERSION = 1
"""Increment it when a release changes columns of a raw table. A database of another version is refused."""

UNUSABLE = re.compile(r"[?\\\ud800-\udfff]")
"""Characters in a path for which DuckDB opens another file or, if not UTF-8, fails without a reason."""

_STORAGE_VERSION = "v1.5.0"
_SHARE = 4
"""DuckDB gets one part in four of the memory, since engines and prompts need the rest; it spills to disk beyond."""

_RETRY_S = 0.1
_READERS_S = 1.0
"""Wait for readers, most of which are short, before the file is copied."""

_REPLACED = "replaced.wal"
_LOCKED = "Could not set lock on file"
_RENAMED = "checkpoint iteration does not match"
"""DuckDB opened the old file, and then the journal of the one that was renamed into its place."""

_DAMAGED = ("not a valid DuckDB database", "Corrupt database file", "Could not read enough bytes", "checksum")
_REPAIR = "run `assayline db rebuild --all --set-aside`, which renames it and loads every run into a new database."
_HOLDER = re.compile(r"held in (?P<program>.+?) \(PID (?P<pid>\d+)\)")


@contextmanager
def connect(
    path: Path, wait_s: float, read_only: bool = False, checkpoint: bool = True
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database at `path`, create or update it unless `read_only`, and close it at the end.

    While another process holds it, retry for `wait_s` seconds. If only readers hold it, open a copy, and rename it into
    place at the end; an error in the block drops the copy. Beyond a quarter of the memory that this process
    may use, DuckDB spills to a folder next to the database. Inside the block, query failures caused by the disk or a
    damaged file become StoreError; errors in a query stay DuckDB's.

    Without `checkpoint`, no copy is made, and writes stay in the journal next to the file (`.wal`), which every reader
    applies, until a connection closes with a checkpoint. A checkpoint overwrites blocks in place: a process that is
    killed during it may leave a torn block, and then the file cannot be opened.
    """
    path = path.resolve() if path.is_symlink() else path  # a rename would replace the link
    with ExitStack() as held:
        connection, copy = _open_database(path, wait_s, read_only, checkpoint, held)
        held.callback(connection.close)
        with explaining(path):
            if read_only:
                _check_models(connection)
                find_in_schemas(connection)
            else:
                apply_schema(connection)
            if not checkpoint:
                connection.execute("pragma disable_checkpoint_on_shutdown")
            yield connection
            if copy:
                connection.execute("checkpoint")
        if copy:
            connection.close()
            with storing(f"{copy} cannot be renamed to {path}", MAKE_ROOM):
                _put_in_place(copy, path)


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Commit the block, or roll it back on an error."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        with suppress(duckdb.Error):  # a commit that fails has undone everything already
            connection.rollback()
        raise


def apply_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables, macros and views of `sql/`, in path order and one transaction, unless they are current.

    Views bind when they are created, which verifies the order of the files. If any file changed, all views and macros
    are recreated, and those without a file are dropped.
    """
    schema_files = sorted((SQL_FOLDER / "schema").glob("*.sql"))
    models = list_models()
    schema_digest, models_digest = _digest_files(schema_files), _digest_models(models)
    stored = _read_version(connection)
    if stored == (TABLE_VERSION, schema_digest, models_digest):
        find_in_schemas(connection)
        return
    path = _path_of(connection)  # an error ends the transaction, and with it all queries
    with transaction(connection):
        try:
            for file in schema_files:
                connection.execute(file.read_text(encoding="utf-8"))
        except duckdb.BinderException as error:
            reason = f"{path} has tables of an earlier assayline {__version__}: {_first_line(error)}"
            raise DatabaseUnusableError(f"{reason} hint: {_REPAIR}") from None
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


def find_in_schemas(connection: duckdb.DuckDBPyConnection, *databases: str) -> None:
    """Resolve unqualified names in all schemas of these databases (default: the current one), in this order."""
    schemas = ("internal", "raw", "main")
    path = [f"{database}.{schema}" for database in databases for schema in schemas] or schemas
    connection.execute(f"set search_path = {quote_text(','.join(path))}")


def is_read_only(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return True if the connection cannot write: what a reader computes is not stored."""
    query = "select readonly from duckdb_databases() where database_name = current_database()"
    return bool(connection.execute(query).fetchall()[0][0])


def list_models() -> dict[str, Model]:
    """Return the macros and views of `sql/` by name, in creation order."""
    return read_models(SQL_FOLDER)


def _open_database(
    path: Path, wait_s: float, read_only: bool, may_copy: bool, held: ExitStack
) -> tuple[duckdb.DuckDBPyConnection, Path | None]:
    """Return a connection, and the copy that it has open if only readers hold the file. `held` gets the locks."""
    if read_only and not path.exists():
        raise StoreError(f"There is no database at {path}. hint: run an evaluation first, or correct the path.")
    if found := UNUSABLE.findall(str(path)):
        raise StoreError(
            f"The database path {str(path)!r} contains {found[0]!r}, which DuckDB does not accept in a path. hint: set "
            "ASSAYLINE_DATABASE to another path, or ASSAYLINE_DATA_DIR to another folder."
        )
    memory_limit = f"{read_memory_bytes(Path('/')) // _SHARE // 2**10}KiB"
    config: Config = {"storage_compatibility_version": _STORAGE_VERSION, "memory_limit": memory_limit}
    began, copy = time.monotonic(), None
    if not read_only:
        _lock_out_writers(path, wait_s, held)
    while True:
        try:
            return _connect_file(copy or path, read_only, config), copy
        except (duckdb.Error, OSError) as error:
            left_s = began + wait_s - time.monotonic()
            if _RENAMED in str(error) and left_s > 0:
                time.sleep(_RETRY_S)
                continue
            if _LOCKED not in str(error):
                raise _explain_opening(path, error) from error
            is_copied = may_copy and not read_only and left_s <= max(0.0, wait_s - _READERS_S)
            if is_copied and (copy := _copy_beside(path, held)):
                continue
            if left_s <= 0:
                raise DatabaseLockedError(_describe_lock(path, wait_s, str(error))) from error
            time.sleep(min(_RETRY_S, left_s))


def _connect_file(path: Path, read_only: bool, config: Config) -> duckdb.DuckDBPyConnection:
    """Open the file. A separate function, so that tests can put an empty database there first."""
    return duckdb.connect(path, read_only=read_only, config=config)


def read_memory_bytes(root: Path) -> int:
    """Return the memory that this process may use: the lowest limit of its control groups, else the machine's."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in list_memory_groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # of the other version, or without a limit
                limits.append(int((folder / name).read_text()))
    return min(limits)


def _lock_out_writers(path: Path, wait_s: float, held: ExitStack) -> None:
    """Keep other assayline processes from writing, and complete or remove what a killed one left of its copy."""
    name = f"{path.name}.lock"
    if (lock := lock_file(path.with_name(name), wait_s)) is None:
        raise DatabaseInUseError(
            f"{path} is in use by {name_holder(path.parent, name)}, another assayline command{_for_longer(wait_s)}. "
            "hint: run the same command again after it exits."
        )
    held.callback(lock.release)
    if (folder := _copy_folder(path)).exists():
        with storing(f"The copy of the database in {folder} cannot be removed", MAKE_ROOM):
            if (folder / _REPLACED).exists() and (folder / path.name).exists():
                (folder / path.name).replace(path)
            shutil.rmtree(folder)


def _copy_beside(path: Path, held: ExitStack) -> Path | None:
    """Copy the database and its journal; None if another process may write it.

    The copy has the same file name, which views may rely on. Until `held` closes, the lock of a reader, which is a
    POSIX lock on the whole file, keeps other programs from opening the original for writing.
    """
    copy = _copy_folder(path) / path.name
    with storing(f"{path} is read by another program, and cannot be copied to {copy}", MAKE_ROOM):
        source = held.enter_context(path.open("rb", buffering=0))
        try:
            fcntl.lockf(source, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            source.close()
            return None
        held.callback(shutil.rmtree, copy.parent, ignore_errors=True)
        copy.parent.mkdir()
        with open(copy, "wb", buffering=0) as target:
            with suppress(OSError, AttributeError):  # quick where the file system shares blocks
                while os.copy_file_range(source.fileno(), target.fileno(), 2**30):
                    pass
            shutil.copyfileobj(source, target, 2**24)  # the rest; opening `path` again would drop the lock at its close
        shutil.copymode(path, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(_journal_of(path), _journal_of(copy))
    return copy


def _put_in_place(copy: Path, path: Path) -> None:
    """Rename a closed copy to `path`.

    The journal belongs to the old file: DuckDB opens no file next to another one's journal, so it is moved away first.
    A process that is killed in between leaves an older state, which the next `_lock_out_writers` replaces by the copy.
    """
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
    with suppress(FileNotFoundError):
        _journal_of(path).replace(copy.with_name(_REPLACED))
    copy.replace(path)
    sync_folder(path.parent)


def _copy_folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.copy")


def _journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _describe_lock(path: Path, wait_s: float, message: str) -> str:
    found = _HOLDER.search(message)
    holder = f"process {found['pid']} ({found['program']})" if found else "another process"
    return (
        f"{path} is locked by {holder}{_for_longer(wait_s)}. hint: close that program, or open the database read-only "
        "in it; part files can be read with read_parquet meanwhile."
    )


def _for_longer(wait_s: float) -> str:
    return f", for longer than {wait_s:g} s (ASSAYLINE_DATABASE_WAIT_S)" if wait_s else ""


def _explain_opening(path: Path, error: Exception) -> StoreError:
    reason = f"{path} cannot be opened as a DuckDB database: {_first_line(error)}"
    if any(text in str(error) for text in _DAMAGED):
        return DatabaseUnusableError(f"{reason} hint: correct the path or, for a damaged database, {_REPAIR}")
    return StoreError(f"{reason} hint: make the data folder (ASSAYLINE_DATA_DIR) writable, with free space.")


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Raise StoreError for failures of the block's queries that the disk, memory or a damaged file causes."""
    try:
        yield
    except duckdb.Error as error:
        if (explained := _explain(path, error)) is None:
            raise
        raise explained from error


def _explain(path: Path, error: duckdb.Error) -> StoreError | None:
    """Explain a query that failed because of disk, memory or a damaged file; None for an error in the query."""
    if any(text in str(error) for text in _DAMAGED):
        return DatabaseUnusableError(f"{path} is damaged: {_first_line(error)} hint: {_REPAIR}")
    if isinstance(error, (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.FatalException)) or (
        "Failed to commit" in str(error)
    ):
        return StoreError(
            f"{path} cannot be read or written: {_first_line(error)} hint: free space or memory, then run the same "
            "command again. Part files are kept, and the rest is ingested then."
        )
    return None


def _first_line(error: BaseException) -> str:
    return as_sentence((str(error) or type(error).__name__).splitlines()[0])


def _check_models(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise StoreError if views are outdated: a reader cannot update them, and must not read other definitions."""
    stored = _read_version(connection)
    if stored is None:
        raise StoreError(
            f"{_path_of(connection)} has no tables yet. hint: run an evaluation first, or correct the path."
        )
    if stored[2] != _digest_models(list_models()):
        raise StoreError(
            f"The views in {_path_of(connection)} are of another version than assayline {__version__}, and cannot be "
            "replaced while it is open for reading only. hint: run `assayline report --leaderboard`, which replaces "
            "them."
        )


def _read_version(connection: duckdb.DuckDBPyConnection) -> tuple[int, str, str] | None:
    """Read `schema_version`: None for an empty database. Raises StoreError for another program's, or another version.

    Tables are listed only if `schema_version` is missing, because DuckDB's first list takes longer than the rest of
    opening.
    """
    try:
        query = "select table_version, schema_digest, models_digest from raw.schema_version"
        rows = connection.execute(query).fetchall()
    except duckdb.CatalogException:
        tables = connection.execute("select table_name from duckdb_tables() where not internal").fetchall()
        if not tables:
            return None
        names = ", ".join(sorted(name for (name,) in tables)[:5])
        raise StoreError(
            f"{_path_of(connection)} is a DuckDB database, but not one of assayline: it has {names}. hint: correct the "
            "path (ASSAYLINE_DATABASE)."
        ) from None
    if [version for version, _, _ in rows] != [TABLE_VERSION]:
        versions = ", ".join(str(version) for version, _, _ in rows) or "none"
        raise DatabaseUnusableError(
            f"{_path_of(connection)} has tables of version {versions}, and assayline {__version__} needs version "
            f"{TABLE_VERSION}. hint: {_REPAIR}"
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
    """Return the sha256 of names and contents: renaming a file counts as a change, because it may change the order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(SQL_FOLDER).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


Row = dict[str, Any]


def read_rows(connection: duckdb.DuckDBPyConnection, query: str, *values: Any) -> list[dict[str, Any]]:
    """Return the rows of a query as dictionaries by column name."""
    result = connection.execute(query, list(values))
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, values, strict=True)) for values in result.fetchall()]
