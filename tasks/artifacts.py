"""What a run shows in Prefect while it is under way and at its end, sent by a thread of its own.

So an API that is slow, or gone, holds nothing up. Only the newest report of a kind waits; what could not be sent is
said at the end.
"""

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from assayline.digests import digest_json
from assayline.records import EngineEvent


def publish(kind: str, name: str, markdown: str, headline: str) -> None:
    """Attaches a page to the flow run. Prefect shows a timeline per key, so each kind and name has its own."""
    create_markdown_artifact(key=make_key(kind, name), markdown=markdown, description=headline)


def make_key(kind: str, name: str) -> str:
    """Makes a key of lower-case letters, digits and dashes. A name of other characters gets a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return "-".join(filter(None, [kind, plain, "" if plain == name else digest_json(name)[:8]]))


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


AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]

TROUBLE = frozenset({"failed", "reduced", "isolated", "restored"})


class EngineReport:
    """Tells each death, reduction and rebuild as it happens. A run without trouble has no table."""

    def __init__(self, worker: str, log: AnyLogger) -> None:
        self._worker = worker
        self._log = log
        self._reports = Reports()
        self._rows: list[dict[str, Any]] = []
        self._in_trouble = False

    def add(self, event: EngineEvent) -> None:
        words = (event.message or "").partition("\n")[0]
        if event.event in TROUBLE:
            self._in_trouble = True
            self._log.warning("Engine %d %s: %s", event.engine_generation, event.event, words)
        elif event.event == "grown" or (event.event == "opened" and self._in_trouble):
            self._log.info("Engine %d %s %s", event.engine_generation, event.event, words)
        self._rows.append(
            {
                "at_s": round(event.at_s, 1),
                "engine": event.engine_generation,
                "event": event.event,
                "window": event.details.get("window_requests"),
                "seconds": None if event.duration_s is None else round(event.duration_s, 1),
                "what": words,
            }
        )
        if self._in_trouble:
            rows = [{name: "" if value is None else str(value) for name, value in row.items()} for row in self._rows]
            self._reports.send("engines", lambda: self._publish(rows))

    def close(self) -> None:
        """Waits a little for the last table, and says if it did not arrive."""
        self._reports.close()
        for reason in self._reports.failures.values():
            self._log.warning("The run's page lacks the table of engines (the table engine has it): %s", reason)

    def _publish(self, rows: list[dict[str, str]]) -> None:
        create_table_artifact(
            key=f"engines-{self._worker}", table=rows, description=f"What happened to the engines of {self._worker}"
        )
