"""OfflineEngine: `vllm.LLM` in an engine host, fed continuously.

Mode `continuous` keeps `window` requests in flight and sends the next one as soon as one finishes; mode `barrier` sends
`batch_size`, waits for the slowest, and sends the next batch, as classic micro-batching does. Everything else is the
same, so the two can be compared.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from assayline.engines.base import EngineHooks
from assayline.engines.feed import Feed
from assayline.engines.hosted import HostedConfig, HostedEngine, default_window
from assayline.engines.hosting import POLL_INTERVAL_S
from assayline.engines.wire import Generate, Opened
from assayline.errors import EngineError
from assayline.records import Completion, Request

IDLE_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class OfflineConfig(HostedConfig):
    """What an OfflineEngine needs to know."""

    mode: str = "continuous"
    batch_size: int = 32


class OfflineEngine(HostedEngine):
    """An engine on `vllm.LLM`."""

    def __init__(self, config: OfflineConfig, hooks: EngineHooks = EngineHooks()) -> None:  # noqa: B008 - frozen
        self._config = config
        super().__init__(config, hooks)

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

    def _first_window(self, opened: Opened) -> int:
        if self._config.mode == "barrier":
            return self._config.batch_size
        return self._config.window or default_window(opened)

    def _send_more(self, feed: Feed) -> None:
        window = self._window_requests or 1
        if self._config.mode == "barrier" and self._in_flight:
            return
        while self._in_flight < window and (request := feed.next()) is not None:
            self._in_flight += 1
            try:
                self._host.send(Generate(request, self._config.clock.now_s(), window))
            except EngineError:
                return  # it died: what it sent before is read first, and after that reading says so
