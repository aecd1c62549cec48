"""Turns of a conversation: what is said to a model before it answers, and what once it has.

A recorded conversation has the answers of another model, or of a person. Asked turn by turn, it is the questions alone
that are taken from it: what stands between them is what the asked model said.
"""

from typing import Any

from assayline.prompts.values import RowError

Message = dict[str, Any]
SPEAKERS = frozenset({"user", "system", "developer"})
"""Roles whose messages are said to the model."""


def cut_first_turn(messages: list[Message]) -> list[Message]:
    """The messages up to the first from the user; all of them where none is."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages) - 1)
    return messages[: first + 1]


def split_turns(messages: list[Message]) -> list[list[Message]]:
    """The messages that each turn adds, without recorded answers and what follows the last of them.

    A turn is what stands between two answers, and has a message from the user. What stands before the first such
    message is kept as it is, a greeting of the assistant's too: no question asks for it. Raises RowError for a
    conversation without a question, or with tools, whose results belong to calls that the model may never make.
    """
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise RowError("row_error", "The conversation has no message from user, expected at least one.")
    turns = [messages[:first]]
    is_answered = False
    for number, message in enumerate(messages[first:], start=first + 1):
        if message["role"] == "assistant" and not message.get("tool_calls"):
            is_answered = True
        elif message["role"] in SPEAKERS:
            if is_answered and _has_question(turns[-1]):
                turns.append([])
            is_answered = False
            turns[-1].append(message)
        else:
            what = "calls tools" if message["role"] == "assistant" else f"has the role {message['role']!r:.40}"
            raise RowError(
                "row_error",
                f"Message {number} {what}, which cannot be asked turn by turn: the model may not call what was called "
                "then. Expected user, assistant, system or developer with text; prompts.turns given asks the "
                "conversation as it is recorded.",
            )
    return turns if _has_question(turns[-1]) else turns[:-1]


def _has_question(turn: list[Message]) -> bool:
    return any(message["role"] == "user" for message in turn)
