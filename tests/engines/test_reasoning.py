"""Thinking and answers: in texts, and piece by piece. Those of real engines are in test_vllm_engines.py."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assayline.engines.reasoning import AnswerStops, split_reasoning, thinks
from assayline.spec.engine import ReasoningSpec

TAGS = ReasoningSpec()
PIECES = st.lists(st.text(st.sampled_from("ab \n/"), max_size=3) | st.sampled_from(["</t>", "</", "t>"]), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("ab \n"), min_size=1, max_size=3), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nIt is 7.\n</think>\n\n7", "It is 7.", "7"),
        ("It is 7.</think>7 ", "It is 7.", "7 "),  # the prompt opened it
        ("<think></think>7", "", "7"),
        ("<think>on and on", "on and on", ""),
        ("</think>", "", ""),
        ("a</think>b</think>c", "a", "b</think>c"),
        ("I <think> so</think>7", "I <think> so", "7"),
        ("", "", ""),
    ],
)
def test_a_text_has_thinking_and_an_answer(text, reasoning, answer):
    assert split_reasoning(text, TAGS) == (reasoning, answer)


def test_a_prompt_that_closes_the_thinking_gets_an_answer():
    assert not thinks(TAGS, "<|assistant|><think>\n\n</think>\n\n")
    assert thinks(TAGS, "<|assistant|><think>\n") and thinks(TAGS, "a</think>b<|assistant|>") and thinks(TAGS, None)
    assert not thinks(None, "<|assistant|><think>")


CLOSED, OPENED, NEITHER = (
    "a</think>b<|assistant|><think>\n\n</think>\n\n",
    "<|assistant|><think>\n",
    "a</think>b<|assistant|>",
)


@pytest.mark.parametrize(
    ("head", "prefill", "expected"),
    [
        (CLOSED, "The answer is ", False), (OPENED, "The answer is ", True), (NEITHER, "The answer is ", False),
        (NEITHER, "<think>\nOkay, ", True), (CLOSED, "<think>\nOkay, ", True),
        (NEITHER, "<think>\n\n</think>\n\n", False), (OPENED, "Yes.</think>So: ", False), (NEITHER, "", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trim", [str, str.strip, str.rstrip], ids=["as it is", "trimmed", "trimmed at its end"])
def test_thinks_is_decided_before_the_prefill_and_in_it(head, prefill, expected, trim):
    assert thinks(TAGS, head + trim(prefill), prefill) == expected


def expected_stop(pieces: list[str], stops: list[str], least: int) -> tuple[str | None, str, int]:
    """The plain way: after each piece, look through the whole answer. (stop, text, pieces read)."""
    text, looked = "", 0
    for number, piece in enumerate(pieces, start=1):
        text += piece
        _, tag, rest = text.partition("</t>")
        answer = rest.lstrip()
        at = len(text) - len(answer)
        if not tag or not answer:
            continue
        ends = [
            (found + len(stop), order)
            for order, stop in enumerate(stops)
            for found in range(at, len(text))
            if text.startswith(stop, found) and found + len(stop) > looked
        ]
        if number > least and ends:
            end, order = min(ends)
            return stops[order], text[: end - len(stops[order])], number
        looked = len(text)
    return None, text, len(pieces)


@given(PIECES, STOPS, st.integers(0, 4))
@example(pieces=["</t>", "a", ""], stops=["a"], least=2)  # complete within min_tokens, and then a token without text
@example(pieces=["</t>", "aa", "a"], stops=["aa"], least=2)  # one within, one beyond
def test_stops_are_found_in_the_answer_alone(pieces, stops, least):
    watch = AnswerStops(stops, "</t>", min_tokens=least)
    found, read = None, 0
    for read, piece in enumerate(pieces, start=1):
        if (found := watch.feed(piece, read)) is not None:
            break
    stop, text, pieces_read = expected_stop(pieces, stops, least)
    assert (found, watch.text, read) == (stop, text, pieces_read)


def test_a_stop_may_stay_in_the_text():
    watch = AnswerStops(["7"], "</think>", keep_stop=True)
    assert watch.feed("7</think>67", 1) == "7" and watch.text == "7</think>67"
