"""ShareGPT's conversations: a JSON array read in pieces, messages, turns."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assayline.errors import PromptError
from assayline.prompts import BadRow, load_prompts
from assayline.prompts.row import UnreadableRow
from assayline.prompts.sources import files
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec


def said(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"id": "a", "conversations": [{"from": name, "value": value} for name, value in messages]}


def prompts_of(path: Path, *rows: Any, **spec: Any) -> list[Prompt | BadRow]:
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return list(load_prompts(PromptSpec.model_validate({"source": {"kind": "sharegpt", "path": str(path)}, **spec})))


def asked(path: Path, *rows: Any, **spec: Any) -> list[list[tuple[str, str]]]:
    prompts = prompts_of(path, *rows, **spec)
    return [[(m["role"], m["content"]) for m in p.messages] for p in prompts if isinstance(p, Prompt)]


CONVERSATION = said(("system", "Be brief."), ("human", "1?"), ("gpt", "one"), ("human", "2?"), ("gpt", "two"))


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_conversation_is_asked_up_to_its_last_question(tmp_path, ending):
    path = tmp_path / f"conversations.{ending}"
    given = [("system", "Be brief."), ("user", "1?"), ("assistant", "one"), ("user", "2?")]
    assert asked(path, CONVERSATION) == [given]
    assert asked(path, CONVERSATION, turns="first") == [given[:2]]
    [prompt] = prompts_of(path, CONVERSATION)
    assert isinstance(prompt, Prompt) and prompt.source_id == "a"


HELLO = [{"from": "human", "value": "Hello?"}]
FRENCH = ("system", "In French.")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"system": "In French.", "conversations": HELLO}, [FRENCH, ("user", "Hello?")]),
        ({"system": "", "conversations": HELLO}, [("user", "Hello?")]),
        ({"system": None, "conversations": json.dumps(HELLO)}, [("user", "Hello?")]),
        (
            {"system": "In German.", "conversations": [{"from": "system", "value": "In French."}, *HELLO]},
            [FRENCH, ("user", "Hello?")],
        ),
        ({"conversations": [{"role": "user", "content": "Hello?"}]}, [("user", "Hello?")]),
        (
            {"system": "In French.", "conversations": [{"role": "Human", "content": "Hello?"}]},
            [FRENCH, ("user", "Hello?")],
        ),
    ],
)
def test_conversation_is_read_in_each_form_with_the_column_system(tmp_path, row, expected):
    assert asked(tmp_path / "t.jsonl", row) == [expected]


def test_tools_of_a_conversation_reach_the_template(tmp_path):
    tools = [{"name": "look"}]
    [prompt] = prompts_of(tmp_path / "t.jsonl", CONVERSATION | {"tools": json.dumps(tools)})
    assert isinstance(prompt, Prompt) and prompt.body and prompt.body.variables == {"tools": tools}
    bad = [{**CONVERSATION, "tools": "look"}, {**CONVERSATION, "tools": [7]}]
    assert all(
        isinstance(one, BadRow) and "tools holds" in one.message for one in prompts_of(tmp_path / "t.json", *bad)
    )
    [turns] = prompts_of(tmp_path / "t.json", {**CONVERSATION, "tools": tools}, turns="each")
    assert isinstance(turns, BadRow) and "has tools, which cannot be used turn by turn" in turns.message


def test_an_answer_whose_question_is_lost_is_dropped(tmp_path):
    lost = said(("gpt", "so it goes on"), ("system", "s"), ("user", "1?"), ("chatgpt", "one"))
    assert asked(tmp_path / "t.json", lost) == [[("system", "s"), ("user", "1?")]]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (said(("gpt", "one")), "no message from human"),
        (said(), "no message from human"),
        (said(("human", None)), "Message 1 of the conversation is"),
        (said(("human", "1?"), ("martian", "one")), "from 'martian', expected one of human, user, gpt"),
        ({"id": "a", "conversations": {}}, "expected a list of"),
        ({"id": "a"}, "no column `conversations`"),
        (["a"], "element 2: it is list, expected a JSON object"),
    ],
)
def test_a_row_that_asks_nothing_is_an_error_row(tmp_path, bad, words):
    first, second = prompts_of(tmp_path / "t.json", CONVERSATION, bad)
    assert isinstance(first, Prompt) and isinstance(second, BadRow)
    assert words in second.message


def recorded(path: Path, tokenizer: Any, *rows: Any, turns: str = "given") -> list[tuple[list[str], dict[str, Any]]]:
    path.write_text(json.dumps(rows))
    source = {"kind": "sharegpt", "path": str(path), "max_tokens": "recorded"}
    prompts = load_prompts(PromptSpec.model_validate({"source": source, "turns": turns}), tokenizer)
    return [
        ([], {"message": one.message})
        if isinstance(one, BadRow)
        else ([message["content"] for message in one.messages], dict(one.sampling))
        for one in prompts
    ]


def test_an_answer_may_become_as_long_as_the_recorded_one(tmp_path, tokenizer):
    """In the model's tokens, without those that its tokenizer puts around a text."""
    answers = ["basolfan", " ".join(["kokoko"] * 9)]
    conversation = said(("human", "1?"), ("gpt", answers[0]), ("human", "2?"), ("gpt", answers[1]), ("human", "and?"))
    lengths = [len(tokenizer.encode(answer)) - 1 for answer in answers]
    assert lengths[0] < lengths[1] and tokenizer.encode(answers[0])[0] == tokenizer.bos_token_id
    path = tmp_path / "t.json"
    [(asked, sampling)] = recorded(path, tokenizer, conversation)
    assert asked == ["1?", answers[0], "2?"], "the last question that was answered"
    assert sampling == {"max_tokens": lengths[1]}, "whether it stops before is sampling.ignore_eos's to say"
    assert recorded(path, tokenizer, conversation, turns="first") == [(["1?"], {"max_tokens": lengths[0]})]


def test_a_conversation_without_an_answer_has_no_recorded_length(tmp_path, tokenizer):
    twice, empty = said(("human", "1?"), ("human", "2?")), said(("human", "1?"), ("gpt", ""))
    (_, fine), *bad = recorded(tmp_path / "t.json", tokenizer, CONVERSATION, twice, empty)
    assert fine["max_tokens"] > 0
    assert all("no answer, whose length prompts.source.max_tokens" in one["message"] for _, one in bad)
    assert len(bad) == 2


def test_another_format_is_told_at_once(tmp_path):
    with pytest.raises(PromptError, match=r"first row does not fit.*no column `conversations`.*Columns: prompt"):
        prompts_of(tmp_path / "t.json", {"prompt": "1?"})


def test_files_that_load_generators_read_need_only_a_column_named(tmp_path):
    """`vllm bench serve --dataset-name custom` and GuideLLM: a prompt, and how many tokens to answer with."""
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "1?", "output_tokens": 7}\n{"prompt": "2?", "output_tokens": -1}\n')
    columns = {"output_tokens": "output_tokens"}
    source = {"kind": "file", "path": str(path)}
    first, second = load_prompts(PromptSpec.model_validate({"source": source, "columns": columns}))
    assert isinstance(first, Prompt) and first.sampling == {"max_tokens": 7, "min_tokens": 7, "ignore_eos": True}
    assert isinstance(second, BadRow) and "output_tokens holds -1, expected a number of tokens" in second.message
    path = tmp_path / "guidellm.csv"
    path.write_text("text,output_tokens_count\n1?,12\n")
    columns = {"prompt": "text", "output_tokens": "output_tokens_count"}
    spec = PromptSpec.model_validate({"source": {"kind": "file", "path": str(path)}, "columns": columns})
    [prompt] = load_prompts(spec)
    assert isinstance(prompt, Prompt) and prompt.sampling["max_tokens"] == 12


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    rows=st.lists(JSON, max_size=5), indent=st.sampled_from([None, 2]), is_ascii=st.booleans(), chunk=st.integers(1, 9)
)
def test_an_array_is_read_as_json_reads_it(tmp_path_factory, rows, indent, is_ascii, chunk):
    """In pieces of a few bytes, which cut characters and numbers in two."""
    path = tmp_path_factory.mktemp("array") / "a.json"
    text = json.dumps(rows, indent=indent, ensure_ascii=is_ascii)
    path.write_bytes(text.encode("utf-8", "surrogatepass" if is_ascii else "replace"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "CHUNK_BYTES", chunk)
        read = list(files.read_json(path))
    expected = json.loads(path.read_bytes())
    assert [json.loads(row.text) if isinstance(row, UnreadableRow) else row for row in read] == expected
    assert [isinstance(row, dict) for row in read] == [isinstance(row, dict) for row in expected]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"a": 1}, {"a": ', "element 2: not JSON"),
        (b'[{"a": 1} {"a": 2}]', "element 1: followed by '{', expected a comma"),
        (b'[{"a": 1}', "element 1: followed by '', expected a comma or the array's end"),
        (b'[{"a": "\xff"}]', "not UTF-8"),
    ],
)
def test_where_an_array_is_broken_is_said(tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(PromptError, match=words):
        list(files.read_json(path))


def test_an_array_needs_the_memory_of_a_chunk(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "x" * 10_000}] * 2000))
    tracemalloc.start()
    try:
        assert sum(1 for _ in files.read_json(path)) == 2000
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 3
    finally:
        tracemalloc.stop()
