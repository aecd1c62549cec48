"""A streamed answer of an OpenAI-compatible server: server-sent events, and what they bring together.

One `json.loads` per event and no model object for it: of a client's CPU time this is the part that grows with every
token. The stamp of a token is when the last byte of its event was read.
"""

import json
from collections.abc import Iterator
from typing import Any

from assayline.records import Json

LONGEST_EVENT_BYTES = 2**24
DONE = b"[DONE]"


class MalformedStreamError(Exception):
    """Bytes that are no event stream, or events that are none of a completion."""


class ServerReportedError(Exception):
    """The server ended a stream that had begun well with an error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EventReader:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self.has_ended = False
        """Whether the server said that nothing follows."""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Json]]:
        """The events that this chunk completes. Raises MalformedStreamError."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_EVENT_BYTES:
            raise MalformedStreamError(f"a line has more than {LONGEST_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif self._data and not line.strip():
                data = b"\n".join(self._data)
                self._data.clear()
                if data == DONE:
                    self.has_ended = True
                else:
                    yield _parse(data)


def _parse(data: bytes) -> dict[str, Json]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise MalformedStreamError(f"an event is no JSON ({error}): {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise MalformedStreamError(f"an event is no object: {data[:80]!r}")
    return event


class ServedAnswer:
    """What has come of one answer. Where the server gives token ids, they say which tokens an event holds."""

    __slots__ = (
        "event_stamps",
        "finish_reason",
        "logprobs",
        "reasoning",
        "stop_reason",
        "texts",
        "token_ids",
        "token_stamps",
        "usage",
    )

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.token_ids: list[int] = []
        self.token_stamps: list[float] = []
        self.event_stamps: list[float] = []
        """One per event with text; kept where the server gives no token ids."""
        self.logprobs: list[Any] = []
        self.usage: dict[str, Json] | None = None
        self.finish_reason: str | None = None
        self.stop_reason: Any = None

    def take(self, event: dict[str, Json], at: float) -> None:
        """Adds one event that came at `at`. Raises MalformedStreamError or ServerReportedError."""
        try:
            if choices := event.get("choices"):
                self._take_choice(choices[0], at)
            elif error := event.get("error"):
                raise ServerReportedError(*read_error(error))
            if usage := event.get("usage"):
                self.usage = dict(usage)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            shown = json.dumps(event)[:200]
            raise MalformedStreamError(f"an event is none of a completion ({error!r}): {shown}") from None

    def _take_choice(self, choice: dict[str, Json], at: float) -> None:
        delta = choice.get("delta") or choice
        text = delta.get("text") or delta.get("content")
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if text:
            self.texts.append(text)
        if thought:
            self.reasoning.append(thought)
        if ids := choice.get("token_ids"):
            self.token_ids += ids
            self.token_stamps += [at] * len(ids)
        elif (text or thought) and not self.token_ids:
            self.event_stamps.append(at)
        if logprobs := choice.get("logprobs"):
            self.logprobs.append(logprobs)
        if finish_reason := choice.get("finish_reason"):
            self.finish_reason = str(finish_reason)
            self.stop_reason = choice.get("stop_reason")

    @property
    def tokens(self) -> int:
        """Tokens received so far: exactly where the server gives ids, else the events that had text."""
        return len(self.token_ids) or len(self.event_stamps)

    @property
    def stamps(self) -> list[float]:
        """When tokens came, on the monotonic clock; one per event where the server does not count tokens."""
        return self.token_stamps or self.event_stamps

    def count_usage(self, name: str) -> int | None:
        """A number of the server's own count, such as completion_tokens."""
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) else None

    @property
    def output_tokens(self) -> int | None:
        """As the server counts them, else as their ids say."""
        counted = self.count_usage("completion_tokens")
        return (len(self.token_ids) or None) if counted is None else counted

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the server had in its cache, where it says so."""
        details = (self.usage or {}).get("prompt_tokens_details")
        value = details.get("cached_tokens") if isinstance(details, dict) else None
        return value if isinstance(value, int) else None

    @property
    def media_tokens(self) -> int | None:
        """Prompt tokens that stand for media, where the server says so."""
        details = (self.usage or {}).get("prompt_tokens_details")
        counts = details.get("multimodal_tokens") if isinstance(details, dict) else None
        return sum(counts.values()) if isinstance(counts, dict) else None

    def stamp_tokens(self) -> list[float] | None:
        """One stamp per output token; None where it is not known how many tokens an event held."""
        return self.stamps if self.stamps and len(self.stamps) == self.output_tokens else None

    def list_logprobs(self) -> tuple[list[dict[str, float]], float] | None:
        """Per token {token id: log-probability}, and the sum over the tokens that were chosen; None where not asked."""
        if not self.logprobs:
            return None
        positions: list[dict[str, float]] = []
        total = 0.0
        for part in self.logprobs:
            for chosen, logprob, others in _list_positions(part):
                positions.append({_id_of(token): value for token, value in {chosen: logprob, **others}.items()})
                total += logprob
        return positions, total


def read_error(error: Json) -> tuple[str, int]:
    """What an error object of a server says, and its HTTP-like code; 500 where it has none."""
    if not isinstance(error, dict):
        return str(error), 500
    code = error.get("code")
    return str(error.get("message") or error), code if isinstance(code, int) else 500


def _list_positions(part: dict[str, Json]) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Token, log-probability and alternatives, in the form of chat completions or of completions."""
    if "content" in part:
        for entry in part["content"] or ():
            others = {other["token"]: other["logprob"] for other in entry.get("top_logprobs") or ()}
            yield entry["token"], entry["logprob"], others
    else:
        tops = part.get("top_logprobs") or [None] * len(part["tokens"])
        for token, logprob, others in zip(part["tokens"], part["token_logprobs"], tops, strict=True):
            yield token, logprob, others or {}


def _id_of(token: str) -> str:
    """vLLM writes token_id:42 where it is asked to."""
    return token.removeprefix("token_id:")
