"""Several workers of a run, on its page and in the log: a table that is kept current, a line for whoever is lost."""

import logging
import time
from typing import Any

from prefect.artifacts import create_table_artifact

from assayline.evaluation.begin import Evaluation
from assayline.evaluation.crew import ALIVE, DEAD, SILENT, Crew, CrewStanding, WorkerStanding
from assayline.words import count
from tasks.outbox import Reports

LOOK_INTERVAL_S = 2.0
TABLE_INTERVAL_S = 15.0
AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class CrewReport:
    """Looks now and then, and tells what changed."""

    def __init__(self, crew: Crew, log: AnyLogger) -> None:
        self._crew = crew
        self._log = log
        self._reports = Reports()
        self._looked_s = self._sent_s = float("-inf")
        self._told: dict[str, str] = {}
        self._slow: set[str] = set()
        self.standing: CrewStanding | None = None
        """As of the last look."""

    def look(self) -> None:
        """Looks, if it is time to; says who has fallen silent, is taken for dead, has come back, or is slow."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = now
        self.standing = self._crew.look()
        for worker in self.standing.workers:
            self._tell(worker)
        if now - self._sent_s >= TABLE_INTERVAL_S:
            self._send(now, self.standing)

    def close(self) -> None:
        """Sends the last table, and waits a little for it."""
        if self.standing is not None:
            self.standing = self._crew.look(is_last=True)
            self._send(time.monotonic(), self.standing)
        self._reports.close()

    def _tell(self, worker: WorkerStanding) -> None:
        before = self._told.get(worker.worker, ALIVE)
        self._told[worker.worker] = worker.state
        who = f"{worker.worker} on {worker.host}"
        if worker.state == SILENT and before == ALIVE:
            self._log.warning("%s has been silent for %.0f s", who, worker.silent_s)
        elif worker.state == DEAD and before != DEAD:
            self._log.warning("%s is taken for dead; others answer what it has not stored", who)
        elif worker.state == ALIVE and before != ALIVE:
            self._log.warning("%s is back", who)
        if worker.is_slow and worker.worker not in self._slow:
            self._slow.add(worker.worker)
            self._log.warning(
                "%s is slow: %.0f output tokens/s, less than half of the others' median",
                who,
                worker.output_tokens_per_s,
            )

    def _send(self, now: float, standing: CrewStanding) -> None:
        self._sent_s = now
        rows = [_row_of(worker) for worker in standing.workers]
        self._reports.send("workers", lambda: _publish(rows, describe_crew(standing)))


def open_crew(evaluation: Evaluation, log: AnyLogger) -> CrewReport | None:
    """For a run with several workers, or with workers that others start."""
    if evaluation.workers == 1 and not evaluation.settings.launch and evaluation.spec.runner != "deployment":
        return None
    return CrewReport(Crew(evaluation.run_dir, evaluation.settings.lease_s), log)


def describe_crew(standing: CrewStanding) -> str:
    """One line: workers by state, shards, speed."""
    states = [f"{standing.count(state)} {state}" for state in (SILENT, DEAD) if standing.count(state)]
    states += [f"slow: {worker.worker}" for worker in standing.workers if worker.is_slow]
    return (
        f"{count(standing.count(ALIVE), 'worker')}{''.join(f', {state}' for state in states)}; "
        f"shards: {standing.done} of {standing.shards} done, {standing.leased} leased, "
        f"{standing.taken_over} taken over; "
        f"{standing.output_tokens_per_s:,.0f} tokens/s"
    )


def _row_of(worker: WorkerStanding) -> dict[str, Any]:
    rate = worker.output_tokens_per_s
    return {
        "worker": worker.worker,
        "host": worker.host,
        "state": worker.state + (", slow" if worker.is_slow else ""),
        "answered": worker.answered,
        "tokens/s": "" if rate is None else f"{rate:,.0f}",
    }


def _publish(rows: list[dict[str, Any]], line: str) -> None:
    create_table_artifact(key="workers", table=rows, description=line)
