"""Drive a worker: the loop between it and the dispatcher, in a thread of the flow's process.

The thread writes all records that the worker reports, so that one process writes all files of a run. A lost worker (its
thread, process or machine exited unexpectedly, or it does not respond) is replaced a few times, until it answers again.
"""

import logging
from collections.abc import Callable
from contextlib import closing

from assayline.errors import AssaylineError, EngineError, ModelError, WorkerLostError
from assayline.records import EngineEvent, Request
from assayline.run.evaluation import Evaluation
from assayline.run.watch import AnyLogger, RunReport
from assayline.run.worker import Exchanger, Worker, WorkOrder
from assayline.words import count

LOG: logging.Logger = logging.getLogger("assayline")
URGENT_EVENTS = frozenset({"failed", "reduced", "isolated", "restored", "load_ended"})
"""Events that are written immediately: the engine is idle then, and the machine may be about to fail."""

REPLACEMENT_PAUSES_S = (1.0, 10.0, 60.0)
"""Pause before each replacement of a lost worker that has answered nothing since the last one."""

WAIT_S = 0.1
"""Duration of an exchange without rows; longer with many workers."""

SHORTEST_GATHER_S = 0.02
MOST_EXCHANGES_PER_S = 500
"""Limit for all workers together; an exchange with a worker on another machine takes this process about 0.8 ms."""


def drive_worker(
    evaluation: Evaluation,
    name: str,
    log: AnyLogger = LOG,
    report: RunReport | None = None,
    launch: Callable[[WorkOrder], Exchanger] = Worker,
) -> int:
    """Drive a worker until every request of the run has its row, or the run is stopped; return its number of answers.

    `log` gets its lines, and `report` hears of its engine, in this thread.
    A worker that cannot go on ends alone if others are left. Raises DeviceError, SpecError, ModelError, EngineError or
    StoreError; rows that finished before the error are stored.
    """
    dispatcher, answered, losses = evaluation.dispatcher, 0, 0
    report = report or RunReport(log)
    while True:
        drive = _Drive(evaluation, name, log, report)
        try:
            with closing(launch(evaluation.order(name))) as worker:
                drive.exchange(worker)
        except WorkerLostError as loss:
            losses = 1 if drive.answered else losses + 1
            log.warning(f"Lost {name} and requeued its requests: {loss}")
            error: AssaylineError = EngineError(
                f"{name} was lost {losses} times without an answer in between. hint: run the same command again, which "
                "resumes the run; stored answers are kept."
            )
        except (EngineError, ModelError) as failure:
            losses, error = len(REPLACEMENT_PAUSES_S) + 1, failure
        else:
            dispatcher.leave(name)
            break
        answered += drive.answered
        drive.answered = 0
        dispatcher.lose(name)
        if losses > len(REPLACEMENT_PAUSES_S):
            if not dispatcher.fail(name):
                raise error
            reason = str(error).partition("\n")[0].removesuffix(" History:")
            log.warning(f"{name} ended; the other workers answer its requests. {reason}")
            break
        if dispatcher.wait_for_end(REPLACEMENT_PAUSES_S[losses - 1]):
            break
    evaluation.writer.flush()
    answered += drive.answered
    log.info(f"Answered {count(answered, 'request')} on {drive.device}")
    return answered


class _Drive:
    """One worker, from start to end."""

    def __init__(self, evaluation: Evaluation, name: str, log: AnyLogger, report: RunReport) -> None:
        self._evaluation = evaluation
        self._name = name
        self._log = log
        self._report = report
        self.answered = 0
        self.device = ""
        self._phase = ""

    def exchange(self, worker: Exchanger) -> None:
        """Exchange with the worker until it ends. Raises WorkerLostError, and the errors of `drive_worker`."""
        evaluation, dispatcher = self._evaluation, self._evaluation.dispatcher
        requests: list[Request] = []
        while True:
            is_last = dispatcher.is_over
            if dispatcher.is_stopped or (is_last and self._phase):  # an engine that starts has nothing left to answer
                worker.stop()
            pace_s = dispatcher.workers / MOST_EXCHANGES_PER_S
            waits = {"wait_s": max(WAIT_S, pace_s), "gather_s": max(SHORTEST_GATHER_S, pace_s)}
            news = worker.exchange(requests, is_last=is_last, **waits)
            self.device = news.device
            self.answered += len(news.finished)
            if news.phase != self._phase:
                self._phase = news.phase
                dispatcher.set_phase(self._name, news.phase)
            for line in news.notes:
                self._log.info(line)
            for line in news.engine_lines:
                self._report.hear_engine(self._log, line)
            requests = dispatcher.exchange(self._name, news.finished, news.window, news.waiting)
            for record in news.records:
                evaluation.writer.add(record)
                if isinstance(record, EngineEvent):
                    self._hear(record)
            evaluation.writer.flush_old()
            if isinstance(news.error, AssaylineError):
                raise news.error
            if news.error is not None:
                raise WorkerLostError(f"{type(news.error).__name__}: {news.error}") from news.error
            if news.has_ended:
                return

    def _hear(self, event: EngineEvent) -> None:
        evaluation = self._evaluation
        evaluation.generations[self._name] = event.engine_generation + 1
        if event.event in URGENT_EVENTS:
            evaluation.writer.flush()
        if event.event == "opened":
            evaluation.dispatcher.join(self._name, self.device)
        self._report.hear(self._name, self._log, event)
        if event.event == "isolated":
            evaluation.dispatcher.note_killer(event.message or "")
