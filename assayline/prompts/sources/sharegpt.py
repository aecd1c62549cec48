"""ShareGPT's conversations as chat messages.

A row is {id, conversations: [{from, value}]}, or [{role, content}]; columns `system` and `tools` belong to it. Files in
the wild begin with an answer whose question is lost, and end with an answer: what stands before the first question is
dropped except for system messages, and what follows the last. Where the lengths of recorded answers are wanted, the
last question is the last one that has an answer.
"""

from dataclasses import replace
from typing import Any

from assayline.media.references import MediaStore
from assayline.prompts.columns import RowReader
from assayline.prompts.row import Row, RowError, RowShapeError, list_names, open_json
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec, ShareGptSource

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "system": "system",
    "tool": "tool",
}


class ShareGptReader(RowReader):
    """Read `conversations` of rows as a column `messages`."""

    def __init__(
        self, source: ShareGptSource, spec: PromptSpec, tokenizer: Any, media_store: MediaStore | None
    ) -> None:
        super().__init__(spec.columns, spec.template, spec.media, media_store)
        self._counts_answers = source.counts_answers
        self._turns = spec.turns
        self._tokenizer = tokenizer

    def _read(self, row: Row) -> Prompt:
        """Read one row. Raises RowShapeError without conversations, RowError if it has no question, or no answer
        whose length is wanted."""
        messages = _read_messages(row)
        questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
        if not questions:
            raise RowError("The conversation has no message from human, expected at least one.")
        first, limit = questions[0], {}
        if self._counts_answers:
            candidates = questions[:1] if self._turns == "first" else questions
            questions = [place for place in candidates if _find_answer(messages, place)]
            if not questions:
                raise RowError(
                    "The conversation has no answer, whose length prompts.source.max_tokens is to take. hint: remove "
                    "the row, or that setting."
                )
            answer = _find_answer(messages, questions[-1])
            ids = self._tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
            limit = {"max_tokens": len(ids)}
        before = [message for message in messages[:first] if message["role"] == "system"]
        parts = super()._read({**row, "messages": before + messages[first : questions[-1] + 1]})
        return replace(parts, sampling=limit | parts.sampling)


def _read_messages(row: Row) -> list[dict[str, Any]]:
    if "conversations" not in row:
        raise RowShapeError(f"It has no column `conversations`, as ShareGPT's rows have. Columns: {list_names(row)}.")
    said = open_json(row["conversations"], "The conversations")
    if not isinstance(said, list):
        raise RowError(f"The conversations are {said!r:.80}, expected a list of {{from, value}} or {{role, content}}.")
    return [_read_message(message, number) for number, message in enumerate(said, start=1)]


def _find_answer(messages: list[dict[str, Any]], question: int) -> str:
    """Return the answer after a question; empty if there is none."""
    following = messages[question + 1 : question + 2]
    answer = next((message.get("content") for message in following if message["role"] == "assistant"), "")
    return answer if isinstance(answer, str) else ""


def _read_message(message: Any, number: int) -> dict[str, Any]:
    """Return {role, content}; `read_messages` checks a message that has this form already."""
    where = f"Message {number} of the conversation"
    if isinstance(message, dict) and message.get("from") is None and isinstance(role := message.get("role"), str):
        return {**message, "role": ROLES.get(role.lower(), role)}
    if not isinstance(message, dict) or not isinstance(message.get("value"), str):
        raise RowError(f"{where} is {message!r:.80}, expected {{from, value}} with text, or {{role, content}}.")
    role = ROLES.get(str(message.get("from")).lower())
    if role is None:
        raise RowError(f"{where} is from {message.get('from')!r:.40}, expected one of {', '.join(ROLES)}.")
    return {"role": role, "content": message["value"]}
