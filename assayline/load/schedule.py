"""The schedule of one engine: when the next request of an open loop is due."""

from assayline.load.course import LoadCourse

LEAD_S = 0.2
"""From the first request's hand-over to its due time, so that the first ones are there when they are due."""


class Schedule:
    """Goes through an arrival pattern from where `course` is. Its start is the moment of the first `place`."""

    def __init__(self, course: LoadCourse) -> None:
        self._course = course
        self._number = course.settled
        self._offsets = course.list_offsets() if course.is_open_loop else None
        self._offset_s = next(self._offsets, None) if self._offsets is not None else None
        self._begun_s: float | None = None

    @property
    def next_due_s(self) -> float | None:
        """When the next request is due, on the run's clock; None if at no time, or before the first one."""
        if self._begun_s is None or self._offset_s is None:
            return None
        return self._begun_s + self._offset_s

    def place(self, now_s: float) -> float | None:
        """Gives the next request its place. Returns when it is due; None in a closed loop, or if the load has ended."""
        self._course.begin(now_s)
        if self._begun_s is None and self._offset_s is not None:
            self._begun_s = now_s + LEAD_S - self._offset_s
        if not self._course.admit(self._number, self._offset_s):
            return None
        due_s = self.next_due_s
        self._number += 1
        if self._offsets is not None:
            self._offset_s = next(self._offsets, None)
        return due_s
