"""Database access of the flow's process: short connections in a separate thread.

In the main thread, DuckDB replaces the exception of a signal handler with its own error, so Ctrl-C and Prefect's
cancellation would look like failures.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import duckdb

from assayline.errors import StoreError
from assayline.settings import Settings
from assayline.store.database import Connection, connect
from assayline.store.decisions import keep_earlier
from assayline.store.runs import mark_interrupted

Answer = TypeVar("Answer")


class DatabaseThread:
    """Run work on the database, one piece after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "database")
        self._has_marked = False

    def run(self, work: Callable[[Connection], Answer], wait_s: float | None = None, checkpoint: bool = True) -> Answer:
        """Return the result of `work` on an open connection.

        Raises DatabaseLockedError if another process holds the database for longer than `wait_s` (default: the
        setting), and StoreError. For `checkpoint` see `connect`.
        """

        def connect_and_work() -> Answer:
            wait = self._settings.database_wait_s if wait_s is None else wait_s
            with connect(self._settings.database_path, wait, checkpoint=checkpoint) as own:
                if not self._has_marked:
                    mark_interrupted(own, self._settings.data_dir / "runs")
                    with suppress(StoreError):  # a folder that cannot be written; the database has them
                        keep_earlier(own, self._settings.data_dir / "runs")
                    self._has_marked = True
                return work(own)

        return self._thread.submit(connect_and_work).result()

    def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return the result of `work` on a read-only connection, shared with other readers.

        Queries end when this call is interrupted. Raises StoreError.
        """
        opened: list[Connection] = []

        def connect_and_work() -> Answer:
            with connect(self._settings.database_path, self._settings.database_wait_s, read_only=True) as connection:
                opened.append(connection)
                return work(connection)

        done = self._thread.submit(connect_and_work)
        try:
            return done.result()
        except BaseException:
            while opened and not done.done():  # `work` may begin another query
                with suppress(duckdb.Error):  # it has just closed the connection
                    opened[0].interrupt()
                time.sleep(0.01)
            raise
