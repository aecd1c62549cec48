"""Batch files become requests: each body is sent unchanged, or its line is refused with an error."""

from pathlib import Path
from typing import Any

import pytest
from run_kit import batch_line, chat_line, prepare, text_line, write_batch

from assayline.errors import PromptError
from assayline.prompts import load_prompts
from assayline.prompts.sources.batch import read_chat_body
from assayline.requests.build import PreparedPrompt
from assayline.requests.chat import ServedChat
from assayline.spec.evaluation import EvalSpec

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def spec_of(path: Path, prompts: dict[str, Any] | None = None, **more: Any) -> EvalSpec:
    source = {"kind": "openai_batch", "path": str(path)}
    return EvalSpec.model_validate({"model": "m", "prompts": {"source": source, **(prompts or {})}, **more})


def build(path: Path, tokenizer: Any, renderer: Any = None, **more: Any) -> list[PreparedPrompt]:
    return prepare(spec_of(path, **more), tokenizer, renderer=renderer)


def refused(tmp_path: Path, tokenizer: Any, *lines: dict[str, Any] | str) -> list[str | None]:
    """Return the error of each line, or None."""
    prepared = build(write_batch(tmp_path / "in.jsonl", *lines), tokenizer)
    return [str(one.errors[0].error_message) if one.errors else None for one in prepared]


def test_order_names_and_parameters_are_kept(tmp_path, tokenizer):
    lines = [
        chat_line("b", temperature=0.5, max_tokens=9, max_completion_tokens=7, stop="x", seed=3, user="someone"),
        chat_line("a", top_p=0.5, n=2, seed=5, stream=False, tools=None, logit_bias={"5": 1}),
    ]
    first, second = build(write_batch(tmp_path / "in.jsonl", *lines), tokenizer, sampling={"temperature": 0})
    assert [one.prompt.source_id for one in (first, second)] == ["b", "a"]
    assert first.prompt.metadata == {"url": "/v1/chat/completions", "model": "m"}
    assert [request.sampling for request in first.requests] == [
        {"temperature": 0.5, "max_tokens": 7, "stop": "x", "seed": 3}
    ]
    assert [request.sampling for request in second.requests] == [
        {"temperature": 0, "max_tokens": None, "top_p": 0.5, "seed": seed, "logit_bias": {"5": 1}} for seed in (5, 6)
    ]


@pytest.mark.parametrize(
    ("asked", "sampling"),
    [
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"structured_outputs": {"json": SCHEMA}},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"structured_outputs": {"regex": "a+"}}),
        ({"parallel_tool_calls": True, "metadata": {"x": "y"}, "tool_choice": "auto", "modalities": ["text"]}, {}),
    ],
)
def test_fields_become_sampling_parameters(asked, sampling):
    assert read_chat_body({"model": "m", "messages": [], **asked}).sampling == sampling


def test_text_completions_have_no_template_and_their_own_length(tmp_path, tokenizer):
    lines = [
        text_line("a", "bako", logprobs=1),
        text_line("b", [5, 6, 7], max_tokens=3),
        text_line("c", ["mitu"], max_tokens=None),
    ]
    texts = build(write_batch(tmp_path / "in.jsonl", *lines), tokenizer)
    assert [one.errors for one in texts] == [[], [], []]
    (a,), (b,), (c,) = (one.requests for one in texts)
    assert a.prompt_token_ids == tokenizer("bako")["input_ids"] and a.prompt_token_ids[0] == tokenizer.bos_token_id
    assert a.rendered == "bako" and a.sampling == {"max_tokens": 16, "logprobs": 1}
    assert b.prompt_token_ids == [5, 6, 7] and b.sampling == {"max_tokens": 3}
    assert c.prompt_token_ids == tokenizer("mitu")["input_ids"] and c.sampling == {"max_tokens": None}
    assert texts[0].prompt.messages == [{"role": "user", "content": "bako"}]


def test_tools_and_template_variables_reach_the_template(tmp_path, tokenizer):
    tokenizer.chat_template = (
        "{{ tools | length if tools else 0 }}{{ mood }}{{ enable_thinking }}"
        "{% for m in messages %}{{ m.content or m.tool_calls[0].function.arguments.x }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"x": "seen"}'}}
    spoken = [{"role": "user", "content": "tu"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    lines = [
        chat_line("a", "tu", tools=TOOLS, chat_template_kwargs={"mood": "glad"}, reasoning_effort="none"),
        batch_line("b", "/v1/chat/completions", {"messages": spoken}),
        chat_line("c", "tu", continue_final_message=True, add_generation_prompt=False),
        chat_line("d", "tu"),
    ]
    prepared = build(write_batch(tmp_path / "in.jsonl", *lines), tokenizer)
    assert [one.errors for one in prepared] == [[], [], [], []]
    assert [one.requests[0].rendered for one in prepared] == ["1gladFalsetu>", "0tuseen>", "0tu", "0tu>"]
    assert len({one.prompt.prompt_id for one in prepared}) == 4, "what is asked is told apart by all that is read"


REFUSED = {
    "stream": ({"stream": True}, "The body asks for stream: true; a batch is answered when"),
    "forced call": ({"tools": TOOLS, "tool_choice": "required"}, 'tool_choice: "required"; a call cannot be forced'),
    "named call": ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "a call cannot be forced"),
    "sound": ({"modalities": ["text", "audio"]}, "modalities"),
    "unknown": ({"future_field": 3}, "The body asks for future_field: 3; that cannot be done here"),
    "template": ({"chat_template": "{{ x }}"}, "Set chat.template in the spec"),
    "n": ({"n": 0}, "The body's n is 0"),
    "n of text": ({"n": "2"}, "The body's n is '2'"),
    "form": ({"response_format": {"type": "xml"}}, "response_format"),
    "two forms": ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "both say"),
    "top_logprobs": ({"top_logprobs": 2}, "without logprobs: true"),
    "continuation": ({"continue_final_message": True, "add_generation_prompt": True}, "expected one of them"),
    "reserved": ({"chat_template_kwargs": {"tokenize": True}}, "holds tokenize, which the renderer sets itself"),
    "seed": ({"seed": "x"}, "seed is 'x', expected a whole number"),
    "message": ({"messages": [{"content": "x"}]}, "has the role None"),
    "no messages": ({"messages": None}, "The body has no messages"),
    "call": ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}, "has the tool call {'name': 'f'}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_batch_request_is_an_error_row_and_the_others_are_sent(tmp_path, tokenizer, name):
    asked, sentence = REFUSED[name]
    before, bad, after = refused(tmp_path, tokenizer, chat_line("a"), chat_line("b", **asked), chat_line("c"))
    assert (before, after) == (None, None)
    assert bad is not None and sentence in bad


@pytest.mark.parametrize(
    ("prompt", "asked", "sentence"),
    [
        (["a", "b"], {}, "Several prompts are a line each"),
        (None, {}, "The body's prompt is None"),
        ("a", {"suffix": "z"}, "filling in between"),
        ("a", {"echo": True}, "the prompt is not given back"),
        ("a", {"best_of": 3}, "best_of"),
        ("a", {"add_special_tokens": False}, "add_special_tokens"),
    ],
)
def test_text_completions_refuse_what_cannot_be_done(tmp_path, tokenizer, prompt, asked, sentence):
    good, bad = refused(tmp_path, tokenizer, text_line("a"), text_line("b", prompt, **asked))
    assert good is None and bad is not None and sentence in bad


def test_lines_that_break_the_format_are_bad_rows(tmp_path, tokenizer):
    other = {**chat_line("k"), "body": {**chat_line("k")["body"], "model": "other"}}
    sentences = refused(
        tmp_path,
        tokenizer,
        chat_line("a"),
        chat_line("a"),
        "{not json",
        {**chat_line("d"), "body": "text"},
        {**chat_line("e"), "method": "GET"},
        {**chat_line("f"), "custom_id": ""},
        {**chat_line("g"), "url": "/v1/embeddings"},
        text_line("h"),
        other,
        {"custom_id": "i"},
        chat_line("z"),
    )
    expected = [
        None, "custom_id 'a' stands on an earlier line, too", "line 3: not JSON", "The body is 'text'",
        "The line's method is 'GET'", "custom_id is ''", "the endpoint '/v1/embeddings', which is not answered here",
        "asks the endpoint '/v1/completions', and the first one '/v1/chat/completions'",
        "asks the model 'other', and the first one 'm'", "It has no method and no url and no body", None,
    ]  # fmt: skip
    for want, got in zip(expected, sentences, strict=True):
        assert (got is None) if want is None else (got is not None and want in got)


@pytest.mark.parametrize("line", [{"prompt": "What is 1 + 1?"}, {**chat_line("a"), "url": "/v1/embeddings"}, "no json"])
def test_a_file_of_another_format_stops_the_run(tmp_path, line):
    path = write_batch(tmp_path / "in.jsonl", line)
    with pytest.raises(PromptError, match=r"not of a batch file|cannot be read"):
        load_prompts(spec_of(path).prompts)


def test_a_bad_first_line_of_a_batch_file_is_one_bad_row(tmp_path, tokenizer):
    bad, good = refused(tmp_path, tokenizer, chat_line("a", stream=True), chat_line("b"))
    assert bad is not None and good is None


def test_a_server_that_renders_gets_messages_and_nothing_that_it_could_not(tmp_path):
    path = write_batch(tmp_path / "in.jsonl", chat_line("a"), chat_line("b", tools=TOOLS))
    plain, tools = build(path, None, ServedChat(spec_of(path).chat))
    assert plain.requests[0].messages == [{"role": "user", "content": "bako mitu"}]
    assert "set engine.server.endpoint to completions" in str(tools.errors[0].error_message)


def test_the_set_is_called_as_its_file(tmp_path):
    assert spec_of(tmp_path / "night.jsonl").prompts.set_name == "night"
