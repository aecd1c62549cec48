"""The ledger of an adaptive engine: what was taken from the input and is not answered yet, in the order of taking."""

from collections import deque
from collections.abc import Iterable, Iterator

from assayline.records import Request


class Ledger:
    """An input that can be sent again. Iterate over it, `settle` what is answered; None passes through."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._source = iter(requests)
        self._unanswered: dict[str, Request] = {}
        self._again: deque[Request] = deque()

    def __iter__(self) -> Iterator[Request | None]:
        return self

    def __next__(self) -> Request | None:
        if self._again:
            return self._again.popleft()
        request = next(self._source)
        if request is not None:
            self._unanswered[request.request_id] = request
        return request

    def settle(self, request_id: str) -> None:
        """The request is answered and will not be sent again."""
        del self._unanswered[request_id]

    def unanswered(self) -> list[Request]:
        """What was taken and is not settled, oldest first."""
        return list(self._unanswered.values())

    def in_flight(self) -> list[Request]:
        """Those of them that went to the engine since the last `send_again`."""
        waiting = {request.request_id for request in self._again}
        return [request for request in self._unanswered.values() if request.request_id not in waiting]

    def send_again(self) -> None:
        """Whoever reads on gets the unanswered ones first."""
        self._again = deque(self._unanswered.values())
