"""The interface of a streaming engine inside its host: it answers any number of requests at once, independently.

`vllm/async_core.py` is vLLM's async engine, `server/core.py` an OpenAI-compatible server. The host decides when to send
a request (`pacing.py`); a core sends at once. Threads of their own load media.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from assayline.engines.messages import Generate, Open, Opened
from assayline.media.load import Hearing, Loaded, load_all
from assayline.records import Completion, Request, TelemetrySample


class EngineGoneError(Exception):
    """One of the engine's own processes is gone, or holds a dead engine. The cause is in its log, not in this error."""


class StreamCore(Protocol):
    """One engine or one endpoint. Everything runs in one event loop and must not block it."""

    async def open(self) -> Opened:
        """Start or connect. Raises SpecError or DeviceError if the user must change something; other errors pass."""

    async def rejoin(self, order: Open) -> Opened:
        """Serve another run, with nothing in flight: use its clock and names, reset counters and caches."""

    async def answer(self, message: Generate) -> Completion:
        """Send now, stream to the end, and return a result or an error row.

        Raises only if the engine itself is gone, and with it all requests. If cancelled, aborts the request.
        """

    async def warm_up(self, request: Request) -> str | None:
        """Answer a request that no counter includes. Returns the error if it is refused."""

    def sample(self) -> TelemetrySample:
        """Return the current counters, without the warm-up. Called in another thread."""

    async def close(self) -> None:
        """End what it started."""


PREPARERS = min(8, max(1, len(os.sched_getaffinity(0)) - 1))
"""Requests prepared at once. Counted before vLLM binds its threads to cores; one core is left to the engine."""

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Form]):
    """A request's media in the form that its engine takes."""

    form: Form
    columns: dict[str, Any]
    """Columns of the completion that describe the media, and `media_prepare_s`."""


class MediaPool(Generic[Form]):
    """Threads that load the media of requests and pass them to `convert`."""

    def __init__(self, order: Open, hearing: Hearing, convert: Callable[[Request, list[Loaded]], Form]) -> None:
        self._order = order
        self._hearing = hearing
        self._convert = convert
        self.threads = ThreadPoolExecutor(PREPARERS, "media")

    def prepare(self, request: Request) -> Prepared[Form]:
        """Load and convert a request's media. Raises MediaError for unusable media; errors of `convert` pass."""
        started = time.monotonic()
        loaded, facts = load_all(request.media or (), self._order.media, self._hearing)
        form = self._convert(request, loaded)
        return Prepared(form, {**facts, "media_prepare_s": time.monotonic() - started})
