"""Streamed HTTP calls through aiohttp, the meaning of their failures, and the server's metrics.

Every request in flight has a connection of its own, and their number is not limited: a full pool would delay an open
loop and flatter the server.
"""

import asyncio
import contextlib
import email.utils
import json
import os
import random
import resource
import ssl
import time
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from assayline.engines.host.flight import EngineStats, parse_stats
from assayline.engines.host.server.stream import (
    EventReader,
    Filled,
    MalformedStreamError,
    RequestWriter,
    ServedAnswer,
    ServerReportedError,
    read_error,
    read_event,
)
from assayline.errors import MediaError
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

NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
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


class StatusError(Exception):
    """An HTTP status other than success, with the server's message."""

    def __init__(self, response: aiohttp.ClientResponse, body: str) -> None:
        super().__init__(_read_message(body) or response.reason or "no reason")
        self.code = response.status
        self.retry_after = response.headers.get("Retry-After")


def explain_status(error: StatusError) -> ServedFailure:
    """Return the failure for an HTTP status other than success."""
    code = error.code
    words = f"The server answered {code}: {error}"
    if code in OVERLOADED_CODES:
        wait_s = read_retry_after(error.retry_after)
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


def _read_message(body: str) -> str:
    found: Json = body
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(body)
    if isinstance(found, dict):
        found = found.get("error", found)
    return " ".join(read_error(found)[0].split())[:LONGEST_MESSAGE] if found else ""


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

BROKEN = (aiohttp.ClientError, OSError)
"""Errors of a broken connection, and of one that was not made."""


class ServedClient:
    """The connections to one endpoint, made in a running event loop."""

    def __init__(self, server: ServerSpec, url: str, key: str | None = None) -> None:
        """Connect with `key`, that of our own server."""
        self.server = server
        self.url = url
        key = key or os.environ.get(server.api_key_env)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=ssl.create_default_context(),  # of this process, whose environment may name certificates
                limit=0,  # none
                keepalive_timeout=IDLE_CONNECTION_S,
            ),
            headers={
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
            proxy=_find_proxy(url),
        )

    async def call(self, path: str, body: dict[str, Json] | None = None) -> str:
        """Return the text at a path or URL, or of the answer to a body. Raises StatusError or one of BROKEN."""
        url = path if "://" in path else self.url + path
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=CONTROL_TIMEOUT_S)
        async with self._session.request(method, url, data=data, timeout=timeout) as response:
            await _check_status(response)
            return await response.text(errors="replace")

    async def ask(self, path: str, body: dict[str, Json] | None = None) -> Any:
        """Return the JSON at a path or URL, or of the answer to a body. Raises as `call` does, and ValueError."""
        return json.loads(await self.call(path, body))

    async def stream(self, path: str, body: dict[str, Json], answer: ServedAnswer) -> None:
        """Send a body and add its answer to `answer`, to the end of the events if it has any. Raises ServedFailure."""
        try:
            response = await self._session.post(self.url + path, data=json.dumps(body).encode())
            try:
                await _check_status(response)
                await _read_events(response, answer, is_stream="stream" in body)
            finally:
                response.close()
        except StatusError as error:
            raise explain_status(error) from None
        except BROKEN as error:
            if not answer.tokens:
                raise explain_connection(error) from None
            raise ServedFailure(STREAM_CUT, f"The stream was cut: {find_cause(error)}") from None

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if not 200 <= response.status < 300:
        raise StatusError(response, await response.text(errors="replace"))


def _find_proxy(url: str) -> str | None:
    """Return the environment's proxy for a URL; None for a server of this machine."""
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host in LOOPBACK or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def allow_many_connections() -> None:
    """Raise this process's limit of open files, often 1,024, to its hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _read_events(response: aiohttp.ClientResponse, answer: ServedAnswer, *, is_stream: bool) -> None:
    reader = EventReader()
    try:
        if not is_stream:
            answer.take(read_event(await response.read()), time.monotonic())
        while chunk := await response.content.readany():
            now = time.monotonic()
            for event in reader.feed(chunk):
                answer.take(event, now)
    except MalformedStreamError as error:
        raise ServedFailure(MALFORMED, f"The server's stream is malformed: {error}") from None
    except ServerReportedError as error:
        raise explain_event(error) from None
    if answer.finish_reason in FAILED_REASONS:
        raise ServedFailure(SERVER_ERROR, f"The server ended the answer with finish_reason {answer.finish_reason}")
    if answer.finish_reason is None:
        raise _explain_end(response, reader, answer)


def _explain_end(response: aiohttp.ClientResponse, reader: EventReader, answer: ServedAnswer) -> ServedFailure:
    """Return the failure for a stream that ended without an error and without a finish_reason."""
    kind = response.headers.get("Content-Type", "nothing")
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
        except StatusError as error:
            self._is_there = error.code not in (404, 405)
            return None
        except BROKEN:
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
            found = parse_stats(await self._client.call(self._url))
        except StatusError as error:
            self._read = EngineStats()
            return error.code >= 500
        except BROKEN:
            self._read = EngineStats()
            return True
        except ValueError:
            return False
        if self._before.preemptions is None:
            self._before = found
        self._read = found
        return found != EngineStats()
