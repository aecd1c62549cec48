"""OfflineEngine: `vllm.LLM` in an engine host, fed continuously.

Mode `continuous` keeps `window` requests in flight and sends the next one as soon as one finishes; mode `barrier` sends
as many, waits for the slowest, and sends the next batch, as classic micro-batching does. All else is the same, so the
two can be compared.
"""

from collections.abc import Iterable, Iterator

from assayline.engines.base import EngineHooks, Feed
from assayline.engines.client import HostedEngine
from assayline.engines.messages import Generate, Open
from assayline.engines.parking import ParkingLot
from assayline.engines.process import POLL_INTERVAL_S, HostSetup
from assayline.errors import EngineError
from assayline.records import Completion, Request

IDLE_POLL_INTERVAL_S = 0.02


class OfflineEngine(HostedEngine):
    """An engine on `vllm.LLM`."""

    def __init__(
        self,
        order: Open,
        setup: HostSetup,
        hooks: EngineHooks = EngineHooks(),  # noqa: B008 - frozen
        *,
        window: int | None = None,
        mode: str = "continuous",
        lot: ParkingLot | None = None,
    ) -> None:
        """It never parks in `lot`, but what is parked there makes room for it."""
        self._is_barrier = mode == "barrier"
        super().__init__(order, setup, hooks, window, lot)

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answers every request once, in completion order; see `base.Engine.generate`."""
        feed = Feed(requests)
        with self._generating():
            while True:
                self._send_more(feed)
                if feed.exhausted and not self._in_flight:
                    return
                # Idle, the next request may turn up at any moment: look at the input again soon.
                yield from self._receive_finished(POLL_INTERVAL_S if self._in_flight else IDLE_POLL_INTERVAL_S)
                self._check_stop()

    def _send_more(self, feed: Feed) -> None:
        window = self._window_requests or 1
        if self._is_barrier and self._in_flight:
            return
        while self._in_flight < window and (request := feed.next()) is not None:
            self._in_flight += 1
            try:
                self._host.send(Generate(request, self._order.clock.now_s(), window))
            except EngineError:
                return  # it died: what it sent before is read first, and after that reading says so
