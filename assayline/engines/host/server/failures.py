"""What goes wrong between a client and a server, as kinds of error rows, and which of it is worth another try.

Another try is worth it where the server has not begun to answer and says, or shows, that it may do so later: a failed
connection, 429, 502 and 503. Once a token has come there is none, as it would be counted twice.
"""

import email.utils
import random
import ssl
import time
from collections.abc import Iterator

import aiohttp
import httpx2
import openai

from assayline.engines.host.server.events import ServerReportedError, read_error

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
