"""The schedule of one engine: when the next request of an open loop is due."""

from assayline.load.course import LoadCourse
from assayline.records import Request

LEAD_S = 0.2
"""From the first request's hand-over to its due time, so that the first ones are there when they are due."""


class Schedule:
    """Goes through an arrival pattern from where `course` is, or by the times that requests bring themselves.

    Its start is the moment of the first `place`.
    """

    def __init__(self, course: LoadCourse) -> None:
        self._course = course
        self._number = course.settled
        has_pattern = course.is_open_loop and course.trace_speed is None
        self._offsets = course.list_offsets() if has_pattern else None
        self._offset_s = next(self._offsets, None) if self._offsets is not None else None
        self._begun_s: float | None = None

    @property
    def reads_requests(self) -> bool:
        """Whether a request must be seen to know when it is due."""
        return self._course.trace_speed is not None

    def next_due_s(self, request: Request | None = None) -> float | None:
        """When the next request, or this one that brings its time, is due on the run's clock; None if at no time, or
        before the first one."""
        offset_s = self._find_offset(request)
        if self._begun_s is None or offset_s is None:
            return None
        return self._begun_s + offset_s

    def place(self, now_s: float, request: Request) -> float | None:
        """Gives the next request its place. Returns when it is due; None in a closed loop, or if the load has ended."""
        self._course.begin(now_s)
        offset_s = self._find_offset(request)
        if self._begun_s is None and offset_s is not None:
            self._begun_s = now_s + LEAD_S - offset_s
        if not self._course.admit(self._number, offset_s):
            return None
        due_s = self.next_due_s(request)
        self._number += 1
        if self._offsets is not None:
            self._offset_s = next(self._offsets, None)
        return due_s

    def _find_offset(self, request: Request | None) -> float | None:
        """Seconds since the pattern's start."""
        if self._course.trace_speed is None:
            return self._offset_s
        if request is None or request.due_offset_s is None:
            return None
        return request.due_offset_s / self._course.trace_speed
