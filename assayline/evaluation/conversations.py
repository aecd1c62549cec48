"""Conversations asked turn by turn: a turn waits for the answer to the one before, and has it in its prompt.

    queue.pull()  ──►  feed: later turns are held back  ──►  engine.generate()
                              ▲ settle: what was answered          │
                              └────────────────────────────────────┘

The engine never waits for a conversation: it has the other ones meanwhile. A turn that can be asked goes before first
turns that nobody has begun, so only as many conversations are open as the engine has room for, and what a prefix cache
holds of them is still there. All turns of a conversation are in one shard. What of it was answered before, by an
earlier attempt of the run or by a worker that died, comes with its turns from the parts (`shards/rows.py`).

A turn without an answer ends its conversation: what follows it becomes error rows that name it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

from assayline.prompts import RowError
from assayline.records import EARLIER_TURN, NOT_SENT, Completion, Json, Request
from assayline.requests.build import Renderer, check_length
from assayline.requests.chat import Rendered
from assayline.spec.evaluation import EvalSpec

Key = tuple[str, int, int]
OpenRenderer = Callable[[], tuple[Renderer, object, int | None]]
"""Gives what renders chats, its tokenizer, and the context's length in tokens, where it is known."""


class Fail(Protocol):
    """Takes a turn that cannot be asked: its error_kind, why, and how long its prompt is, where it has one."""

    def __call__(self, request: Request, error_kind: str, why: str, prompt_tokens: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class _End:
    """A turn that has no answer, and what becomes of those that follow it."""

    turn_index: int
    error_kind: str
    message: str


@dataclass(slots=True)
class _Talk:
    """A conversation that is under way."""

    answers: dict[int, str] = field(default_factory=dict)
    waiting: deque[Request] = field(default_factory=deque)
    """Turns that are held back, in their order."""
    is_asked: bool = False
    """Whether the turn before them is in the engine, or about to be."""
    end: _End | None = None


class Conversations:
    """Between a worker's queue and its engine: `feed` is what the engine reads, `settle` hears of every answer."""

    def __init__(self, open_renderer: OpenRenderer, prefill: str | None, fail: Fail) -> None:
        """The renderer is opened for the first later turn; without one, requests pass through.

        `prefill` is what every answer began with, which is no part of its text.
        """
        self._open_renderer = cache(open_renderer)
        self._prefill = prefill or ""
        self._fail = fail
        self._talks: dict[Key, _Talk] = {}
        self._asked: dict[str, Request] = {}
        self._ready: deque[Request] = deque()
        self._held = 0

    def feed(self, requests: Iterator[Request | None]) -> Iterator[Request | None]:
        """What can be asked now; None: nothing now, as turns wait for answers, or the input for requests."""
        is_open = True
        while is_open or self._ready or self._held:
            if self._ready:
                yield self._ready.popleft()
                continue
            try:
                request = next(requests) if is_open else None
            except StopIteration:
                is_open = False
                continue
            if request is None or request.turn_index is None:
                yield request
            else:
                self._held += 1
                talk = self._find_talk(request)
                talk.waiting.append(request)
                self._go_on(talk)

    def settle(self, completion: Completion) -> None:
        """A request is answered: the turn that waits for it can be asked, or never will be."""
        request = self._asked.pop(completion.request_id, None)
        if request is None:
            return
        talk = self._find_talk(request)
        talk.is_asked = False
        turn_index = request.turn_index or 0
        _note(request, talk, turn_index, completion.text, completion.error_kind, completion.error_message)
        self._go_on(talk)
        self._forget(request)

    def give_up(self, request: Request, why: str) -> None:
        """A turn that never came through `feed` is an error row: those that follow it are not asked."""
        if request.turn_index is not None:
            self._find_talk(request).end = _end_at(request, request.turn_index, None, why)

    def _find_talk(self, request: Request) -> _Talk:
        return self._talks.setdefault(_name_talk(request), _Talk())

    def _forget(self, request: Request) -> None:
        """Nothing follows the last turn."""
        if (request.turn_index or 0) + 1 == request.turns:
            self._talks.pop(_name_talk(request), None)

    def _go_on(self, talk: _Talk) -> None:
        """Makes ready what can be asked of a conversation now, and gives up what never can be."""
        while talk.waiting and not talk.is_asked:
            request = talk.waiting.popleft()
            self._held -= 1
            _recall(request, talk)
            if talk.end is not None and talk.end.turn_index < (request.turn_index or 0):
                self._fail(request, talk.end.error_kind, talk.end.message, None)
                self._forget(request)
            else:
                self._ask(request, talk)

    def _ask(self, request: Request, talk: _Talk) -> None:
        rendered: Rendered | None = None
        try:
            if request.turn_index:
                renderer, _, max_model_len = self._open_renderer()
                rendered = renderer.render(self._write_messages(request, talk))
                if rendered.messages is None:
                    check_length(len(rendered.token_ids), max_model_len, request.sampling.get("min_tokens"))
        except RowError as error:
            self._fail(request, error.kind, str(error), len(rendered.token_ids) if rendered else None)
            talk.end = _end_at(request, request.turn_index or 0, error.kind, str(error))
            self._forget(request)
            return
        ready = replace(request, turn_messages=None, earlier_turns=None)
        if rendered is not None:
            ready = replace(
                ready,
                prompt_token_ids=rendered.token_ids,
                rendered=rendered.text or None,
                messages=rendered.messages,
            )
        talk.is_asked = True
        self._asked[request.request_id] = request
        self._ready.append(ready)

    def _write_messages(self, request: Request, talk: _Talk) -> list[dict[str, Json]]:
        """The conversation up to this turn, with what the model said."""
        messages: list[dict[str, Json]] = []
        for turn_index, turn in enumerate(request.earlier_turns or ()):
            messages += turn.messages
            messages.append({"role": "assistant", "content": self._prefill + talk.answers[turn_index]})
        return messages + (request.turn_messages or [])


def count_first(spec: EvalSpec, window_requests: int | None, *, holds_repeats: bool = False) -> int:
    """Requests that a warm-up may look at. They are sent first: where answers decide what follows, one window."""
    most = spec.shard_requests
    return min(most, window_requests or most) if spec.prompts.asks_each_turn or holds_repeats else most


def _recall(request: Request, talk: _Talk) -> None:
    """Takes over what earlier turns were answered before this worker had the conversation."""
    for turn_index, turn in enumerate(request.earlier_turns or ()):
        if talk.end is not None and talk.end.turn_index <= turn_index:
            return
        if turn_index not in talk.answers:
            _note(request, talk, turn_index, turn.answer, turn.error_kind, turn.error_message)


def _note(
    request: Request, talk: _Talk, turn_index: int, text: str | None, error_kind: str | None, error_message: str | None
) -> None:
    """Keeps what a turn was answered, for those that follow it."""
    if error_kind is not None:
        talk.end = _end_at(request, turn_index, error_kind, error_message or error_kind)
    elif text is None:
        talk.end = _end_at(request, turn_index, None, "no part file of the run has a text of it.")
    else:
        talk.answers[turn_index] = text


def _end_at(request: Request, turn_index: int, error_kind: str | None, why: str) -> _End:
    if error_kind == NOT_SENT:
        return _End(turn_index, NOT_SENT, why)
    where = f"turn {turn_index + 1} of {request.turns} of the conversation"
    return _End(turn_index, EARLIER_TURN, f"It was not asked, as {where} has no answer: {why:.400}")


def _name_talk(request: Request) -> Key:
    return request.prompt_id, request.occurrence, request.repeat_index
