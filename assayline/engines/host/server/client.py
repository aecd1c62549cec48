"""Streamed HTTP calls through OpenAI's own client, the meaning of their failures, and the server's metrics.

Every request in flight has a connection of its own, and their number is not limited: a full pool would delay an open
loop and flatter the server. The client's typed layer is left out, since it builds a model object per event
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
from urllib.parse import urlsplit

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
from assayline.words import LOOPBACK

REJECTED = "rejected_by_server"
UNREACHABLE = "server_unreachable"
OVERLOADED = "server_overloaded"
SERVER_ERROR = "server_error"
STREAM_CUT = "stream_cut"
MALFORMED = "malformed_stream"
TIMED_OUT = "timed_out"
OVERLOADED_CODES = (429, 503)
AWAY_CODES = (502, 503)
"""Answers of a proxy without a server behind it."""

FAILED_REASONS = ("abort", "aborted", "cancelled", "error", "insufficient_system_resource", "network_error")
"""Values of finish_reason of an answer that is not complete."""

ENGINE_DEAD = "EngineCore encountered an issue"
"""The beginning of the message of vLLM's EngineDeadError, 0.26 to 0.33."""

NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout, aiohttp.ClientConnectorError)
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LONGEST_MESSAGE = 500
"""Most characters kept of a server's message: some servers answer with a page of HTML."""


class ServedFailure(Exception):
    """One failed try of a call."""

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
        """Whether the request reached no server."""
        self.retry_after_s = retry_after_s
        """Seconds that the server asks to wait, if it does."""

    @property
    def may_be_death(self) -> bool:
        """Return True if a dead server may be the cause."""
        return self.kind in (UNREACHABLE, OVERLOADED, SERVER_ERROR, STREAM_CUT) or ENGINE_DEAD in str(self)

    @property
    def is_death(self) -> bool:
        """Return True if vLLM itself reports that its engine is dead."""
        return self.kind == SERVER_ERROR and ENGINE_DEAD in str(self)


def explain_status(error: openai.APIStatusError) -> ServedFailure:
    """Return the failure for an HTTP status of 400 or more."""
    code = error.status_code
    words = f"The server answered {code}: {read_body(error)}"
    if code in OVERLOADED_CODES:
        wait_s = read_retry_after(error.response.headers.get("retry-after"))
        return ServedFailure(OVERLOADED, words, may_retry=True, is_away=code in AWAY_CODES, retry_after_s=wait_s)
    is_away = code in AWAY_CODES
    return ServedFailure(REJECTED if code < 500 else SERVER_ERROR, words, may_retry=is_away, is_away=is_away)


def explain_connection(error: BaseException) -> ServedFailure:
    """Return the failure for a connection that could not be made, or ended before the answer began."""
    may_retry = not is_certificate_error(error)
    is_away = may_retry and any(isinstance(cause, NO_CONNECTION) for cause in _list_causes(error))
    words = f"The connection failed: {find_cause(error)}"
    return ServedFailure(UNREACHABLE, words, may_retry=may_retry, is_away=is_away)


def explain_event(error: ServerReportedError) -> ServedFailure:
    """Return the failure for an error that the server sent as an event of its stream."""
    kind = REJECTED if 400 <= error.code < 500 else SERVER_ERROR
    return ServedFailure(kind, f"The server ended the stream with an error: {str(error)[:LONGEST_MESSAGE]}")


def read_body(error: openai.APIStatusError) -> str:
    """Return the server's message in an error response."""
    body = error.body
    words = read_error(body)[0] if isinstance(body, dict) else str(body or error.response.reason_phrase or "no reason")
    return " ".join(words.split())[:LONGEST_MESSAGE]


def find_cause(error: BaseException) -> str:
    """Return the innermost reason of a failed connection, such as the operating system's message."""
    reasons = [str(cause) or type(cause).__name__ for cause in _list_causes(error)]
    return reasons[-1][:LONGEST_MESSAGE]


def is_certificate_error(error: BaseException) -> bool:
    """Return whether the two sides could not agree on an encrypted connection."""
    return any(isinstance(cause, ssl.SSLError) for cause in _list_causes(error))


def read_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which holds seconds or a date."""
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
    """Return the seconds until the next try: doubled each time, with jitter so that calls do not return together."""
    wait_s: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**retries) * random.uniform(0.5, 1.5)
    return max(wait_s, failure.retry_after_s or 0.0)


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 30.0
"""Timeout of calls before the run."""

IDLE_CONNECTION_S = 2.0
"""How long an idle connection is reused: less than servers keep it (vLLM: 5 s), or a request on it would fail."""

UNREAD = {"X-Stainless-Raw-Response": "stream"}
"""The client's mark for an answer that it must not read."""

BROKEN = (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError, OSError)
"""Errors of a broken connection: the client does not wrap all errors of its lower layers."""


class ServedClient:
    """The connections to one endpoint."""

    def __init__(self, server: ServerSpec, url: str, key: str | None = None) -> None:
        """Connect with `key`, that of our own server. Raises SpecError for certificates that cannot be read."""
        self.server = server
        self.url = url
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
                # No proxy is between us and a server of this machine.
                trust_env=urlsplit(url).hostname not in LOOPBACK,
                # 0 means no limit in aiohttp; None would mean its default of 100.
                limits=httpx2.Limits(max_connections=0, keepalive_expiry=IDLE_CONNECTION_S),
            ),
        )

    async def get(self, path: str) -> Any:
        """Return the JSON at a path or URL. Raises what the client raises, and ValueError if it is not JSON."""
        return (await self._client.get(path, cast_to=httpx2.Response, options=self._options)).json()

    async def get_text(self, path: str) -> str:
        """Return the text at a path or URL. Raises what the client raises."""
        return (await self._client.get(path, cast_to=httpx2.Response, options=self._options)).text

    async def post(self, path: str, body: dict[str, Json]) -> None:
        """Send a body and discard the answer. Raises what the client raises."""
        await self._client.post(path, body=body, cast_to=httpx2.Response, options=self._options)

    async def ask(self, path: str, body: dict[str, Json]) -> Any:
        """Send a body to a path or URL and return the JSON of the answer. Raises as `get` does."""
        return (await self._client.post(path, body=body, cast_to=httpx2.Response, options=self._options)).json()

    async def stream(self, path: str, body: dict[str, Json], answer: ServedAnswer) -> None:
        """Send a body and add the events of its answer to `answer`, to the end. Raises ServedFailure."""
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
        """End all connections."""
        await self._client.close()


def allow_many_connections() -> None:
    """Raise this process's limit of open files, often 1,024, to its hard limit."""
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
    if answer.finish_reason in FAILED_REASONS:
        raise ServedFailure(SERVER_ERROR, f"The server ended the answer with finish_reason {answer.finish_reason}")
    if answer.finish_reason is None:
        raise _explain_end(response, reader, answer)


def _explain_end(response: httpx2.Response, reader: EventReader, answer: ServedAnswer) -> ServedFailure:
    """Return the failure for a stream that ended without an error and without a finish_reason."""
    kind = response.headers.get("content-type", "nothing")
    if "event-stream" not in kind and not answer.tokens:
        return ServedFailure(MALFORMED, f"The server answered with {kind}, expected an event stream")
    if reader.has_ended:
        return ServedFailure(MALFORMED, "The server's stream is complete, but has no finish_reason")
    return ServedFailure(STREAM_CUT, "The stream ended early")


MOST_SIZES = 4096
"""Sizes kept before they are cleared."""


class PromptLengths:
    """Lengths of prompts with media, as one server counts them."""

    def __init__(self, client: ServedClient, writer: RequestWriter) -> None:
        self._client = client
        self._url = client.url.removesuffix("/v1") + "/tokenize"
        self._writer = writer
        self._is_there = writer.has_extensions and writer.endpoint == "chat"
        self._beside_text: dict[object, int] = {}
        """By sizes of the media and number of messages: an upper bound of the tokens that are not text."""

    async def check(self, filled: Filled) -> None:
        """Raise MediaError (prompt_too_long) for a prompt that leaves no room for an answer."""
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
                "tokens (max_model_len), at least one of them for the answer. hint: shorten it, or make its images "
                "smaller with prompts.media.max_pixels.",
                kind="prompt_too_long",
            )

    async def _ask(self, filled: Filled) -> int | None:
        """Count tokens with media expanded; None if the server does not report them. The request shows errors."""
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
    """A task that reads a server's metrics once a second until `stop`, in the running event loop."""

    def __init__(self, client: ServedClient) -> None:
        self._client = client
        self._url = client.url.removesuffix("/v1") + "/metrics"
        self._read = self._before = EngineStats()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def stats(self) -> EngineStats:
        """Counters of the last reading; all None without one. Called in another thread."""
        return self._read.since(self._before)

    def count_from_here(self) -> None:
        """Count preemptions from the last reading on."""
        self._before = self._read

    async def stop(self) -> None:
        """Stop reading."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while await self._read_once():
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _read_once(self) -> bool:
        """Read the counters once. Returns whether to read again."""
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
