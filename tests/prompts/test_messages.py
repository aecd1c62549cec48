"""Rows to messages: columns, templates, values, turns, and which errors are the run's and which the row's."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.errors import PromptError
from assayline.prompts import BadRow, load_prompts
from assayline.prompts.columns import RowReader
from assayline.prompts.row import RowError, RowShapeError, as_json, as_text, read_messages, split_turns
from assayline.records import Prompt
from assayline.spec.prompts import Columns, MessageTemplate, PromptSpec

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def reader(template: Any = None, **columns: Any) -> RowReader:
    return RowReader(Columns(**columns), template)


def test_the_default_columns_are_used_if_present():
    row = {"messages": CHAT, "prompt": "p", "target": 4, "id": 9, "other": 1}
    parts = reader().read(row)
    assert (parts.messages, parts.target, parts.source_id, parts.metadata) == (CHAT, "4", "9", {})
    parts = reader().read({"prompt": "p", "system": "s", "tools": '[{"name": "f"}]'})
    assert parts.messages == [CHAT[0], {"role": "user", "content": "p"}]
    assert parts.body and parts.body.variables == {"tools": [{"name": "f"}]}
    parts = reader().read({"prompt": "p", "system": None, "tools": []})
    assert (parts.messages, parts.target, parts.source_id) == ([{"role": "user", "content": "p"}], None, None)


def test_named_columns_are_used():
    options = {"max_tokens": 5, "stop": None}
    row = {"q": "why", "a": "because", "key": "k", "level": 3, "messages": CHAT, "options": options}
    parts = reader(prompt="q", target="a", id="key", metadata=["level"], sampling="options").read(row)
    assert parts.messages == [{"role": "user", "content": "why"}]
    assert (parts.target, parts.source_id, parts.metadata) == ("because", "k", {"level": 3})
    assert parts.sampling == {"max_tokens": 5}


@pytest.mark.parametrize("name", ["messages", "prompt", "target", "id", "sampling", "metadata", "options"])
def test_a_named_column_that_is_not_there_stops_the_run_in_the_first_row_only(name):
    given_name: Any = ["questoin"] if name == "metadata" else "questoin"
    columns = reader(**{name: given_name})
    row = {"prompt": "p", "question": "q"}
    with pytest.raises(PromptError) as caught:
        columns.check_first(row)
    assert not isinstance(caught.value, RowError)
    message = str(caught.value)
    assert f"prompts.columns.{name}" in message
    assert "did you mean 'question'? Columns: prompt, question." in message
    with pytest.raises(RowError) as in_row:
        columns.read(row)
    assert in_row.value.kind == "row_error"


def test_a_missing_column_does_not_hide_behind_a_bad_value():
    with pytest.raises(PromptError, match=r"prompts\.columns\.sampling"):
        reader(sampling="options").check_first({"messages": "not json", "id": b"", "target": b""})
    with pytest.raises(PromptError, match=r"neither a column `messages` nor a column `prompt`.*Columns: answer, q\."):
        reader().check_first({"q": 1, "answer": b""})
    for template, row in ((None, {"messages": []}), ("{{ q }}", {"q": None}), ("{{ 1 // q }}", {"q": 0})):
        reader(template).check_first(row)  # which is not a mistake in the spec


ALL = ("self", "range", "loop", "context", "items")


@pytest.mark.parametrize(
    ("template", "row", "content"),
    [
        ("{{ a }} + {{ row['b c'] }} & <{{ d | tojson }}>\n", {"a": 1, "b c": 2, "d": "<é>"}, '1 + 2 & <"<é>">'),
        ("A:\n  {% for x in xs %}\n- {{ x }}\n  {% endfor %}\nB:\n", {"xs": "ab"}, "A:\n- a\n- b\nB:"),
        ("{% if hint is defined %}{{ hint }}{% endif %}{{ q }}", {"q": "x"}, "x"),
        ("{% if hint is defined %}{{ hint }}{% endif %}{{ q }}", {"q": "x", "hint": "h"}, "hx"),
        ("{{ q or '' }}!", {"q": None}, "!"),
        ("{{ q|default('', true) }}!", {"q": None}, "!"),
        ("{% if q %}{{ q }}{% endif %}!", {"q": float("nan")}, "!"),
        (
            "{{ row['self'] }} {{ range }} {{ loop }} {{ context }} {{ items }}",
            {name: name for name in ALL},
            "self range loop context items",
        ),
    ],
    ids=["columns", "lines of blocks alone", "missing", "there", "null or", "null default", "null if", "hidden names"],
)
def test_a_template_sees_the_columns(template, row, content):
    template = reader(template)
    template.check_first(row)
    assert template.read(row).messages == [{"role": "user", "content": content}]


def test_a_template_may_be_a_list_of_messages():
    messages = [MessageTemplate(role="system", content="be {{ how }}"), MessageTemplate(role="user", content="{{ q }}")]
    parts = reader(messages).read({"how": "kind", "q": "?", "target": 3.0})
    assert parts.messages == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "?"}]
    assert parts.target == "3.0"


@pytest.mark.parametrize(
    ("template", "row", "kind", "words"),
    [
        ("{{ c }}: {{ q }}", {"q": None, "c": "c"}, "template_error", "a value that is null: q. Fill it in, or"),
        ("{{ c }}: {{ q }}", {"q": float("nan"), "c": "c"}, "template_error", "{{ q or '' }}"),
        ("{{ row['a b'].c }}", {"a b": {"c": None}}, "template_error", "a value that is null. Fill it in"),
        ("{{ row['a b'] }}", {"a b": None}, "template_error", "null: a b."),
        ("{{ 1 // n }}", {"n": 0}, "template_error", "ZeroDivisionError"),
        (
            "{{ n }}",
            {"n": float("inf")},
            "row_error",
            "holds inf, which is not a number",
        ),  # as JSON's 1e999 and Infinity are read
        ("{{ self }}", {"self": "me"}, "row_error", "holds TemplateReference, expected text"),
        (None, {"prompt": None}, "row_error", "expected text"),
        (None, {"prompt": [{"role": "user"}]}, "row_error", "expected text"),
        (None, {"prompt": {"a": 1}}, "row_error", "expected text"),
    ],
)
def test_a_row_that_makes_no_prompt_says_why(template, row, kind, words):
    with pytest.raises(RowError) as caught:
        reader(template).read(row)
    assert words in str(caught.value) and caught.value.kind == kind


TABLE = {"values": [3, 4], "items": ["oak"], "title": "trees", "none": None, "yes": True, "size": Decimal("1.50")}
PRINTED = {
    "{{ t.values }} {{ t.items }} {{ t.title }} {{ row.t.values }}": '[3, 4] ["oak"] trees [3, 4]',
    "{{ [t]|map(attribute='values')|list }} {{ ([t]|selectattr('items')|first).title }}": "[[3, 4]] trees",
    "{{ ([t]|groupby('title')|first).list|length }} {{ [t]|join(attribute='values') }}": "1 [3, 4]",
    "{% for k, v in t.items() %}{{ k }} {% endfor %}{{ t.get('title') }}": "values items title none yes size trees",
    "{{ 'x' ~ t.values }} {{ t.items|string }} {{ t.values|upper }} {{ t.yes ~ '' }}": 'x[3, 4] ["oak"] [3, 4] true',
    "{{ '%s' % t.values }} {{ '{} {}'.format(t.items, 7) }} {{ '%s'|format(t.yes) }}": '[3, 4] ["oak"] 7 true',
    "{{ [t.values, t.yes, t.size]|join(' ') }} {{ t.values|replace('3', t.size) }}": "[3, 4] true 1.50 [1.50, 4]",
    "{{ t.none|int(0) }} {{ t.none|default('-', true) }} {{ t.yes|int }} {{ t.none is none }}": "0 - 1 true",
}


@pytest.mark.parametrize("template", PRINTED)
def test_template_prints_keys_and_json_in_filters_and_operators(template):
    assert reader(template).read({"t": TABLE}).messages[0]["content"] == PRINTED[template]


@pytest.mark.parametrize(
    "wrong", ["t.none", "''.title", "t.keys", "[''].count", "t.keys()", "cycler", "[1]|map('abs')"]
)
@pytest.mark.parametrize(
    "way", ["{}", "{}|string", "'' ~ {}", "'%s' % ({},)", "'{{}}'.format({})", "{}|upper", "[{}]|join"]
)
def test_template_that_prints_a_null_or_an_object_of_python_is_an_error_row(wrong, way):
    with pytest.raises(RowError):
        reader("{{ " + way.format(wrong) + " }}").read({"t": TABLE})


@pytest.mark.parametrize("text", ["'a' * 10**12", "10**12 * 'a'", "[1] * 10**12", "'%s' % ('a' * 10**12)"])
def test_template_that_multiplies_without_end_is_stopped_before_it_takes_the_memory(text):
    with pytest.raises(RowError, match="The template makes 1000000000000 characters") as raised:
        reader("{{ " + text + " }}").read({})
    assert raised.value.kind == "prompt_too_long"


def test_an_undefined_variable_is_named_with_the_columns():
    template = reader("{{ qestion }}")
    with pytest.raises(PromptError) as caught:
        template.check_first({"question": "x", "target": "y"})
    assert "variable 'qestion' is undefined; did you mean 'question'? Columns: question, target." in str(caught.value)
    with pytest.raises(RowShapeError) as in_row:
        template.read({"question": "x"})
    assert in_row.value.kind == "template_error"


@pytest.mark.parametrize("template", ["{{ q", "{% for %}", "{{ q | nosuchfilter }}"])
def test_template_syntax_is_the_runs_fault(template):
    with pytest.raises(PromptError, match=r"prompts\.template is not Jinja2.*line 1") as caught:
        reader(template)
    assert not isinstance(caught.value, RowError)


@pytest.mark.parametrize("template", ["{{ q.__class__ }}", "{{ row.update({'a': 1}) }}"])
def test_a_template_that_the_sandbox_stops_is_the_runs_fault(template):
    """`test_template_limits.py` has the ways out of it."""
    with pytest.raises(PromptError, match="not allowed") as caught:
        reader(template).check_first({"q": "x"})
    assert "unsafe" in str(caught.value) or "not safely" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"), ("", ""), (None, None), (7, "7"), (7.0, "7.0"), (0.1, "0.1"), (True, "true"),
        (False, "false"), (float("nan"), None), (Decimal("1.50"), "1.50"),
        (datetime.date(2026, 1, 2), "2026-01-02"), ([1, "ä"], '[1, "ä"]'), ({"a": None}, '{"a": null}'),
    ],
)  # fmt: skip
def test_values_as_text(value, expected):
    assert as_text(value, "it") == expected


@pytest.mark.parametrize("value", [float("-inf"), b"x", object(), [b"x"], "\ud800", ["a\udfff"], {"\ud800": 1}])
def test_values_that_cannot_be_stored_are_refused(value):
    with pytest.raises(RowError, match=r"^it holds ") as caught:
        as_text(value, "it")
    str(caught.value).encode()


NUMBERS = st.booleans() | st.integers() | st.floats(allow_infinity=False) | st.just(float("nan"))
SCALARS = st.none() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"]))


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.just("k"), inner)))
def test_as_json_is_strict_json(value):
    plain = as_json(value, "it")
    assert json.loads(json.dumps(plain, allow_nan=False, sort_keys=True)) == plain


def keep_part(part: dict[str, Any], where: str) -> dict[str, Any]:
    """Parts other than text have their own tests (`test_media_rows.py`)."""
    return part


def test_messages_may_be_json_text():
    assert read_messages(json.dumps(CHAT), keep_part) == CHAT


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": [{"type": "text", "text": "t", "image": None}], "name": None, "tool_calls": []},
         {"content": [{"type": "text", "text": "t"}]}),
        ({"content": ["a", {"type": "input_text", "text": "b"}]},
         {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        ({"content": [{"image_url": {"url": "u"}}]}, {"content": [{"type": "image_url", "image_url": {"url": "u"}}]}),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}, "b"]}, {"role": "tool", "content": "a\nb"}),
        ({"role": "tool", "content": None}, {"role": "tool", "content": ""}),
        ({"role": "assistant", "reasoning_content": "r"},
         {"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r"}),
    ],
)  # fmt: skip
def test_messages_arrive_as_a_server_gives_them_to_a_template(message, expected):
    assert read_messages([{"role": "user", **message}], keep_part) == [{"role": "user", **expected}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("hello", "not JSON"),
        ([], "at least one"),
        (None, "at least one"),
        ({"role": "user", "content": "x"}, "at least one"),
        (["x"], "Message 1 is 'x'"),
        ([CHAT[0], {"from": "human", "value": "x"}], r"Message 2 has the role None.*Its keys: from, value"),
        ([{"role": "user", "content": 7}], "Message 1 has the content 7"),
        ([{"role": "user", "content": None}], "Message 1 has the content None"),
        ([{"role": "user", "content": [7]}], "Message 1, part 1 is 7"),
        ([{"role": "assistant", "tool_calls": [{"name": "f"}]}], "Message 1 has the tool call {'name': 'f'}, expected"),
        ([{"role": "user", "content": [{"type": "text"}]}], "part 1 has the text None"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
    ],
)
def test_messages_of_another_shape_are_refused(messages, expected):
    with pytest.raises(RowError, match=expected) as caught:
        read_messages(messages, keep_part)
    assert caught.value.kind == "row_error"


@pytest.mark.parametrize(
    ("value", "expected"), [("", {}), (None, {}), ('{"top_p": 1}', {"top_p": 1}), ({"n": 1}, {"n": 1})]
)
def test_sampling_overrides(value, expected):
    assert reader(sampling="s").read({"prompt": "p", "s": value}).sampling == expected
    for wrong in ("nonsense", "[1]", 7, [1]):
        with pytest.raises(RowError, match="Sampling column 's' holds"):
            reader(sampling="s").read({"prompt": "p", "s": wrong})


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
def test_a_turn_is_what_stands_between_two_answers(said, turns):
    assert split_turns(messages_of(said)) == [messages_of(turn) for turn in turns]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (messages_of("s a1"), "has no message from user"),
        ([*messages_of("u1"), {"role": "tool", "content": "4"}], "Message 2 has the role 'tool'"),
        (
            [*messages_of("u1"), {"role": "assistant", "tool_calls": [{"function": {}}]}],
            "Message 2 calls tools, which cannot be",
        ),
    ],
)
def test_a_conversation_that_cannot_be_asked_so_says_why(messages, words):
    with pytest.raises(RowError, match=words):
        split_turns(messages)
    [row] = prompts_of({"messages": messages}, turns="each")
    assert isinstance(row, BadRow) and words in row.message and row.prompt.turn_sizes is None


def test_conversation_id_depends_on_questions_not_on_recorded_answers():
    rows = [{"messages": messages_of(said)} for said in ("u1 a1 u2", "u1 a2 u2", "u1 u2", "u3 a1")]
    one, other, single, short = (row for row in prompts_of(*rows, turns="each") if isinstance(row, Prompt))
    assert one.messages == messages_of("u1 u2") and one.turn_sizes == [1, 1]
    assert one.prompt_id == other.prompt_id and other.occurrence == 1
    assert single.prompt_id != one.prompt_id and single.turn_sizes == [2]
    [given] = prompts_of({"messages": messages_of("u3")})
    assert isinstance(given, Prompt) and short.prompt_id == given.prompt_id, "one question is one however it is asked"
