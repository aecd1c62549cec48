"""What happens to a worker's engines, as a person sees it on the run's page: log lines, and a table that grows."""

import logging
from typing import Any

from prefect.artifacts import create_table_artifact

from assayline.records import EngineEvent
from tasks.outbox import Reports

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
        """Takes one event."""
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
            self._log.warning("The run's page lacks the table of engines (engine_history has it): %s", reason)

    def _publish(self, rows: list[dict[str, str]]) -> None:
        create_table_artifact(
            key=f"engines-{self._worker}", table=rows, description=f"What happened to the engines of {self._worker}"
        )
