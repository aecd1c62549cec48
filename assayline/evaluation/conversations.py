"""Conversations asked turn by turn: a turn waits for the answer to the turn before it, and has it in its prompt.

Part of the dispatcher, which hands out the other requests meanwhile. The next turn goes to the worker that answered the
turn before it, ahead of new conversations: few conversations are open at once, and their prefixes are still cached.
The turns of a conversation are in one shard; `shards.py` adds the answers of earlier attempts.

If a turn has no answer, the turns after it become error rows that name it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

from assayline.prompts import RowError
from assayline.records import EARLIER_TURN, NOT_SENT, Completion, Json, Request
from assayline.requests.build import Renderer, check_length
from assayline.requests.chat import Rendered

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
    """Whether the turn before them is handed out and not answered."""
    end: _End | None = None


class Conversations:
    """The turns of a run that wait for answers: `add` takes a turn in, `settle` an answer.

    Both return the turn that can be asked next, if there is one.
    """

    def __init__(self, open_renderer: OpenRenderer, prefill: str | None, fail: Fail) -> None:
        """The renderer is opened for the first later turn.

        `prefill` is how every answer begins; the text of an answer does not have it.
        """
        self._open_renderer = cache(open_renderer)
        self._prefill = prefill or ""
        self._fail = fail
        self._talks: dict[Key, _Talk] = {}
        self._asked: dict[str, Request] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Turns that wait for an answer."""
        return self._held

    def add(self, request: Request) -> Request | None:
        """Takes a turn in. Returns it if it can be asked now; otherwise it waits for the turn before it."""
        self._held += 1
        talk = self._find_talk(request)
        talk.waiting.append(request)
        return self._go_on(talk)

    def settle(self, completion: Completion) -> Request | None:
        """Takes an answer. Returns the turn that waited for it; if it cannot be asked, it becomes an error row."""
        request = self._asked.pop(completion.request_id, None)
        if request is None:
            return None
        talk = self._find_talk(request)
        talk.is_asked = False
        turn_index = request.turn_index or 0
        _note(request, talk, turn_index, completion.text, completion.error_kind, completion.error_message)
        following = self._go_on(talk)
        self._forget(request)
        return following

    def _find_talk(self, request: Request) -> _Talk:
        return self._talks.setdefault(_name_talk(request), _Talk())

    def _forget(self, request: Request) -> None:
        """Nothing follows the last turn."""
        if (request.turn_index or 0) + 1 == request.turns:
            self._talks.pop(_name_talk(request), None)

    def _go_on(self, talk: _Talk) -> Request | None:
        """The turn that can be asked now. Turns that can never be asked become error rows."""
        while talk.waiting and not talk.is_asked:
            request = talk.waiting.popleft()
            self._held -= 1
            _recall(request, talk)
            if talk.end is not None and talk.end.turn_index < (request.turn_index or 0):
                self._fail(request, talk.end.error_kind, talk.end.message, None)
                self._forget(request)
            elif (ready := self._render(request, talk)) is not None:
                return ready
        return None

    def _render(self, request: Request, talk: _Talk) -> Request | None:
        """The turn with its prompt; None if it has none, and then it is an error row."""
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
            return None
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
        return ready

    def _write_messages(self, request: Request, talk: _Talk) -> list[dict[str, Json]]:
        """The conversation up to this turn, with what the model said."""
        messages: list[dict[str, Json]] = []
        for turn_index, turn in enumerate(request.earlier_turns or ()):
            messages += turn.messages
            messages.append({"role": "assistant", "content": self._prefill + talk.answers[turn_index]})
        return messages + (request.turn_messages or [])


def _recall(request: Request, talk: _Talk) -> None:
    """Adds the answers that earlier attempts of the run got for earlier turns."""
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
