"""The database as the flow's process uses it: short connections, in a thread of their own.

In the main thread DuckDB meets a signal with an error of its own, in which the exception that the signal's handler
raised is lost: Ctrl-C and Prefect's cancellation would look like a failure.

DuckDB is given little memory, whatever the size of a run, and uses the disk beyond it. Some of what it does cannot go
to the disk (a percentile keeps its values, a row of megabytes is one piece): what fails for it is done again with more.

A database that another program holds stops nobody: the work is done in its stand-in (`standin.py`).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import duckdb

from assayline.errors import DatabaseLockedError, StoreError
from assayline.settings import Settings
from assayline.store.database import Connection, connect
from assayline.store.runs import mark_interrupted
from assayline.store.standin import connect_stand_in, find_stand_in, merge_stand_in

Answer = TypeVar("Answer")
GENEROUS = 8
"""How many times the usual memory the second try has; the third has what DuckDB takes by itself."""


class DatabaseThread:
    """Does one piece of work after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "database")
        self._has_marked = False
        self.held: str | None = None
        """Who holds the database, if the last work was done in the stand-in."""

    @property
    def path(self) -> Path:
        """The file in which the last work was done."""
        path = self._settings.database_path
        return path if self.held is None else find_stand_in(path)

    def run(
        self,
        work: Callable[[Connection], Answer],
        wait_s: float | None = None,
        checkpoint: bool = True,
        may_stand_in: bool = True,
    ) -> Answer:
        """The result of `work` on an open connection. It may be called again, if memory did not suffice.

        If another program holds the database for longer than `wait_s` (default: the setting), the work is done in the
        stand-in; unless `may_stand_in`, DatabaseLockedError is raised. Without `checkpoint` what `work` wrote is left
        in the journal beside the file, as `connect` says. Raises StoreError.
        """

        def connect_and_work() -> Answer:
            usual = self._settings.database_memory_bytes
            for memory_bytes in (usual, GENEROUS * usual):
                try:
                    return connect_with(memory_bytes)
                except StoreError as error:
                    if not isinstance(error.__cause__, duckdb.OutOfMemoryException):
                        raise
            return connect_with(None)

        def connect_with(memory_bytes: int | None) -> Answer:
            path = self._settings.database_path
            wait = self._settings.database_wait_s if wait_s is None else wait_s
            has_waited = find_stand_in(path).exists()
            try:
                with connect(path, 0 if has_waited else wait, memory_bytes=memory_bytes, checkpoint=checkpoint) as own:
                    self.held = None
                    merge_stand_in(own, path)
                    if not self._has_marked:
                        mark_interrupted(own, self._settings.data_dir / "runs")
                        self._has_marked = True
                    return work(own)
            except DatabaseLockedError as error:
                if not may_stand_in:
                    raise
                self.held = str(error)
            with connect_stand_in(path, wait, memory_bytes) as stand_in:
                return work(stand_in)

        return self._thread.submit(connect_and_work).result()


def describe_stand_in(database: DatabaseThread) -> str | None:
    """What a person must know when the last work was done in the stand-in; None otherwise."""
    return database.held and (
        f"{database.held} Results go to a copy, {database.path}; the next command that finds the database free moves "
        "them into it."
    )
