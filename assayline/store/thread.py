"""The database as the flow's process uses it: short connections, in a thread of their own.

In the main thread DuckDB meets a signal with an error of its own, in which the exception that the signal's handler
raised is lost: Ctrl-C and Prefect's cancellation would look like a failure.

DuckDB is given little memory, whatever the size of a run, and uses the disk beyond it. Some of what it does cannot go
to the disk (a percentile keeps its values, a row of megabytes is one piece): what fails for it is done again with more.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import duckdb

from assayline.errors import StoreError
from assayline.settings import Settings
from assayline.store.database import Connection, connect

Answer = TypeVar("Answer")
GENEROUS = 8
"""How many times the usual memory the second try has; the third has what DuckDB takes by itself."""


class DatabaseThread:
    """Does one piece of work after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "database")

    def run(self, work: Callable[[Connection], Answer], wait_s: float | None = None, checkpoint: bool = True) -> Answer:
        """The result of `work` on an open connection. It may be called again, if memory did not suffice.

        Without `checkpoint` what `work` wrote is left in the journal beside the file, as `connect` says. Raises
        DatabaseLockedError if the database is not free within `wait_s` (default: the setting), and StoreError.
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
            wait = self._settings.database_wait_s if wait_s is None else wait_s
            path = self._settings.database_path
            with connect(path, wait, memory_bytes=memory_bytes, checkpoint=checkpoint) as connection:
                return work(connection)

        return self._thread.submit(connect_and_work).result()
