"""What a run shows in Prefect while it is under way, sent by a thread of its own.

So an API that is slow, or gone, holds nothing up. Only the newest report of a kind waits; what could not be sent is
said at the end.
"""

import contextvars
import threading
import time
from collections.abc import Callable

END_WAIT_S = 5.0
"""How long the end of a run waits for reports that are under way."""


class Reports:
    """Sends the newest report of each kind. Not for what must arrive."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        """By kind of report, why the last one did not arrive."""
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._sending: str | None = None
        context = contextvars.copy_context()  # in which Prefect finds the run that is meant
        threading.Thread(target=lambda: context.run(self._send_all), name="reports", daemon=True).start()

    def send(self, kind: str, report: Callable[[], None]) -> None:
        """Sends this, instead of an older report of its kind that still waits."""
        with self._changed:
            self._waiting[kind] = report
            self._changed.notify_all()

    def close(self) -> None:
        """Waits a little for what is under way. What was not sent by then is a failure."""
        deadline = time.monotonic() + END_WAIT_S
        with self._changed:
            while (self._waiting or self._sending) and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            for kind in {*self._waiting, *filter(None, [self._sending])}:
                self.failures.setdefault(kind, f"the API did not answer within {END_WAIT_S:.0f} s")
            self._waiting.clear()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                kind = next(iter(self._waiting))
                report = self._waiting.pop(kind)
                self._sending = kind
            try:
                report()
                self.failures.pop(kind, None)
            except Exception as error:  # whatever the API's client raises: the run matters more than its picture
                self.failures[kind] = f"{type(error).__name__}: {error}"
            with self._changed:
                self._sending = None
                self._changed.notify_all()
