"""Several workers of a run, on its page and in the log: a table that is kept current, a line for each in trouble."""

import logging
import time
from typing import Any

from prefect.artifacts import create_table_artifact

from assayline.evaluation.progress import ALIVE, LOST, OPENING, Standing, WorkerStanding
from assayline.words import count
from tasks.outbox import Reports

TABLE_INTERVAL_S = 15.0
AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class WorkersReport:
    """Shows the workers of a run, if it has several."""

    def __init__(self, log: AnyLogger) -> None:
        self._log = log
        self._reports = Reports()
        self._sent_s = float("-inf")
        self._slow: set[str] = set()

    def show(self, standing: Standing, *, is_last: bool = False) -> None:
        """Logs which workers have become slow, and sends the table if it is time to."""
        if len(standing.workers) < 2:
            return
        for worker in standing.workers:
            if worker.is_slow and worker.worker not in self._slow:
                self._slow.add(worker.worker)
                self._log.warning(
                    "%s on %s is slow: %.0f output tokens/s, less than half of the others' median",
                    worker.worker,
                    worker.device,
                    worker.output_tokens_per_s,
                )
        if is_last or time.monotonic() - self._sent_s >= TABLE_INTERVAL_S:
            self._sent_s = time.monotonic()
            rows = [_row_of(worker) for worker in standing.workers]
            self._reports.send("workers", lambda: _publish(rows, describe_workers(standing)))

    def close(self) -> None:
        """Waits a little for the last table."""
        self._reports.close()


def count_workers(standing: Standing) -> str:
    """Workers by state, and how many are slow: `7 workers (1 opening, 1 lost, 1 slow)`."""
    counts = {state: standing.count(state) for state in (OPENING, LOST)}
    counts["slow"] = sum(worker.is_slow for worker in standing.workers)
    troubles = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    return count(standing.count(ALIVE), "worker") + (f" ({troubles})" if troubles else "")


def describe_workers(standing: Standing) -> str:
    """The same, with the speed of all workers together."""
    rate = standing.output_tokens_per_s
    return count_workers(standing) + ("" if rate is None else f", {rate:,.0f} tokens/s")


def _row_of(worker: WorkerStanding) -> dict[str, Any]:
    rate = worker.output_tokens_per_s
    return {
        "worker": worker.worker,
        "device": worker.device,
        "state": worker.state + (", slow" if worker.is_slow else ""),
        "answered": worker.answered,
        "tokens/s": "" if rate is None else f"{rate:,.0f}",
    }


def _publish(rows: list[dict[str, Any]], line: str) -> None:
    create_table_artifact(key="workers", table=rows, description=line)
