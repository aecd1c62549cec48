"""Write a request as the body of an HTTP call, and read the answer's stream of events.

A spec's `sampling` has vLLM's names and vLLM's meaning. A server with vLLM's extensions takes nearly all of them, and
also gets the unset ones, which a model's generation_config.json would otherwise change silently. Any other server takes
the parameters of OpenAI's interface; another name is an error, so that none is silently ignored.
"""

import base64
import codecs
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from assayline.errors import SpecError
from assayline.media.load import Loaded, read_content
from assayline.media.pictures import encode_png
from assayline.media.sounds import RATE_HZ, encode_wav
from assayline.records import Json, Request

OPENAI = frozenset(
    {"frequency_penalty", "logit_bias", "max_tokens", "presence_penalty", "seed", "stop", "temperature", "top_p"}
)
EXTENSIONS = frozenset(
    {
        "allowed_token_ids", "bad_words", "ignore_eos", "include_stop_str_in_output", "logprobs", "min_p", "min_tokens",
        "repetition_detection", "repetition_penalty", "skip_special_tokens", "spaces_between_special_tokens",
        "stop_token_ids", "structured_outputs", "thinking_token_budget", "top_k",
    }
)  # fmt: skip
"""Parameters of vllm.SamplingParams that vLLM's server takes beyond OpenAI's."""
UNSTREAMED = "prompt_logprobs"
"""Parameter that vLLM's server takes as well, but not for a streamed answer."""

NEUTRAL: dict[str, Json] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
"""Defaults of vllm.SamplingParams, which a server may replace with others."""

ENDPOINT_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
"""Paths below the base URL."""


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """A writer of request bodies for one endpoint of one server."""

    endpoint: str
    """completions or chat."""
    model: str
    """Its name on the server."""
    has_extensions: bool
    """Whether it takes vLLM's fields."""
    max_model_len: int | None
    """The context in tokens, if the server reports it."""
    chat_kwargs: dict[str, Json]
    """Variables of the chat template, if the server renders."""
    max_tokens_name: str = "max_tokens"

    @property
    def path(self) -> str:
        """Path of requests, below the base URL."""
        return ENDPOINT_PATHS[self.endpoint]

    def check(self, sampling: dict[str, Json]) -> None:
        """Raise SpecError for parameters that the server does not take."""
        self._list_parameters(sampling)

    def check_room(self, request: Request) -> None:
        """Raise SpecError if max_tokens is unset and the context's length is unknown."""
        is_open = self.endpoint == "completions" and request.sampling.get("max_tokens") is None
        if is_open and self.max_model_len is None:
            raise SpecError(
                "The server does not report its model's context length, so the room for an answer is unknown. "
                "hint: set sampling.max_tokens."
            )

    def write(self, request: Request) -> dict[str, Json]:
        """Return the body of one request. Raises SpecError for a parameter that the server does not take."""
        body: dict[str, Json] = {"model": self.model, **self._list_parameters(request.sampling)}
        if UNSTREAMED not in body:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.has_extensions:
            body["return_token_ids"] = True
        if self.endpoint == "completions" and request.media:
            raise SpecError(
                "Images, audio and video can be sent to chat completions only. hint: set engine.server.endpoint to "
                "chat."
            )
        if self.endpoint == "completions":
            body["prompt"] = request.prompt_token_ids
            room = (self.max_model_len or 0) - len(request.prompt_token_ids)
            body.setdefault("max_tokens", max(1, room))  # the server's own default is 16
        else:
            body["messages"] = request.messages
            if "max_tokens" in body:
                body[self.max_tokens_name] = body.pop("max_tokens")
            if self.chat_kwargs:
                body["chat_template_kwargs"] = self.chat_kwargs
        return body

    def _list_parameters(self, sampling: dict[str, Json]) -> dict[str, Json]:
        given = {name: value for name, value in sampling.items() if value is not None and name != "n"}
        if given.get("seed") == -1:
            del given["seed"]  # vLLM's way to write "no seed"
        form = {} if self.has_extensions else self._shape_output(given.pop("structured_outputs", None))
        known = OPENAI | EXTENSIONS if self.has_extensions else OPENAI
        if self.has_extensions and self.endpoint == "completions":
            known |= {UNSTREAMED}
        if unknown := sorted(set(given) - known):
            raise SpecError(self._refuse(unknown))
        if self.has_extensions:
            given = {**NEUTRAL, **given, **self._ask_for_logprobs(given.get("logprobs"))}
        return {**given, **form}

    def _refuse(self, names: list[str]) -> str:
        what = f"The sampling parameters {', '.join(names)}" if len(names) > 1 else f"The sampling parameter {names[0]}"
        if self.has_extensions:
            return f"{what} cannot be used over HTTP. hint: remove it, or use backend offline or async."
        return (
            f"{what} is not part of OpenAI's interface, and the server does not report that it is vLLM. hint: remove "
            "it."
        )

    def _ask_for_logprobs(self, wanted: Any) -> dict[str, Json]:
        if wanted is None:
            return {}
        asked: dict[str, Json] = {"logprobs": wanted} if self.endpoint == "completions" else {
            "logprobs": True, "top_logprobs": wanted,
        }  # fmt: skip
        return {**asked, "return_tokens_as_token_ids": True}

    def _shape_output(self, form: Any) -> dict[str, Json]:
        """Return structured_outputs as OpenAI's response_format, which supports only JSON, and only in chat."""
        if form is None:
            return {}
        if self.endpoint != "chat" or set(form) != {"json"}:
            raise SpecError(
                f"structured_outputs ({', '.join(form)}) is not supported here: a server other than vLLM takes only a "
                "JSON schema. hint: use `json`, with engine.server.endpoint: chat."
            )
        schema = {"name": "answer", "schema": form["json"], "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


FINISH_REASONS = {
    "max_tokens": "length", "model_length": "length", "eos": "stop", "eos_token": "stop", "stop_sequence": "stop",
    "end_turn": "stop",
}  # fmt: skip
"""vLLM's names for those of other servers. Any other is stored as it came, and reported at the run's end."""

LONGEST_EVENT_BYTES = 2**24
DONE = b"[DONE]"


class MalformedStreamError(Exception):
    """The bytes are not an event stream, or its events are not those of a completion."""


class ServerReportedError(Exception):
    """The server reported an error within a stream."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EventReader:
    """A parser that cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""
        self._was_cr = False
        self._data: list[bytes] = []
        self.has_ended = False
        """Whether the server sent the end marker."""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Json]]:
        """Yield the events that this chunk completes. CR, LF or both end a line. Raises MalformedStreamError.

        Events without data are left out, as is what follows the end marker.
        """
        if self._was_cr:
            chunk = chunk.removeprefix(b"\n")
        self._was_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_EVENT_BYTES:
            raise MalformedStreamError(f"a line has more than {LONGEST_EVENT_BYTES} bytes")
        for line in lines:
            if (line := line.removeprefix(codecs.BOM_UTF8)).startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif self._data and not line.strip():
                data = b"\n".join(self._data)
                self._data.clear()
                self.has_ended = self.has_ended or data == DONE
                if data and not self.has_ended:
                    yield read_event(data)


def read_event(data: bytes) -> dict[str, Json]:
    """Return an object of JSON. Raises MalformedStreamError."""
    try:
        try:
            event = from_json(data)  # in a third of json's time
        except ValueError:
            event = json.loads(data)  # reads more: half a surrogate pair, deeper objects
    except (ValueError, RecursionError) as error:
        raise MalformedStreamError(f"an event is not JSON ({error}): {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise MalformedStreamError(f"an event is not an object: {data[:80]!r}")
    return event


class ServedAnswer:
    """One answer as received so far. If the server sends token ids, they show which tokens an event holds."""

    __slots__ = (
        "cumulative_logprob",
        "drafts",
        "event_stamps",
        "finish_reason",
        "logprobs",
        "model",
        "prompt_logprobs",
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
        """One per event with text; kept if the server sends no token ids."""
        self.logprobs: list[dict[str, float]] = []
        """{token id: log-probability} per token, if requested."""
        self.cumulative_logprob = 0.0
        """Sum over the chosen tokens."""
        self.prompt_logprobs: list[dict[str, float] | None] = []
        """{token id: log-probability} per token of the prompt, if requested; None for the first."""
        self.usage: dict[str, Json] = {}
        self.drafts: dict[str, Json] = {}
        """Columns for speculative decoding, if the server reports it for each request."""
        self.model: str | None = None
        """Name of the model that answered, as the server gives it."""
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None

    def take(self, event: dict[str, Json], at: float) -> None:
        """Add one event that came at `at`. Raises MalformedStreamError or ServerReportedError."""
        try:
            if error := event.get("error"):  # some servers send the end of a choice with it
                raise ServerReportedError(*read_error(error))
            for choice in event.get("choices") or ():
                if not choice.get("index"):  # else a second answer, which was not asked for
                    self._take_choice(choice, at)
            if (model := event.get("model")) != self.model:
                self.model = _read_parts(model)[0] or self.model
            if usage := event.get("usage"):
                self.usage = dict(usage)
            if metrics := event.get("metrics"):
                self.drafts = _read_drafts(metrics) or self.drafts
        except ServerReportedError:
            raise
        except Exception as error:  # a server may send any JSON
            try:
                shown = json.dumps(event)[:200]
            except RecursionError:
                shown = "it is nested too deeply"
            raise MalformedStreamError(f"an event does not belong to a completion ({error!r}): {shown}") from None

    def _take_choice(self, choice: dict[str, Json], at: float) -> None:
        delta = choice.get("delta") or choice
        text, thought = _read_parts(delta.get("text") or delta.get("content") or delta.get("refusal"))
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            thought += "".join(_read_parts(reasoning))
        if text:
            self.texts.append(text)
        if thought:
            self.reasoning.append(thought)
        if ids := choice.get("token_ids"):
            if None in map(_count, ids):
                raise ValueError("token ids are whole numbers")
            self.token_ids += ids
            self.token_stamps += [at] * len(ids)
        elif (text or thought) and not self.token_ids:
            self.event_stamps.append(at)
        for chosen, logprob, others in _list_positions(logprobs) if (logprobs := choice.get("logprobs")) else ():
            # vLLM writes token_id:42 on request.
            tokens = {token.removeprefix("token_id:"): float(p) for token, p in {chosen: logprob, **others}.items()}
            if not all(map(math.isfinite, tokens.values())):
                raise ValueError("log-probabilities are finite numbers")
            self.logprobs.append(tokens)
            self.cumulative_logprob += logprob
        for place in choice.get("prompt_logprobs") or ():
            self.prompt_logprobs.append(place and {token: float(one["logprob"]) for token, one in place.items()})
        if finish_reason := choice.get("finish_reason"):
            given, _ = _read_parts(finish_reason)
            self.finish_reason = FINISH_REASONS.get(given.lower(), given.lower())
            self.stop_reason = None if (reason := choice.get("stop_reason")) is None else str(reason)

    @property
    def tokens(self) -> int:
        """Tokens received so far: the exact number if the server sends ids, else the events with text."""
        return len(self.token_ids) or len(self.event_stamps)

    @property
    def stamps(self) -> list[float]:
        """Times of the tokens on the monotonic clock; one per event if the server sends no token ids."""
        return self.token_stamps or self.event_stamps

    def count_usage(self, name: str) -> int | None:
        """Return one of the server's own counts, such as completion_tokens."""
        return _count(self.usage.get(name))

    @property
    def output_tokens(self) -> int | None:
        """Output tokens as the server counts them, reasoning included, else the number of token ids."""
        counted = self.count_usage("completion_tokens")
        return (len(self.token_ids) or None) if counted is None else counted + self._count_uncounted()

    @property
    def reasoning_tokens(self) -> int | None:
        """Output tokens that are reasoning, if the server reports them."""
        return self._count_detail("completion_tokens", "reasoning_tokens") or self._count_uncounted() or None

    @property
    def hidden_tokens(self) -> int | None:
        """Reasoning tokens that no event holds; None if the server reports none, or sent a part of its reasoning."""
        if self.reasoning_tokens is None or self.stamp_tokens() is not None:
            return None if self.reasoning_tokens is None else 0
        sent = sum(map(len, self.reasoning))
        # A token has at least one character, so fewer characters than tokens are a summary.
        return 0 if sent >= self.reasoning_tokens else None if sent else self.reasoning_tokens

    def _count_uncounted(self) -> int:
        """Return the tokens that only the server's total has: some servers leave reasoning out of completion_tokens."""
        counts = [self.count_usage(f"{name}_tokens") for name in ("total", "prompt", "completion")]
        excess = 0 if None in counts else counts[0] - counts[1] - counts[2]  # type: ignore[operator]
        return 0 if excess == self.cached_tokens else max(0, excess)

    def _count_detail(self, whole: str, name: str) -> int | None:
        details = self.usage.get(f"{whole}_details")
        return _count(details.get(name)) if isinstance(details, dict) else None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were in the server's cache, if it reports them."""
        return self._count_detail("prompt_tokens", "cached_tokens")

    @property
    def media_tokens(self) -> int | None:
        """Prompt tokens that stand for media, if the server reports them."""
        details = self.usage.get("prompt_tokens_details")
        counts = details.get("multimodal_tokens") if isinstance(details, dict) else None
        return _count(sum(_count(value) or 0 for value in counts.values())) if isinstance(counts, dict) else None

    def stamp_tokens(self) -> list[float] | None:
        """Return one stamp per output token; None if the number of tokens per event is unknown."""
        return self.stamps if self.stamps and len(self.stamps) == self.output_tokens else None


def _count(value: Json) -> int | None:
    """Return a number of tokens or a token's id; None for anything else than a whole number that can be stored."""
    return value if type(value) is int and 0 <= value < 2**31 else None


def _read_parts(content: Json) -> tuple[str, str]:
    """Return the text and the thinking of content: text, or a list of parts. Raises for anything else."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise TypeError(f"{type(content).__name__} is not text")
    text = thought = ""
    for part in content:
        kind = "text" if isinstance(part, str) else part["type"]
        if kind in ("thinking", "reasoning"):
            thought += "".join(_read_parts(part.get(kind) or part.get("text")))
        elif kind in ("text", "output_text"):
            text += part if isinstance(part, str) else part["text"]
        else:
            raise ValueError(f"parts of type {kind} are not supported")
    return text, thought


def _read_drafts(metrics: Json) -> dict[str, Json]:
    """Return a completion's columns for speculative decoding, as vLLM reports it; empty for anything else."""
    match metrics:
        case {"speculative_decoding": {"acceptance_histogram": [*counts], "num_draft_tokens": tokens}}:
            if None not in [_count(tokens), *map(_count, counts)]:
                return {"draft_tokens": tokens, "acceptance_histogram": counts}
    return {}


def read_error(error: Json) -> tuple[str, int]:
    """Return the message of a server's error object and its HTTP-like code; 500 if it has none."""
    if not isinstance(error, dict):
        return str(error), 500
    code = error.get("code")
    return str(error.get("message") or error), code if isinstance(code, int) else 500


def _list_positions(part: dict[str, Json]) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Yield token, log-probability and alternatives from the form of chat completions or of completions."""
    if "content" in part:
        for entry in part["content"] or ():
            others = {other["token"]: other["logprob"] for other in entry.get("top_logprobs") or ()}
            yield entry["token"], entry["logprob"], others
    else:
        tops = part.get("top_logprobs") or [None] * len(part["tokens"])
        for token, logprob, others in zip(part["tokens"], part["token_logprobs"], tops, strict=True):
            yield token, logprob, others or {}


@dataclass(frozen=True, slots=True)
class Filled:
    """A request's messages with its media in them."""

    messages: list[dict[str, Json]]
    sizes: tuple[object, ...]
    """Sizes of its media, in order: a model turns media of equal sizes into the same number of tokens."""
    text_bytes: int


def fill_messages(request: Request, loaded: list[Loaded]) -> Filled:
    """Return the request's messages with each media part filled in, in order."""
    texts = [text for message in request.messages or () for text in _list_texts(message.get("content"))]
    return Filled(_write_messages(request, loaded), tuple(map(_size_of, loaded)), sum(len(t.encode()) for t in texts))


def _list_texts(content: Json) -> list[str]:
    if isinstance(content, list):
        return [part["text"] for part in content if part["type"] == "text"]
    return [content] if isinstance(content, str) else []


def _size_of(loaded: Loaded) -> object:
    match loaded.media["kind"]:
        case "image":
            return "image", loaded.value.size
        case "audio":
            return "audio", len(loaded.value)
    return "video", loaded.media["digest"]  # the server chooses its frames


def _write_messages(request: Request, loaded: list[Loaded]) -> list[dict[str, Json]]:
    waiting = iter(loaded)
    return [
        {
            **message,
            "content": [part if part["type"] == "text" else _write_part(next(waiting)) for part in message["content"]],
        }
        if isinstance(message.get("content"), list)
        else message
        for message in request.messages or ()
    ]


def _write_part(loaded: Loaded) -> dict[str, Json]:
    media = loaded.media
    match media["kind"]:
        case "image":
            return {"type": "image_url", "image_url": {"url": _data_uri("image/png", encode_png(loaded.value))}}
        case "audio":
            data = base64.b64encode(encode_wav(loaded.value, RATE_HZ)).decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {"type": "video_url", "video_url": {"url": _data_uri("video/mp4", read_content(media))}}


def _data_uri(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
