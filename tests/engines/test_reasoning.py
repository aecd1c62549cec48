"""Thinking and answers: in texts, piece by piece, and on a real vLLM engine.

The tiny model does not think. What it writes has a beginning and an end, though, and a character of it can be the tag.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_helpers import Asker, by_id, open_engine
from hypothesis import given
from hypothesis import strategies as st

from assayline.answer_spec import ReasoningSpec
from assayline.engines.offline import OfflineEngine
from assayline.engines.reasoning import AnswerStops, split_reasoning, thinks

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
def test_a_text_has_thinking_and_an_answer(text: str, reasoning: str, answer: str) -> None:
    assert split_reasoning(text, TAGS) == (reasoning, answer)


def test_a_prompt_that_closes_the_thinking_gets_an_answer() -> None:
    assert not thinks(TAGS, "<|assistant|><think>\n\n</think>\n\n")
    assert thinks(TAGS, "<|assistant|><think>\n") and thinks(TAGS, "a</think>b<|assistant|>") and thinks(TAGS, None)
    assert not thinks(None, "<|assistant|><think>")


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
        ends = [(found + len(stop), order) for order, stop in enumerate(stops)
                for found in range(at, len(text)) if text.startswith(stop, found) and found + len(stop) > looked]
        if number > least and ends:
            end, order = min(ends)
            return stops[order], text[: end - len(stops[order])], number
        looked = len(text)
    return None, text, len(pieces)


@given(PIECES, STOPS, st.integers(0, 4))
def test_stops_are_found_in_the_answer_alone(pieces: list[str], stops: list[str], least: int) -> None:
    watch = AnswerStops(stops, "</t>", min_tokens=least)
    found, read = None, 0
    for read, piece in enumerate(pieces, start=1):
        if (found := watch.feed(piece, read)) is not None:
            break
    stop, text, pieces_read = expected_stop(pieces, stops, least)
    assert (found, watch.text, read) == (stop, text, pieces_read)


def test_a_stop_may_stay_in_the_text() -> None:
    watch = AnswerStops(["7"], "</think>", keep_stop=True)
    assert watch.feed("7</think>67", 1) == "7" and watch.text == "7</think>67"


@pytest.fixture(scope="module")
def thinker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineEngine]:
    """The tiny model answers 9 + 4 with 13: of that, 1 is the tag that closes the thinking, and 3 is the answer."""
    log = tmp_path_factory.mktemp("thinker") / "engine.log"
    with closing(open_engine(tiny_model, log, reasoning=ReasoningSpec(close="1"))) as opened:
        yield opened


@pytest.mark.vllm
class TestRealEngine:
    def test_thinking_is_kept_apart(self, thinker: OfflineEngine, asker: Asker) -> None:
        questions = [asker.ask("What is 9 + 4?"), asker.ask("What is 3 + 4?"), asker.ask("What is 9 + 2?")]
        answers = by_id(thinker.generate(questions))
        split = [(answers[one.request_id].reasoning, answers[one.request_id].text) for one in questions]
        assert split == [("", "3"), ("7", ""), ("", "1")]
        assert all(answer.finish_reason == "stop" and answer.output_tokens for answer in answers.values())

    def test_a_stop_does_not_fire_in_the_thinking_and_does_in_the_answer(
        self, tiny_model: Path, asker: Asker, tmp_path: Path
    ) -> None:
        """A long text of the model's own making, with a character in its middle as the tag."""
        unended = {"ignore_eos": True, "max_tokens": 60, "skip_special_tokens": False}
        with closing(open_engine(tiny_model, tmp_path / "plain.log")) as plain:
            [written] = plain.generate([asker.ask("What is 9 + 4?", **unended)])
        text = str(written.text)
        assert text.startswith("13<|end|>") and text.count("<|end|>") > 1, text
        with closing(open_engine(tiny_model, tmp_path / "log", reasoning=ReasoningSpec(close="<|end|>"))) as engine:
            inside = asker.ask("What is 9 + 4?", stop=["3"], **unended)
            after = asker.ask("What is 9 + 4?", stop=["<|end|>"], logprobs=0, **unended)
            kept = asker.ask("What is 9 + 4?", stop="<|end|>", include_stop_str_in_output=True, **unended)
            late = asker.ask("What is 9 + 4?", stop="<|end|>", min_tokens=50, **unended)
            answers = by_id(engine.generate([inside, after, kept, late]))
        reasoning, _, answer = text.partition("<|end|>")
        answer = answer.lstrip()
        whole = answers[inside.request_id]
        assert whole.reasoning == reasoning == "13"
        assert (whole.text, whole.stop_reason) == (answer.partition("3")[0], "3" if "3" in answer else None)
        stopped = answers[after.request_id]
        assert (stopped.reasoning, stopped.text) == ("13", answer.partition("<|end|>")[0])
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "<|end|>")
        assert stopped.output_tokens == len(stopped.output_token_ids or []) == len(stopped.logprobs)
        assert stopped.output_tokens < 60 and stopped.cumulative_logprob is not None
        assert stopped.output_token_ids == (written.output_token_ids or [])[: stopped.output_tokens]
        assert answers[kept.request_id].text == f"{stopped.text}<|end|>"
        assert (answers[late.request_id].output_tokens or 0) >= 50
        for one in answers.values():
            assert one.finished_at_s and one.last_token_at_s and one.finished_at_s >= one.last_token_at_s

    def test_a_prompt_that_closed_the_thinking_is_answered(self, thinker: OfflineEngine, asker: Asker) -> None:
        from dataclasses import replace

        closed = replace(asker.ask("What is 9 + 4?"), rendered="<|assistant|> 1\n")
        [answer] = thinker.generate([closed])
        assert (answer.reasoning, answer.text) == (None, "13")

    def test_the_engine_is_free_after_a_stop(self, thinker: OfflineEngine, asker: Asker) -> None:
        requests = [asker.ask("What is 9 + 4?", stop=["3"], ignore_eos=True, max_tokens=200) for _ in range(30)]
        answers = by_id(thinker.generate(requests))
        assert len(answers) == 30 and {answer.text for answer in answers.values()} == {""}
        assert max(answer.output_tokens or 0 for answer in answers.values()) == 2
        [plain] = thinker.generate([asker.ask("What is 3 + 4?")])
        assert plain.reasoning == "7"
