"""Which of a conversation's messages are asked."""

from typing import Any

Message = dict[str, Any]


def cut_first_turn(messages: list[Message]) -> list[Message]:
    """The messages up to the first from the user; all of them where none is."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages) - 1)
    return messages[: first + 1]
