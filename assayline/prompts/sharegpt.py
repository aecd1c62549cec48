"""ShareGPT's conversations as chat messages.

A row is {id, conversations: [{from, value}]}. Files in the wild begin with an answer whose question is lost, and end
with an answer: what stands before the first question is dropped but for system messages, and what follows the last.
Where the lengths of recorded answers are wanted, the last question is the last one that has an answer.
"""

from typing import Any, Literal

from assayline.prompts.files import Row, UnreadableRow
from assayline.prompts.values import RowError, RowShapeError, list_names

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "system": "system",
}


def read_conversation(row: Row | UnreadableRow) -> Row:
    """The row with a column `messages` for its `conversations`: up to its last question.

    Raises RowShapeError for a row without conversations, RowError for one that asks nothing.
    """
    talk = _check_row(row)
    messages, questions = _read_messages(talk)
    return _ask(talk, messages, questions, questions[-1])


def read_answered(row: Row | UnreadableRow, turns: Literal["given", "first"]) -> tuple[Row, str]:
    """The same up to its last question that has an answer, or its first one, and the answer that was recorded.

    Raises RowShapeError and RowError as `read_conversation`, and RowError where there is no answer.
    """
    talk = _check_row(row)
    messages, questions = _read_messages(talk)
    candidates = questions[:1] if turns == "first" else questions
    answered = [place for place in candidates if _find_answer(messages, place)]
    if not answered:
        which = "first message from human has" if turns == "first" else "messages from human have"
        raise RowError(
            "row_error",
            f"The conversation's {which} no answer, whose length prompts.source.max_tokens is to take. Remove the "
            "row, or that setting.",
        )
    return _ask(talk, messages, questions, answered[-1]), _find_answer(messages, answered[-1])


def _check_row(row: Row | UnreadableRow) -> Row:
    if isinstance(row, UnreadableRow):
        raise RowError("unreadable_row", row.message)
    if "conversations" not in row:
        raise RowShapeError(
            "row_error", f"It has no column `conversations`, as ShareGPT's rows have. Columns: {list_names(row)}."
        )
    return row


def _read_messages(row: Row) -> tuple[list[dict[str, Any]], list[int]]:
    """All messages, and the places of the questions among them."""
    said = row["conversations"]
    if not isinstance(said, list):
        raise RowError("row_error", f"The conversations are {said!r:.80}, expected a list of {{from, value}}.")
    messages = [_read_message(message, number) for number, message in enumerate(said, start=1)]
    questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not questions:
        raise RowError("row_error", "The conversation has no message from human, expected at least one.")
    return messages, questions


def _ask(row: Row, messages: list[dict[str, Any]], questions: list[int], last: int) -> Row:
    before = [message for message in messages[: questions[0]] if message["role"] == "system"]
    return {**row, "messages": before + messages[questions[0] : last + 1]}


def _find_answer(messages: list[dict[str, Any]], question: int) -> str:
    """What follows a question, if it is an answer."""
    following = messages[question + 1 : question + 2]
    return next((message["content"] for message in following if message["role"] == "assistant"), "")


def _read_message(message: Any, number: int) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("value"), str):
        raise RowError(
            "row_error", f"Message {number} of the conversation is {message!r:.80}, expected {{from, value}} with text."
        )
    role = ROLES.get(str(message.get("from")).lower())
    if role is None:
        raise RowError(
            "row_error",
            f"Message {number} of the conversation is from {message.get('from')!r:.40}, expected one of "
            f"{', '.join(ROLES)}.",
        )
    return {"role": role, "content": message["value"]}
