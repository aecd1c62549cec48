"""Progress of a run: a bar on its page in Prefect that moves, and a line in the log now and then."""

import logging
import time
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.outbox import Reports

SHOW_INTERVAL_S = 2.0
LOG_INTERVAL_S = 15.0
AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class Progress:
    """Reports how far a run is. An API that does not answer holds nothing up, and is said at the end."""

    def __init__(self, log: AnyLogger) -> None:
        self._log = log
        self._started_s = time.monotonic()
        self._shown_s = self._logged_s = float("-inf")
        self._said = ""
        self._artifact: UUID | None = None
        self._reports = Reports()
        self._warned: set[str] = set()

    def show(self, done: int, expected: int | None, *, last: bool = False) -> None:
        """Updates bar and log, not more often than makes sense. Errors are done, too.

        `expected` is None while prompts are still read.
        """
        now = time.monotonic()
        if now - self._shown_s < SHOW_INTERVAL_S and not last:
            return
        self._shown_s = now
        share = min(done / expected, 1.0) if expected else 0.0
        of = "" if expected is None else f" of {expected}"
        text = f"{done}{of} requests done"
        self._reports.send("progress", lambda: self._update_artifact(100 * share, text))
        if text != self._said and (last or now - self._logged_s >= LOG_INTERVAL_S):
            self._said = text
            self._logged_s = now
            percent = f" ({100 * share:.0f} %)" if expected else ", prompts are still being read"
            self._log.info("%s%s, after %.0f s", text, percent, now - self._started_s)

    def warn_once(self, text: str) -> None:
        """Logs a warning the first time it comes up."""
        if text not in self._warned:
            self._warned.add(text)
            self._log.warning(text)

    def close(self) -> bool:
        """Waits a little for the last report, and says what did not arrive. Returns whether all did."""
        self._reports.close()
        for reason in self._reports.failures.values():
            self.warn_once(f"The run's page does not show how far it came: {reason}")
        return not self._reports.failures

    def _update_artifact(self, percent: float, text: str) -> None:
        if self._artifact is None:
            created = create_progress_artifact(progress=percent, key="progress", description=text)
            self._artifact = cast(UUID, created)
        else:
            update_progress_artifact(self._artifact, progress=percent, description=text)
