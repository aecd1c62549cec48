"""Few-shot examples: which are drawn, where they stand, and that a prompt never sees its own answer."""

import os
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.errors import PromptError
from assayline.prompts import BadRow, few_shot, load_prompts
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec

ROWS = [{"prompt": f"q{number}", "target": f"a{number}"} for number in range(12)]
QUESTIONS = st.lists(st.integers(0, 8), min_size=1, max_size=40)


def load(rows: list[Any], examples: dict[str, Any], **more: Any) -> list[Prompt | BadRow]:
    spec = {"source": {"kind": "inline", "rows": rows}, "few_shot": examples, **more}
    return list(load_prompts(PromptSpec.model_validate(spec)))


def inline(rows: list[Any]) -> dict[str, Any]:
    return {"kind": "inline", "rows": rows}


def pairs(prompt: Prompt | BadRow) -> list[tuple[str, str]]:
    """The examples of a prompt, as (question, answer)."""
    assert isinstance(prompt, Prompt), prompt.message
    turns = [message for message in prompt.messages if message["role"] != "system"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    contents = [turn["content"] for turn in turns[:-1]]
    return list(zip(contents[::2], contents[1::2], strict=True))


@given(QUESTIONS, st.integers(1, 4), st.integers(0, 3))
def test_no_prompt_is_among_its_examples_whatever_repeats(questions, count, seed):
    rows = [{"prompt": f"q{question}", "target": f"a{number}"} for number, question in enumerate(questions)]
    examples = {"count": count, "seed": seed}
    if len(set(questions)) < count + 1:
        with pytest.raises(PromptError, match=f"needs {count + 1} rows with different"):
            load(rows, examples)
        return
    answers = {(row["prompt"], row["target"]) for row in rows}
    for row, prompt in zip(rows, load(rows, examples), strict=True):
        drawn = pairs(prompt)
        asked = [question for question, _ in drawn]
        assert len(set(asked)) == len(asked) == count and row["prompt"] not in asked
        assert set(drawn) <= answers


def test_the_same_examples_for_all_whatever_the_order_of_the_rows():
    shots = {"count": 3, "source": inline(ROWS), "seed": 7}
    asked = [{"prompt": "new", "target": "x"}, {"prompt": "newer", "target": "y"}]
    first, second = load(asked, shots)
    (reversed_rows,) = load(asked[:1], {**shots, "source": inline(ROWS[::-1])})
    assert pairs(first) == pairs(second) == pairs(reversed_rows)
    others = {tuple(pairs(load(asked[:1], {**shots, "seed": seed})[0])) for seed in range(20)}
    assert len(others) > 15


def test_every_row_is_drawn_equally_often():
    """Of 12 rows 3 are drawn, by 200 seeds: 50 times each, give or take. Five standard deviations are 31."""
    drawn = Counter(
        pair
        for seed in range(200)
        for pair in pairs(load([{"prompt": "new"}], {"count": 3, "source": inline(ROWS), "seed": seed})[0])
    )
    assert len(drawn) == 12 and all(abs(times - 50) < 31 for times in drawn.values())


def test_examples_stand_after_the_system_message_and_have_none_of_their_own():
    template = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{{ q }}?"}]
    rows = [{"q": number, "target": number * 2} for number in range(4)]
    prompt = load(rows, {"count": 1, "answer": "It is {{ target }}."}, template=template)[0]
    assert [message["role"] for message in prompt.messages] == ["system", "user", "assistant", "user"]
    ((question, answer),) = pairs(prompt)
    assert answer == f"It is {int(question[:-1]) * 2}." and prompt.messages[-1]["content"] == "0?"


def test_the_prompts_identity_is_its_question():
    """A run without examples and one with five are compared question by question."""
    plain = list(load_prompts(PromptSpec.model_validate({"source": inline(ROWS)})))
    shot = load(ROWS, {"count": 5})
    assert [prompt.prompt_id for prompt in plain if isinstance(prompt, Prompt)] == [
        prompt.prompt_id for prompt in shot if isinstance(prompt, Prompt)
    ]
    assert len(shot) == len(ROWS) and all(len(pairs(prompt)) == 5 for prompt in shot)


def test_rows_that_cannot_be_examples_are_passed_over():
    rows = [
        {"prompt": 1, "target": "one"},
        {"prompt": None, "target": "x"},
        {"prompt": "2", "target": None},
        {"prompt": "3", "target": " "},
        {"prompt": "4", "target": "four"},
    ]
    (prompt,) = load([{"prompt": "new"}], {"count": 2, "source": inline(rows)})
    assert sorted(pairs(prompt)) == [("1", "one"), ("4", "four")]
    with pytest.raises(PromptError, match=r"count is 3.* there are 2.*its target is missing or empty"):
        load([{"prompt": "new"}], {"count": 3, "source": inline(rows)})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no template": ({"count": 1, "answer": "{{ answer"}, r"prompts\.few_shot\.answer is not Jinja2"),
    "unknown variable": ({"count": 1, "answer": "{{ ansver }}"}, r"examples.*prompts\.few_shot\.answer.*ansver"),
    "no such file": ({"count": 1, "source": {"kind": "file", "path": "/nowhere.jsonl"}}, "nowhere.jsonl does not"),
    "other columns": ({"count": 1, "source": inline([{"question": 1}])}, "first row of the few-shot examples"),
    "assistant's turn": (
        {"count": 1, "source": inline([{"messages": [{"role": "assistant", "content": "x"}], "target": "y"}])},
        "end with the assistant's turn",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_few_shot_rejects_invalid_examples_at_once(case):
    examples, message = BAD[case]
    spec = PromptSpec.model_validate({"source": inline(ROWS), "few_shot": examples})
    with pytest.raises(PromptError, match=message):
        load_prompts(spec)


def test_a_prompt_that_has_too_few_left_is_one_bad_row():
    good, bad = load([{"prompt": "new"}, {"prompt": "q1"}], {"count": 3, "source": inline(ROWS[:3])})
    assert len(pairs(good)) == 3
    assert isinstance(bad, BadRow) and "Only 2 of the few-shot examples" in bad.message


def test_pipes_have_no_examples(tmp_path):
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    spec = PromptSpec.model_validate({"source": {"kind": "file", "path": str(pipe)}})
    with pytest.raises(PromptError, match="read only once"):
        few_shot.FewShot(spec, few_shot.FewShotSpec(count=1))


def test_examples_of_a_large_set_stay_few_in_memory(monkeypatch):
    def read_many(source: Any) -> Iterator[dict[str, Any]]:
        return ({"prompt": f"{number:0500d}", "target": "x"} for number in range(20_000))

    monkeypatch.setattr(few_shot, "read_rows", read_many)
    spec = PromptSpec.model_validate({"source": inline(ROWS)})
    tracemalloc.start()
    drawn = few_shot.FewShot(spec, few_shot.FewShotSpec(count=5))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(drawn.put_before([{"role": "user", "content": "q"}])) == 11
    assert peak_bytes < 3e6  # the rows together are 10 MB of text
