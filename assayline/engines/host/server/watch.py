"""What a server says of itself while it answers: its `/metrics`, read about once a second.

A page that is not there, or that is no vLLM's, is not asked for again. One that fails leaves out a second.
"""

import asyncio
import contextlib

import openai

from assayline.engines.host.metrics import EngineStats, parse_stats
from assayline.engines.host.server.client import BROKEN, ServedClient

INTERVAL_S = 1.0


class ServerWatch:
    """Reads from its making to `stop`, in the running event loop."""

    def __init__(self, client: ServedClient) -> None:
        self._client = client
        self._url = client.url.removesuffix("/v1") + "/metrics"
        self._read = self._before = EngineStats()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def stats(self) -> EngineStats:
        """The last reading; nothing where there is none. Called in another thread."""
        return self._read.since(self._before)

    def count_from_here(self) -> None:
        """From now on, preemptions are counted from the last reading."""
        self._before = self._read

    async def stop(self) -> None:
        """Reads no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while await self._look():
            await asyncio.sleep(INTERVAL_S)

    async def _look(self) -> bool:
        """Whether it is worth asking again."""
        try:
            found = parse_stats(await self._client.get_text(self._url))
        except openai.APIStatusError as error:
            self._read = EngineStats()
            return error.status_code >= 500
        except (openai.OpenAIError, *BROKEN):
            self._read = EngineStats()
            return True
        except ValueError:
            return False
        if self._before.preemptions is None:
            self._before = found
        self._read = found
        return found != EngineStats()
