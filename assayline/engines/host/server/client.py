"""One streamed HTTP call, through OpenAI's own client.

Every request in flight has a connection of its own, and their number is not limited: a pool that is full would hold an
open loop back and flatter the server. The client's typed layer is left out, since it builds a model object per event
and copies the prompt part by part; its `post` hands over the stream as it is. The transport is aiohttp, whose parser is
compiled. Together that takes a fifth of the processor time (docs/serving.md).
"""

import os
import resource
import ssl
import time
from typing import Any

import aiohttp
import httpx2
import openai

from assayline.engines.host.server.events import EventReader, MalformedStreamError, ServedAnswer, ServerReportedError
from assayline.engines.host.server.failures import (
    MALFORMED,
    STREAM_CUT,
    ServedFailure,
    explain_connection,
    explain_event,
    explain_status,
    find_cause,
)
from assayline.errors import SpecError
from assayline.records import Json
from assayline.spec.engine import ServerSpec

CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 30.0
"""For what is asked of a server before the run."""

IDLE_CONNECTION_S = 2.0
"""A connection is used again for so long: less than servers keep it (vLLM: 5 s), which would fail the request."""

UNREAD = {"X-Stainless-Raw-Response": "stream"}
"""The client's mark for an answer that it is not to read."""

BROKEN = (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError, OSError)
"""How a broken connection shows: not everything below reaches us in the client's own words."""


class ServedClient:
    """The connections to one endpoint."""

    def __init__(self, server: ServerSpec, url: str, key: str | None = None) -> None:
        """`key` is that of a server of our own. Raises SpecError for certificates that cannot be read."""
        self.server = server
        self.url = url
        is_own = key is not None
        key = key or os.environ.get(server.api_key_env)
        headers = {"Accept-Encoding": "identity", **({} if key else {"Authorization": openai.Omit()})}
        self._options: Any = {"headers": headers}
        self._streaming: Any = {
            "headers": {**headers, **UNREAD},
            "timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        }
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=key or "none",
            max_retries=0,  # ours are counted
            timeout=httpx2.Timeout(CONTROL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            http_client=openai.DefaultAioHttpClient(
                verify=_trust(server.ca_file),
                trust_env=not is_own,  # no proxy is between us and our own server
                # 0 is aiohttp's word for no limit; None would be its default of 100.
                limits=httpx2.Limits(max_connections=0, keepalive_expiry=IDLE_CONNECTION_S),
            ),
        )

    async def get(self, path: str) -> Any:
        """The JSON that is at a path or URL. Raises what the client raises, and ValueError for what is no JSON."""
        return (await self._client.get(path, cast_to=httpx2.Response, options=self._options)).json()

    async def get_text(self, path: str) -> str:
        """The text that is at a path or URL. Raises what the client raises."""
        return (await self._client.get(path, cast_to=httpx2.Response, options=self._options)).text

    async def post(self, path: str, body: dict[str, Json]) -> None:
        """Sends a body and throws the answer away. Raises what the client raises."""
        await self._client.post(path, body=body, cast_to=httpx2.Response, options=self._options)

    async def ask(self, path: str, body: dict[str, Json]) -> Any:
        """The JSON that a body sent to a path or URL is answered with. Raises as `get` does."""
        return (await self._client.post(path, body=body, cast_to=httpx2.Response, options=self._options)).json()

    async def stream(self, path: str, body: dict[str, Json], answer: ServedAnswer) -> None:
        """Sends a body and adds the events of its answer to `answer`, to the end. Raises ServedFailure."""
        try:
            response = await self._client.post(path, body=body, cast_to=httpx2.Response, options=self._streaming)
        except openai.APIStatusError as error:
            raise explain_status(error) from None
        except BROKEN as error:
            raise explain_connection(error) from None
        try:
            await _read_events(response, answer)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.close()


def allow_many_connections() -> None:
    """Raises this process's limit of open files, which often is 1,024, to what it may be."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _trust(ca_file: str | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SpecError(f"engine.server.ca_file: {ca_file} cannot be read as certificates in PEM: {error}.") from None


async def _read_events(response: httpx2.Response, answer: ServedAnswer) -> None:
    reader = EventReader()
    chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    try:
        async for chunk in chunks:
            now = time.monotonic()
            for event in reader.feed(chunk):
                answer.take(event, now)
    except MalformedStreamError as error:
        raise ServedFailure(MALFORMED, f"The server's stream is malformed: {error}") from None
    except ServerReportedError as error:
        raise explain_event(error) from None
    except BROKEN as error:
        if not answer.tokens:
            raise explain_connection(error) from None
        raise ServedFailure(STREAM_CUT, f"The stream was cut: {find_cause(error)}") from None
    if answer.finish_reason is None:
        raise _explain_end(response, reader, answer)


def _explain_end(response: httpx2.Response, reader: EventReader, answer: ServedAnswer) -> ServedFailure:
    """A stream that ended in good order and without a reason to finish."""
    kind = response.headers.get("content-type", "nothing")
    if "event-stream" not in kind and not answer.tokens:
        return ServedFailure(MALFORMED, f"The server answered with {kind}, expected an event stream")
    if reader.has_ended:
        return ServedFailure(MALFORMED, "The server's stream says that it is complete, and gives no finish_reason")
    return ServedFailure(STREAM_CUT, "The stream ended in its middle")
