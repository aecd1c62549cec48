"""Conversations that are asked turn by turn: where they are split, and what they are called."""

from typing import Any

import pytest

from assayline.prompts import BadRow, load_prompts
from assayline.prompts.turns import split_turns
from assayline.prompts.values import RowError
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec

NAMES = {"s": "system", "u": "user", "a": "assistant", "d": "developer"}


def messages_of(said: str) -> list[dict[str, Any]]:
    """`su1` and so on, a word a message: its first letter is who says it."""
    return [{"role": NAMES[word[0]], "content": word} for word in said.split()]


def prompts_of(*rows: Any, **spec: Any) -> list[Prompt | BadRow]:
    return list(load_prompts(PromptSpec.model_validate({"source": {"kind": "inline", "rows": list(rows)}, **spec})))


@pytest.mark.parametrize(
    ("said", "turns"),
    [
        ("u1", ["u1"]),
        ("u1 a1", ["u1"]),
        ("s u1 a1 u2 a2 u3", ["s u1", "u2", "u3"]),
        ("s u1 u2 a1 d u3 s", ["s u1 u2", "d u3 s"]),
        ("a0 u1 a1 a2 u2", ["a0 u1", "u2"]),
        ("u1 a1 s a2 u2 a3 s", ["u1", "s u2"]),
    ],
)
def test_a_turn_is_what_stands_between_two_answers(said: str, turns: list[str]) -> None:
    assert split_turns(messages_of(said)) == [messages_of(turn) for turn in turns]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (messages_of("s a1"), "has no message from user"),
        ([*messages_of("u1"), {"role": "tool", "content": "4"}], "Message 2 has the role 'tool'"),
        ([*messages_of("u1"), {"role": "assistant", "tool_calls": [{}]}], "Message 2 calls tools, which cannot be"),
    ],
)
def test_a_conversation_that_cannot_be_asked_so_says_why(messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RowError, match=words):
        split_turns(messages)
    [row] = prompts_of({"messages": messages}, turns="each")
    assert isinstance(row, BadRow) and words in row.message and row.prompt.turn_sizes is None


def test_what_is_asked_names_the_conversation_and_recorded_answers_do_not() -> None:
    rows = [{"messages": messages_of(said)} for said in ("u1 a1 u2", "u1 a2 u2", "u1 u2", "u3 a1")]
    one, other, single, short = (row for row in prompts_of(*rows, turns="each") if isinstance(row, Prompt))
    assert one.messages == messages_of("u1 u2") and one.turn_sizes == [1, 1]
    assert one.prompt_id == other.prompt_id and other.occurrence == 1
    assert single.prompt_id != one.prompt_id and single.turn_sizes == [2]
    [given] = prompts_of({"messages": messages_of("u3")})
    assert isinstance(given, Prompt) and short.prompt_id == given.prompt_id, "one question is one however it is asked"
