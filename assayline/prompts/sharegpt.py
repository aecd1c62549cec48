"""ShareGPT's conversations as chat messages.

A row is {id, conversations: [{from, value}]}. Files in the wild begin with an answer whose question is lost, and end
with an answer: what stands before the first question is dropped but for system messages, and what follows the last.
"""

from typing import Any

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
    if isinstance(row, UnreadableRow):
        raise RowError("unreadable_row", row.message)
    if "conversations" not in row:
        raise RowShapeError(
            "row_error", f"It has no column `conversations`, as ShareGPT's rows have. Columns: {list_names(row)}."
        )
    said = row["conversations"]
    if not isinstance(said, list):
        raise RowError("row_error", f"The conversations are {said!r:.80}, expected a list of {{from, value}}.")
    messages = [_read_message(message, number) for number, message in enumerate(said, start=1)]
    questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not questions:
        raise RowError("row_error", "The conversation has no message from human, expected at least one.")
    before = [message for message in messages[: questions[0]] if message["role"] == "system"]
    return {**row, "messages": before + messages[questions[0] : questions[-1] + 1]}


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
