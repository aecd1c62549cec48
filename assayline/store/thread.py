"""The database as the flow's process uses it: short connections, in a thread of their own.

In the main thread DuckDB meets a signal with an error of its own, in which the exception that the signal's handler
raised is lost: Ctrl-C and Prefect's cancellation would look like a failure.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from assayline.settings import Settings
from assayline.store.database import Connection, connect

Answer = TypeVar("Answer")


class DatabaseThread:
    """Does one piece of work after another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "database")

    def run(self, work: Callable[[Connection], Answer], wait_s: float | None = None) -> Answer:
        """The result of `work` on an open connection.

        Raises DatabaseLockedError if the database is not free within `wait_s` (default: the setting), and StoreError.
        """

        def connect_and_work() -> Answer:
            wait = self._settings.database_wait_s if wait_s is None else wait_s
            with connect(self._settings.database_path, wait) as connection:
                return work(connection)

        return self._thread.submit(connect_and_work).result()
