"""The progress of a load over all engines of an attempt, and the reason for its end.

It outlives engines: a replacement engine continues the pattern where the crashed one stopped, and so does another
attempt of the run, which gets the counts of earlier attempts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from assayline.load.arrivals import list_offsets
from assayline.records import NOT_SENT, Completion, Request
from assayline.spec.load import Concurrency, LoadSpec


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """Reason for the end of sending."""

    reason: str
    """max_requests, max_duration_s, max_errors or end_of_trace; before: it ended in an earlier attempt."""
    message: str
    """Message for the log."""
    is_sudden: bool
    """Whether requests that wait in the host are taken back; at a foreseen end they stay."""


class LoadProgress:
    """Counts settled requests and decides when sending ends; without a `LoadSpec` it never ends."""

    def __init__(
        self, spec: LoadSpec | None = None, *, settled: int = 0, errors: int = 0, end_before: str | None = None
    ) -> None:
        """Start with the counts of earlier attempts, and the message of their end, if any."""
        self.spec = spec
        self.settled = settled
        self.errors = errors
        self.end = LoadEnd("before", end_before, is_sudden=False) if end_before else None
        self.is_announced = self.end is not None
        """Whether the end was reported."""
        self._deadline_s: float | None = None

    @property
    def is_open_loop(self) -> bool:
        """True if requests have due times."""
        return self.spec is not None and self.spec.is_open_loop

    @property
    def trace_speed(self) -> float | None:
        """Speed relative to the recording, if requests bring their own times."""
        return self.spec.trace_speed if self.spec is not None else None

    @property
    def window_requests(self) -> int | None:
        """Number of requests in flight, if the pattern sets it."""
        if self.spec is not None and isinstance(self.spec.arrival, Concurrency):
            return self.spec.arrival.requests
        return None

    def settle(self, completion: Completion) -> None:
        """Count a finished request; stop at `max_errors`."""
        if completion.error_kind == NOT_SENT:
            return
        self.settled += 1
        self.errors += completion.error_kind is not None
        limit = self.spec.max_errors if self.spec else None
        if limit is not None and self.errors >= limit:
            self.stop("max_errors", f"{self.errors} requests ended as error rows, and load.max_errors is {limit}")

    def admit(self, number: int, offset_s: float | None) -> bool:
        """Return True if the request with this 0-based number may be sent; otherwise end the load.

        `offset_s` is its time in an open loop's pattern; None beyond the end of a trace.
        """
        if self.spec is not None and self.end is None:
            self._check(self.spec, number, offset_s)
        return self.end is None

    def begin(self, now_s: float) -> None:
        """Start the time limit of a closed loop at the first request of this attempt."""
        if self._deadline_s is None and self.spec is not None and self.spec.max_duration_s and not self.is_open_loop:
            self._deadline_s = now_s + self.spec.max_duration_s

    def check_time(self, now_s: float) -> None:
        """End a closed loop at its time limit."""
        if self.spec is not None and self._deadline_s is not None and now_s >= self._deadline_s:
            self.stop("max_duration_s", f"load.max_duration_s is {self.spec.max_duration_s:g}")

    def stop(self, reason: str, why: str) -> None:
        """End the load now, unless it has already ended."""
        self._end(reason, why, is_sudden=True)

    def _check(self, spec: LoadSpec, number: int, offset_s: float | None) -> None:
        if spec.max_requests is not None and number >= spec.max_requests:
            self._end("max_requests", f"load.max_requests is {spec.max_requests}")
        elif spec.is_open_loop and offset_s is None:
            why = f"the trace has {number} stamps" if self.trace_speed is None else "a row of the trace has no stamp"
            self._end("end_of_trace", f"{why}, and every request needs one")
        elif offset_s is not None and spec.max_duration_s is not None and offset_s > spec.max_duration_s:
            self._end("max_duration_s", f"load.max_duration_s is {spec.max_duration_s:g}")

    def _end(self, reason: str, why: str, *, is_sudden: bool = False) -> None:
        if self.end is None:
            self.end = LoadEnd(reason, f"Sending has ended: {why}.", is_sudden)


LEAD_S = 0.2
"""Seconds from the first request's hand-over to its due time, so that the first requests arrive on time."""


class Schedule:
    """Due times of an arrival pattern from the position of `load` on, or by the requests' own times.

    The pattern starts at the first call of `place`.
    """

    def __init__(self, load: LoadProgress) -> None:
        self._load = load
        self._number = load.settled
        self._offsets: Iterator[float] = iter(())
        if load.spec is not None and load.is_open_loop and load.trace_speed is None:
            self._offsets = list_offsets(load.spec.arrival, load.settled)
        self._offset_s = next(self._offsets, None)
        self._begun_s: float | None = None

    @property
    def reads_requests(self) -> bool:
        """True if the due time comes with the request."""
        return self._load.trace_speed is not None

    def next_due_s(self, request: Request | None = None) -> float | None:
        """Return the due time of the next request, or of this one with its own time, on the run's clock.

        None without a due time, or before the first call of `place`.
        """
        offset_s = self._find_offset(request)
        if self._begun_s is None or offset_s is None:
            return None
        return self._begun_s + offset_s

    def place(self, now_s: float, request: Request) -> float | None:
        """Schedule the next request. Return its due time; None in a closed loop, or if the load has ended."""
        self._load.begin(now_s)
        offset_s = self._find_offset(request)
        if self._begun_s is None and offset_s is not None:
            self._begun_s = now_s + LEAD_S - offset_s
        if not self._load.admit(self._number, offset_s):
            return None
        due_s = self.next_due_s(request)
        self._number += 1
        self._offset_s = next(self._offsets, None)
        return due_s

    def _find_offset(self, request: Request | None) -> float | None:
        """Return the request's time in seconds since the pattern's start; None if it has none."""
        if self._load.trace_speed is None:
            return self._offset_s
        if request is None or request.due_offset_s is None:
            return None
        return request.due_offset_s / self._load.trace_speed
