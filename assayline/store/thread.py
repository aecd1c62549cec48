"""Database access of the flow's process: short connections in a separate thread.

In the main thread, DuckDB replaces the exception of a signal handler with its own error, so Ctrl-C and Prefect's
cancellation would look like failures.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import duckdb

from assayline.errors import DatabaseInUseError, StoreError
from assayline.settings import Settings
from assayline.store.database import Connection, connect, explaining, find_in_schemas
from assayline.store.decisions import settle_pins
from assayline.store.metrics import UnmeasuredError, ensure_metrics
from assayline.store.runs import mark_interrupted

LOG = logging.getLogger("assayline")
Answer = TypeVar("Answer")


class DatabaseThread:
    """Run work on the database, one piece after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "database")
        self._has_marked = False

    def run(
        self,
        work: Callable[[Connection], Answer],
        wait_s: float | None = None,
        checkpoint: bool = True,
        is_patient: bool = False,
    ) -> Answer:
        """Return the result of `work` on an open connection.

        Raises DatabaseLockedError if another process holds the database for longer than `wait_s` (default: the
        setting), and StoreError. With `is_patient`, another assayline command may hold it until it ends. For
        `checkpoint` see `connect`.
        """

        def connect_and_work() -> Answer:
            wait = self._settings.database_wait_s if wait_s is None else wait_s
            with connect(self._settings.database_path, wait, checkpoint=checkpoint) as own:
                if not self._has_marked:
                    mark_interrupted(own, self._settings.data_dir / "runs")
                    with suppress(StoreError):  # a folder that cannot be written; the database has them
                        settle_pins(own, self._settings.data_dir / "runs")
                    self._has_marked = True
                return work(own)

        while True:
            try:
                return self._thread.submit(connect_and_work).result()
            except DatabaseInUseError as error:
                if not is_patient:
                    raise
                LOG.warning("Waiting for the database: %s", error)

    def query(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return the result of `work`, which may store what it computes: a user who cannot write the folder reads.

        Raises StoreError.
        """
        return self.run(work) if os.access(self._settings.database_path.parent, os.W_OK) else self.read(work)

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


class DatabaseReader:
    """Run work of many threads on the database: readers at the same time, a writer alone.

    Readers share a connection, which is closed after the last of them, so other processes may write between two pages.
    A file that was renamed into place meanwhile is read once the readers of the earlier one have ended.
    """

    def __init__(self, settings: Settings, limit_s: float) -> None:
        self._settings = settings
        self._limit_s = limit_s
        self._turn = threading.Condition()
        self._readers = self._writers = 0
        self._shared = ExitStack()
        self._opened: tuple[Connection, int | None] | None = None
        """The readers' connection, and the inode of its file."""

    def read(self, work: Callable[[Connection], Answer], limit_s: float | None = None) -> Answer:
        """Return the result of `work` on a read-only connection; metrics that it lacks are stored first.

        Raises StoreError, also if `work` takes longer than the limit.
        """
        while True:
            try:
                with self._share() as own, _limited(own, limit_s or self._limit_s):
                    return work(own)
            except UnmeasuredError as error:
                missing = error.run_ids
            self.write(lambda own: ensure_metrics(own, missing))  # noqa: B023 - it is called here

    def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return the result of `work` on a connection that writes. Raises StoreError."""
        with self._turn:
            self._writers += 1  # readers that come now wait
            try:
                self._turn.wait_for(lambda: not self._readers)
                with connect(self._settings.database_path, self._settings.database_wait_s) as own:
                    return work(own)
            finally:
                self._writers -= 1
                self._turn.notify_all()

    @contextmanager
    def _share(self) -> Iterator[Connection]:
        path = self._settings.database_path
        with self._turn:
            self._turn.wait_for(
                lambda: not self._writers and (self._opened is None or self._opened[1] == _find_inode(path))
            )
            if self._opened is None:
                opened = self._shared.enter_context(connect(path, self._settings.database_wait_s, read_only=True))
                self._opened = opened, _find_inode(path)
            cursor = self._opened[0].cursor()
            self._readers += 1
        try:
            with explaining(path), cursor:
                find_in_schemas(cursor)
                yield cursor
        finally:
            with self._turn:
                self._readers -= 1
                if not self._readers:
                    self._opened = None
                    self._shared.close()
                self._turn.notify_all()


def _find_inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


@contextmanager
def _limited(connection: Connection, limit_s: float) -> Iterator[None]:
    """Interrupt every query of the block once the limit is over."""
    done = threading.Event()

    def interrupt() -> None:
        done.wait(limit_s)
        while not done.wait(0.01):
            connection.interrupt()

    watch = threading.Thread(target=interrupt, daemon=True)
    watch.start()
    try:
        yield
    except duckdb.InterruptException:
        raise StoreError(
            f"The query took longer than {limit_s:g} s. hint: narrow the filter, or run its SQL in DuckDB."
        ) from None
    finally:
        done.set()
        watch.join()
