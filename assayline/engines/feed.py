"""The input of an engine, one request at a time."""

from collections.abc import Iterable

from assayline.records import Request


class Feed:
    """An input that may have nothing now: `next` is None then, and `exhausted` says whether that is final."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self.exhausted = False

    def next(self) -> Request | None:
        """The next request, if there is one at this moment."""
        try:
            return next(self._requests)
        except StopIteration:
            self.exhausted = True
            return None
