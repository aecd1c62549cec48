"""A task that was submitted, watched without the API: Prefect's own way to its state asks the server each time.

So a server that is gone does not hide that a task has ended, and a run costs it fewer requests.
"""

import threading
from collections.abc import Sequence
from typing import Any

from prefect.futures import PrefectFuture


class Watched:
    """One submitted task."""

    def __init__(self, future: PrefectFuture[Any]) -> None:
        self._future = future
        self.ended = threading.Event()
        future.add_done_callback(lambda _: self.ended.set())

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.ended.is_set()

    @property
    def has_completed(self) -> bool:
        """Whether it has ended well."""
        return self.is_over and self._is_completed()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and not well."""
        return self.is_over and not self._is_completed()

    def _is_completed(self) -> bool:
        try:
            self._future.wait()  # takes the final state over from the runner, so that `state` need not ask for it
        except Exception:
            return False  # there is no final state; `result` raises the reason
        return self._future.state.is_completed()


def wait_for_one(tasks: Sequence[Watched], timeout_s: float) -> None:
    """Waits until the first of those that still run has ended, or the time is over."""
    running = [task for task in tasks if not task.is_over]
    if running:
        running[0].ended.wait(timeout_s)
