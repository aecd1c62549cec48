"""The order in which requests are sent: as given, or the longest answers first; conversations.

At the end of a run in the order given, a few long answers that began late keep a nearly empty engine busy. Begun first,
they end with the others (longest processing time first; Graham, "Bounds on multiprocessing timing anomalies", 1969).
Expected lengths come from earlier runs of the same model on the same prompts. A wrong expectation costs speed, but no
row.

Prompts are streamed, so they are ordered within a horizon of `HORIZON_SHARDS` shards; among the shards present, the
dispatcher reads the one with the longest answers first. The run's folder keeps the lengths expected at its start,
because a run that is resumed during preparation must write the same shards again.

The dispatcher uses `Conversations`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM, replace_file, storing
from assayline.media.references import find_media
from assayline.prompts import RowError
from assayline.records import EARLIER_TURN, NOT_SENT, Completion, EarlierTurn, Json, Request
from assayline.requests.build import PreparedPrompt, check_length
from assayline.requests.chat import Rendered, Renderer
from assayline.spec.evaluation import EvalSpec
from assayline.store.parts import StoredText, open_part, request_from_row


def name_shard(number: int, weight: int | None = None) -> str:
    """Return a shard's name. `weight`: expected tokens of its longest answer, if shards are read in that order."""
    return f"shard-{number:06d}" + ("" if weight is None else f"-{weight:07d}")


def shard_priority(shard: Path) -> tuple[int, str]:
    """Return a sort key: the shard with the longest answers first, then by number."""
    _, _, weight = shard.stem.partition("-")[2].partition("-")
    return -int(weight or 0), shard.name


ReadTexts = Callable[[frozenset[str]], Mapping[str, StoredText]]
"""Function from request ids to the stored answers of those requests."""


def read_shard(
    path: Path, answered: frozenset[str] = frozenset(), read_texts: ReadTexts = lambda request_ids: {}
) -> Iterator[Request]:
    """Yield the shard's requests to generate: not in `answered`, and without an error row from preparation.

    A turn of a conversation comes with its earlier turns, in order; `read_texts` returns the answers to those in
    `answered`. Raises StoreError for a damaged part.
    """
    with open_part(path) as file:
        has_turns = "turn_index" in file.schema_arrow.names
        texts = read_texts(_list_turns(file) & answered) if has_turns and answered else {}
        earlier: list[EarlierTurn] = []
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                is_ready = row["prompt_token_ids"] or row["messages_json"] or row.get("turn_messages_json")
                if not is_ready:
                    continue
                is_answered = row["request_id"] in answered
                if row.get("turn_index") is None and is_answered:
                    continue
                request = _find_media(request_from_row(row), path.parents[2])
                if request.turn_index is not None:
                    earlier = earlier if request.turn_index else []
                    request = replace(request, earlier_turns=earlier)
                    stored = texts.get(request.request_id, StoredText())
                    earlier = [*earlier, EarlierTurn(request.turn_messages or [], *stored)]
                if not is_answered:
                    yield request


def _list_turns(file: pq.ParquetFile) -> frozenset[str]:
    """Return the ids of requests that are turns of conversations."""
    rows = file.read(columns=["request_id", "turn_index"])
    return frozenset(rows.filter(pc.is_valid(rows["turn_index"]))["request_id"].to_pylist())


def _find_media(request: Request, run_dir: Path) -> Request:
    if request.media is None:
        return request
    return replace(request, media=[find_media(media, run_dir) for media in request.media])


LENGTHS_NAME = "lengths.parquet"
HORIZON_SHARDS = 16
LARGEST_HORIZON = 2**25
"""Characters and tokens of a horizon's requests at which it ends early."""

UNKNOWN_TOKENS = 9_999_999
"""Value for an answer without expected length or limit, which starts before answers of known length."""


def keep_lengths(run_dir: Path, lengths: pa.Table) -> None:
    """Store expected lengths, columns prompt_id and output_tokens, in the run's folder. Raises StoreError."""
    path = run_dir / LENGTHS_NAME
    with storing(f"{path} cannot be written", MAKE_ROOM):
        replace_file(path, lambda file: pq.write_table(lengths, file))


def read_lengths(run_dir: Path) -> dict[str, int]:
    """Read the stored lengths by prompt; empty if none were known at the run's start.

    Raises StoreError for a damaged file.
    """
    path = run_dir / LENGTHS_NAME
    if not path.exists():
        return {}
    try:
        stored = pq.ParquetFile(path).read().to_pydict()  # read_table imports more than it reads
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"{path}, the expected lengths that order the run's prompts, cannot be read: {error}. hint: restore it "
            "from a copy, or start a new run with --fresh."
        ) from error
    return dict(zip(stored["prompt_id"], stored["output_tokens"], strict=True))


def can_order(spec: EvalSpec, lengths: Mapping[str, int]) -> bool:
    """Return True if rows may differ in expected length or in their own limit."""
    source, columns = spec.prompts.source, spec.prompts.columns
    return bool(lengths) or source.counts_answers or columns.sampling is not None or columns.output_tokens is not None


def order_rows(
    spec: EvalSpec, lengths: Mapping[str, int], rows: Iterable[PreparedPrompt]
) -> Iterator[list[PreparedPrompt]]:
    """Yield the rows in horizons, each the longest first; rows of equal expected length keep their order.

    Requests get their `expected_output_tokens`.
    """
    horizon: list[PreparedPrompt] = []
    requests = size = 0
    for row in rows:
        expected = lengths.get(row.prompt.prompt_id)
        asked = [replace(request, expected_output_tokens=expected) for request in row.requests]
        horizon.append(replace(row, requests=asked))
        requests += len(asked)
        size += sum(map(measure_request, asked))
        if requests >= HORIZON_SHARDS * spec.shard_requests or size >= LARGEST_HORIZON:
            yield sort_rows(horizon)
            horizon, requests, size = [], 0, 0
    yield sort_rows(horizon)


def expected_tokens(request: Request) -> int:
    """Return the length that determines the order: the smaller of expected length and limit."""
    limits = (request.expected_output_tokens, request.sampling.get("max_tokens"))  # a row may say anything here
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=UNKNOWN_TOKENS)


def measure_request(request: Request) -> int:
    """Return the characters and tokens of a request."""
    messages = [*(request.messages or ()), *(request.turn_messages or ())]
    said = sum(len(str(message.get("content"))) for message in messages)
    return len(request.rendered or "") + len(request.prompt_token_ids) + said


def sort_rows(rows: list[PreparedPrompt]) -> list[PreparedPrompt]:
    """Sort one horizon, the longest first; rows of equal length keep their order."""
    return sorted(rows, key=lambda row: -max(map(expected_tokens, row.ready), default=0))


Key = tuple[str, int, int]


class Fail(Protocol):
    """Callback for a turn that cannot be sent: its error_kind, the reason, and its prompt's length, if it has one."""

    def __call__(self, request: Request, error_kind: str, why: str, prompt_tokens: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class _End:
    """A turn without an answer, and the error for later turns."""

    turn_index: int
    error_kind: str
    message: str


@dataclass(slots=True)
class _Conversation:
    """A conversation in progress."""

    answers: dict[int, str] = field(default_factory=dict)
    waiting: deque[Request] = field(default_factory=deque)
    """Held-back turns, in order."""
    is_asked: bool = False
    """Whether a turn is handed out and not answered."""
    end: _End | None = None


class Conversations:
    """Conversation turns that wait for answers: `add` adds a turn, `settle` records an answer.

    Both return the next turn that can be sent, if there is one. It goes to the worker that answered the previous turn,
    ahead of new conversations: few conversations are open at once, and their prefixes are still cached. All turns of a
    conversation are in one shard; `read_shard` adds the answers of earlier attempts. If a turn has no answer, later
    turns become error rows that name it.
    """

    def __init__(self, open_renderer: Callable[[], Renderer], prefill: str | None, fail: Fail) -> None:
        """Create an empty set; the renderer is opened at the first turn that follows another.

        `prefill` is the beginning of every answer; stored answers do not include it.
        """
        self._open_renderer = cache(open_renderer)
        self._prefill = prefill or ""
        self._fail = fail
        self._conversations: dict[Key, _Conversation] = {}
        self._asked: dict[str, Request] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Number of turns that wait for an answer to an earlier turn."""
        return self._held

    def add(self, request: Request) -> Request | None:
        """Add a turn. Return it if it can be sent now; otherwise it waits for the previous turn."""
        self._held += 1
        conversation = self._find_conversation(request)
        conversation.waiting.append(request)
        return self._go_on(conversation)

    def settle(self, completion: Completion) -> Request | None:
        """Record an answer. Return the turn that waited for it; one that cannot be sent becomes an error row."""
        request = self._asked.pop(completion.request_id, None)
        if request is None:
            return None
        conversation = self._find_conversation(request)
        conversation.is_asked = False
        turn_index = request.turn_index or 0
        _note(request, conversation, turn_index, completion.text, completion.error_kind, completion.error_message)
        following = self._go_on(conversation)
        self._forget(request)
        return following

    def _find_conversation(self, request: Request) -> _Conversation:
        return self._conversations.setdefault(_conversation_key(request), _Conversation())

    def _forget(self, request: Request) -> None:
        """Remove the conversation if this is its last turn."""
        if (request.turn_index or 0) + 1 == request.turns:
            self._conversations.pop(_conversation_key(request), None)

    def _go_on(self, conversation: _Conversation) -> Request | None:
        """Return the turn that can be sent now, if any. Turns that can never be sent become error rows."""
        while conversation.waiting and not conversation.is_asked:
            request = conversation.waiting.popleft()
            self._held -= 1
            _recall(request, conversation)
            if conversation.end is not None and conversation.end.turn_index < (request.turn_index or 0):
                self._fail(request, conversation.end.error_kind, conversation.end.message, None)
                self._forget(request)
            elif (ready := self._render(request, conversation)) is not None:
                return ready
        return None

    def _render(self, request: Request, conversation: _Conversation) -> Request | None:
        """Return the turn with its prompt; None if rendering fails, which makes it an error row."""
        rendered: Rendered | None = None
        try:
            if request.turn_index:
                renderer = self._open_renderer()
                rendered = renderer.render(self._write_messages(request, conversation))
                if rendered.messages is None:
                    check_length(len(rendered.token_ids), renderer.max_model_len, request.sampling.get("min_tokens"))
        except RowError as error:
            self._fail(request, error.kind, str(error), len(rendered.token_ids) if rendered else None)
            conversation.end = _end_at(request, request.turn_index or 0, error.kind, str(error))
            self._forget(request)
            return None
        ready = replace(request, turn_messages=None, earlier_turns=None)
        if rendered is not None:
            ready = replace(
                ready,
                prompt_token_ids=rendered.token_ids,
                rendered=rendered.text or None,
                messages=rendered.messages,
            )
        conversation.is_asked = True
        self._asked[request.request_id] = request
        return ready

    def _write_messages(self, request: Request, conversation: _Conversation) -> list[dict[str, Json]]:
        """Return the messages up to this turn, with the model's answers."""
        messages: list[dict[str, Json]] = []
        for turn_index, turn in enumerate(request.earlier_turns or ()):
            messages += turn.messages
            messages.append({"role": "assistant", "content": self._prefill + conversation.answers[turn_index]})
        return messages + (request.turn_messages or [])


def _recall(request: Request, conversation: _Conversation) -> None:
    """Add answers to earlier turns from earlier attempts of the run."""
    for turn_index, turn in enumerate(request.earlier_turns or ()):
        if conversation.end is not None and conversation.end.turn_index <= turn_index:
            return
        if turn_index not in conversation.answers:
            _note(request, conversation, turn_index, turn.answer, turn.error_kind, turn.error_message)


def _note(
    request: Request,
    conversation: _Conversation,
    turn_index: int,
    text: str | None,
    error_kind: str | None,
    error_message: str | None,
) -> None:
    """Keep a turn's answer or error for later turns."""
    if error_kind is not None:
        conversation.end = _end_at(request, turn_index, error_kind, error_message or error_kind)
    elif text is None:
        conversation.end = _end_at(request, turn_index, None, "no part file of the run contains its answer.")
    else:
        conversation.answers[turn_index] = text


def _end_at(request: Request, turn_index: int, error_kind: str | None, why: str) -> _End:
    if error_kind == NOT_SENT:
        return _End(turn_index, NOT_SENT, why)
    where = f"turn {turn_index + 1} of {request.turns} of the conversation"
    return _End(turn_index, EARLIER_TURN, f"Not sent, because {where} has no answer: {why:.400}")


def _conversation_key(request: Request) -> Key:
    return request.prompt_id, request.occurrence, request.repeat_index
