"""What a streaming engine is inside its host: it answers any number of requests at once, each on its own.

`vllm/async_core.py` is vLLM's async engine, `server/core.py` an OpenAI-compatible server. When a request is sent is the
host's business (`pacing.py`); a core sends at once.
"""

from typing import Protocol

from assayline.engines.messages import Generate, Open, Opened
from assayline.records import Completion, Request, TelemetrySample


class EngineGoneError(Exception):
    """A process of the engine's own is gone, or holds a dead engine. Its log says why; this does not."""


class StreamCore(Protocol):
    """One engine or one endpoint. Everything runs in one event loop, which nothing here may block."""

    async def open(self) -> Opened:
        """Starts or connects. Raises SpecError or DeviceError for what a person must change, else what it meets."""

    async def rejoin(self, order: Open) -> Opened:
        """Serves another run, with nothing in flight: its clock and names, counters at 0, no cached prefixes."""

    async def answer(self, message: Generate) -> Completion:
        """Sends now, streams to the end, and returns a result or an error row.

        Raises only if the engine itself is gone, and with it all requests. Cancelled, it takes the request back.
        """

    async def warm_up(self, request: Request) -> None:
        """Answers outside every count. Raises SpecError if the request is refused."""

    def sample(self) -> TelemetrySample:
        """Counters now: tokens received so far, warm-up left out. Called in another thread."""

    async def close(self) -> None:
        """Ends what it started."""
