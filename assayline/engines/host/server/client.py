"""One streamed HTTP call, through OpenAI's own client; what its failures mean, and what the server says meanwhile.

Every request in flight has a connection of its own, and their number is not limited: a pool that is full would hold an
open loop back and flatter the server. The client's typed layer is left out, since it builds a model object per event
and copies the prompt part by part; its `post` hands over the stream as it is. The transport is aiohttp, whose parser is
compiled. Together that takes a fifth of the processor time (docs/concepts/measuring-latency.md).
"""

import asyncio
import contextlib
import email.utils
import os
import random
import resource
import ssl
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx2
import openai

from assayline.engines.host.flight import EngineStats, parse_stats
from assayline.engines.host.server.stream import (
    EventReader,
    Filled,
    MalformedStreamError,
    RequestWriter,
    ServedAnswer,
    ServerReportedError,
    read_error,
)
from assayline.errors import MediaError, SpecError
from assayline.records import Json
from assayline.spec.engine import ServerSpec

REJECTED = "rejected_by_server"
UNREACHABLE = "server_unreachable"
OVERLOADED = "server_overloaded"
SERVER_ERROR = "server_error"
STREAM_CUT = "stream_cut"
MALFORMED = "malformed_stream"
TIMED_OUT = "timed_out"
OVERLOADED_CODES = (429, 503)
AWAY_CODES = (502, 503)
"""What a proxy answers when nothing is behind it."""

ENGINE_DEAD = "EngineCore encountered an issue"
"""How the message of vLLM's EngineDeadError begins, 0.26 to 0.33."""

NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout, aiohttp.ClientConnectorError)
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LONGEST_MESSAGE = 500
"""Characters of what a server says that are kept: some answer with a page of HTML."""


class ServedFailure(Exception):
    """One failed try."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        may_retry: bool = False,
        is_away: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.may_retry = may_retry
        self.is_away = is_away
        """Whether the request has reached no server."""
        self.retry_after_s = retry_after_s
        """How long the server asks to be left alone, where it does."""

    @property
    def may_be_death(self) -> bool:
        """Whether it looks as it would if the server had died."""
        return self.kind in (UNREACHABLE, OVERLOADED, SERVER_ERROR, STREAM_CUT) or ENGINE_DEAD in str(self)

    @property
    def is_death(self) -> bool:
        """Whether vLLM says itself that its engine is dead."""
        return self.kind == SERVER_ERROR and ENGINE_DEAD in str(self)


def explain_status(error: openai.APIStatusError) -> ServedFailure:
    """An HTTP status of 400 or more."""
    code = error.status_code
    words = f"The server answered {code}: {read_body(error)}"
    if code in OVERLOADED_CODES:
        wait_s = read_retry_after(error.response.headers.get("retry-after"))
        return ServedFailure(OVERLOADED, words, may_retry=True, is_away=code in AWAY_CODES, retry_after_s=wait_s)
    is_away = code in AWAY_CODES
    return ServedFailure(REJECTED if code < 500 else SERVER_ERROR, words, may_retry=is_away, is_away=is_away)


def explain_connection(error: BaseException) -> ServedFailure:
    """A connection that could not be made, or ended before the answer began."""
    may_retry = not is_certificate_error(error)
    is_away = may_retry and any(isinstance(cause, NO_CONNECTION) for cause in _list_causes(error))
    words = f"The connection failed: {find_cause(error)}"
    return ServedFailure(UNREACHABLE, words, may_retry=may_retry, is_away=is_away)


def explain_event(error: ServerReportedError) -> ServedFailure:
    """An error that the server sent as an event of its stream."""
    kind = REJECTED if 400 <= error.code < 500 else SERVER_ERROR
    return ServedFailure(kind, f"The server ended the stream with an error: {str(error)[:LONGEST_MESSAGE]}")


def read_body(error: openai.APIStatusError) -> str:
    """What the server says in an answer that is an error."""
    body = error.body
    words = read_error(body)[0] if isinstance(body, dict) else str(body or error.response.reason_phrase or "no reason")
    return " ".join(words.split())[:LONGEST_MESSAGE]


def find_cause(error: BaseException) -> str:
    """The innermost reason of a failed connection, such as the system's words for it."""
    reasons = [str(cause) or type(cause).__name__ for cause in _list_causes(error)]
    return reasons[-1][:LONGEST_MESSAGE]


def is_certificate_error(error: BaseException) -> bool:
    """Whether the two sides could not agree on an encrypted connection."""
    return any(isinstance(cause, ssl.SSLError) for cause in _list_causes(error))


def read_retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def choose_wait(retries: int, failure: ServedFailure) -> float:
    """Seconds until the next try: twice as long each time, scattered so that many do not come back at once."""
    wait_s: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**retries) * random.uniform(0.5, 1.5)
    return max(wait_s, failure.retry_after_s or 0.0)


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


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


MOST_SIZES = 4096
"""Sizes remembered before the memory is cleared."""


class PromptLengths:
    """Lengths of one server's prompts."""

    def __init__(self, client: ServedClient, writer: RequestWriter) -> None:
        self._client = client
        self._url = client.url.removesuffix("/v1") + "/tokenize"
        self._writer = writer
        self._is_there = writer.has_extensions and writer.endpoint == "chat"
        self._beside_text: dict[object, int] = {}
        """By sizes of the media and number of messages: at most so many tokens apart from those of the text."""

    async def check(self, filled: Filled) -> None:
        """Raises MediaError (prompt_too_long) for a prompt that leaves no room for an answer."""
        most = self._writer.max_model_len
        sizes = (filled.sizes, len(filled.messages))
        known = self._beside_text.get(sizes)
        if most is None or not self._is_there or (known is not None and known + filled.text_bytes < most):
            return
        tokens = await self._ask(filled)
        if tokens is None:
            return
        if known is None and len(self._beside_text) >= MOST_SIZES:
            self._beside_text.clear()
        self._beside_text[sizes] = tokens if known is None else min(known, tokens)
        if tokens >= most:
            raise MediaError(
                f"The prompt has {tokens} tokens with its media, as the server counts them, but the context is {most} "
                "tokens (max_model_len), at least one of them for the answer. Shorten it, or make its images smaller "
                "with prompts.media.max_pixels.",
                kind="prompt_too_long",
            )

    async def _ask(self, filled: Filled) -> int | None:
        """Tokens with media expanded; None where the server does not say. What is wrong then, the request will show."""
        body: dict[str, Json] = {"model": self._writer.model, "messages": filled.messages}
        if self._writer.chat_kwargs:
            body["chat_template_kwargs"] = self._writer.chat_kwargs
        try:
            tokens = (await self._client.ask(self._url, body)).get("count")
        except openai.APIStatusError as error:
            self._is_there = error.status_code not in (404, 405)
            return None
        except (openai.OpenAIError, *BROKEN):
            return None
        except (ValueError, AttributeError):
            tokens = None
        self._is_there = isinstance(tokens, int)
        return tokens if isinstance(tokens, int) else None


WATCH_INTERVAL_S = 1.0


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
            await asyncio.sleep(WATCH_INTERVAL_S)

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
