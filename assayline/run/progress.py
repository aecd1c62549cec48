"""Progress of a run, counted as rows arrive, for display during the run. The database has the final numbers."""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from assayline.records import NOT_SENT, Completion
from assayline.words import count

OPENING, ALIVE, LOST, LEFT = "opening", "alive", "lost", "left"
RATE_OVER_S = 15.0
SLOW_SHARE = 0.5
"""Share of the median rate below which a worker is slow."""

LEAST_COMPARED = 3
"""Minimum number of workers for a comparison with their median."""


@dataclass(slots=True)
class WorkerStatus:
    worker: str
    device: str = ""
    state: str = OPENING
    """opening, alive, lost (its requests went to other workers) or left."""
    answered: int = 0
    answered_before: int = 0
    """By engines before its present one."""
    output_tokens: int = 0
    window_requests: int | None = None
    phase: str = ""
    """Phase of the engine's start; empty when the engine is ready."""
    phase_began_s: float = 0.0
    phase_s: float = 0.0
    """Seconds that the phase has taken so far."""
    output_tokens_per_s: float | None = None
    """Over the last `RATE_OVER_S` seconds; None before the first answer of an engine."""
    is_slow: bool = False
    _marks: deque[tuple[float, int]] = field(default_factory=deque)
    """(seconds, output tokens so far)"""

    def measure(self, now_s: float) -> None:
        """Measure the rate and the phase."""
        self.phase_s = now_s - self.phase_began_s if self.phase else 0.0
        if self.answered == self.answered_before:
            self._marks, self.output_tokens_per_s = deque([(now_s, self.output_tokens)]), None
            return
        self._marks.append((now_s, self.output_tokens))
        while len(self._marks) > 2 and now_s - self._marks[1][0] >= RATE_OVER_S:
            self._marks.popleft()
        since_s, tokens = self._marks[0]
        self.output_tokens_per_s = (self.output_tokens - tokens) / (now_s - since_s) if now_s > since_s else None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Progress of a run and its workers."""

    answered: int
    errors: int
    window_requests: int | None
    """Maximum requests in flight, all workers together; None before an engine is open, and in an open loop."""
    output_tokens_per_s: float | None
    """Over the last `RATE_OVER_S` seconds; None before the first answer."""
    workers: list[WorkerStatus]

    def count(self, state: str) -> int:
        return sum(worker.state == state for worker in self.workers)

    def describe_start(self) -> str:
        """Return the phase of starting engines and its seconds, `loading weights, 12 s`; empty if none is starting."""
        starting = [worker for worker in self.workers if worker.phase and worker.state in (OPENING, ALIVE)]
        if not starting:
            return ""
        longest = max(starting, key=lambda worker: worker.phase_s)
        phase = f"{longest.phase}, {longest.phase_s:.0f} s"
        return phase if len(self.workers) == 1 else f"{count(len(starting), 'engine')}: {phase}"


class Progress:
    """Counters of a run's rows. Not thread-safe: the dispatcher calls it under its lock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._workers: dict[str, WorkerStatus] = {}
        self.answered = self.errors = 0
        """Rows of all attempts."""
        self.sent = self.sent_errors = 0
        """Requests that reached an engine in this attempt, and those of them that are error rows."""

    def add(self, completion: Completion) -> None:
        """Count a row."""
        worker = self._find(completion.worker)
        worker.answered += 1
        worker.output_tokens += completion.output_tokens or 0
        self.answered += 1
        if completion.error_kind != NOT_SENT:
            is_error = completion.error_kind is not None
            self.errors += is_error
            self.sent += 1
            self.sent_errors += is_error

    def join(self, worker: str, device: str) -> None:
        """Record that the worker has an open engine."""
        found = self._find(worker)
        found.state, found.device = ALIVE, device
        found.answered_before = found.answered

    def set_window(self, worker: str, window_requests: int | None) -> None:
        """Set the worker's maximum of requests in flight."""
        self._find(worker).window_requests = window_requests

    def set_phase(self, worker: str, phase: str) -> None:
        """Set the phase of the start of the worker's engine; empty when the engine is ready."""
        found = self._find(worker)
        found.phase, found.phase_began_s = phase, self._now()

    def lose(self, worker: str) -> None:
        self._find(worker).state = LOST

    def leave(self, worker: str) -> None:
        """Record that the worker ended normally."""
        self._find(worker).state = LEFT

    def snapshot(self) -> RunStatus:
        """Return the current progress."""
        now_s = self._now()
        for one in self._workers.values():
            one.measure(now_s)
        by_number = sorted(self._workers.values(), key=lambda one: (len(one.worker), one.worker))
        _mark_slow(by_number)
        rates = [one.output_tokens_per_s for one in by_number if one.output_tokens_per_s is not None]
        windows = [one.window_requests or 0 for one in by_number if one.state == ALIVE]
        workers = [replace(one) for one in by_number]
        return RunStatus(self.answered, self.errors, sum(windows) or None, sum(rates) if rates else None, workers)

    def _find(self, worker: str) -> WorkerStatus:
        return self._workers.setdefault(worker, WorkerStatus(worker))


def _mark_slow(workers: list[WorkerStatus]) -> None:
    """Mark workers whose rate is far below the median."""
    rates = [one.output_tokens_per_s for one in workers if one.state == ALIVE and one.output_tokens_per_s is not None]
    limit = SLOW_SHARE * statistics.median(rates) if len(rates) >= LEAST_COMPARED else 0.0
    for one in workers:
        one.is_slow = one.state == ALIVE and one.output_tokens_per_s is not None and one.output_tokens_per_s < limit
