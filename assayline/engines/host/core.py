"""What a streaming engine is inside its host: it answers any number of requests at once, each on its own.

`vllm/async_core.py` is vLLM's async engine, `server/core.py` an OpenAI-compatible server. When a request is sent is the
host's business (`pacing.py`); a core sends at once. Media are loaded in threads beside it.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from assayline.engines.messages import Generate, Open, Opened
from assayline.media.load import Hearing, Loaded, MediaFacts, load_all
from assayline.records import Completion, Request, TelemetrySample


class EngineGoneError(Exception):
    """A process of the engine's own is gone, or holds a dead engine. Its log says why; this does not."""


class StreamCore(Protocol):
    """One engine or one endpoint. Everything runs in one event loop, which nothing here may block."""

    async def open(self) -> Opened:
        """Start or connects. Raises SpecError or DeviceError for what a person must change, else what it meets."""

    async def rejoin(self, order: Open) -> Opened:
        """Serve another run, with nothing in flight: its clock and names, counters at 0, no cached prefixes."""

    async def answer(self, message: Generate) -> Completion:
        """Send now, streams to the end, and returns a result or an error row.

        Raises only if the engine itself is gone, and with it all requests. Cancelled, it takes the request back.
        """

    async def warm_up(self, request: Request) -> None:
        """Answer outside every count. Raises SpecError if the request is refused."""

    def sample(self) -> TelemetrySample:
        """Return the counters now: tokens received so far, warm-up left out. Called in another thread."""

    async def close(self) -> None:
        """End what it started."""


PREPARERS = min(8, max(1, len(os.sched_getaffinity(0)) - 1))
"""How many requests are prepared at once. Counted before vLLM binds its threads to cores; one core is the engine's."""

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Form]):
    """A request's media in the form that its engine takes."""

    form: Form
    columns: dict[str, Any]
    """Of the completion: what the media were, and `media_prepare_s`."""


class MediaPool(Generic[Form]):
    """Loads the media of requests and hands them to `convert`, in threads of its own."""

    def __init__(self, order: Open, hearing: Hearing, convert: Callable[[Request, list[Loaded]], Form]) -> None:
        self._order = order
        self._hearing = hearing
        self._convert = convert
        self.threads = ThreadPoolExecutor(PREPARERS, "media")

    def prepare(self, request: Request) -> Prepared[Form]:
        """Raise MediaError for media that cannot be used, and whatever `convert` raises."""
        started = time.monotonic()
        loaded, facts = load_all(request.media or (), self._order.media, self._hearing)
        form = self._convert(request, loaded)
        return Prepared(form, {**_columns(facts), "media_prepare_s": time.monotonic() - started})


def _columns(facts: MediaFacts) -> dict[str, Any]:
    return {name: value for name, value in asdict(facts).items() if value is not None}
