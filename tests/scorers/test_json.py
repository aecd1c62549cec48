"""The scorer json: what is JSON, what is valid, and that no answer makes it raise."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assayline.scorers.json import MOST_REASON_CHARS, score_json

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("answer", "value", "extracted"),
    [
        ("{}", 1.0, "{}"),
        (' {"a": 1}\n', 1.0, '{"a": 1}'),
        ("3", 1.0, "3"),
        ('```json\n{"a": 1}\n```', 1.0, '{"a": 1}'),
        ("```\n[1]\n```", 1.0, "[1]"),
        ('Here: {"a": 1}', 0.0, None),
        ('{"a": 1} and more', 0.0, None),
        ("{'a': 1}", 0.0, None),
        ('{"a": NaN}', 0.0, None),
        ("-Infinity", 0.0, None),
        ('{"a": 1,}', 0.0, None),
        ("", 0.0, None),
        ("[" * 200_000, 0.0, None),
        ("9" * 5000, 0.0, None),  # more digits than Python reads
    ],
)
def test_json_scorer_accepts_only_json(answer: str, value: float, extracted: str | None) -> None:
    score = score_json(answer, None, {})
    assert score[:2] == (value, extracted)
    assert score.reason


@pytest.mark.parametrize(
    ("answer", "value", "words"),
    [
        ('{"name": "Ada", "age": 36}', 1.0, "valid under the schema"),
        ('{"name": "Ada"}', 1.0, "valid under the schema"),
        ('{"age": 36}', 0.0, "'name' is a required property"),
        ('{"name": "Ada", "age": -1}', 0.0, "at age, -1 is less than the minimum"),
        ("[]", 0.0, "at the top, [] is not of type 'object'"),
        ("no", 0.0, "invalid JSON"),
    ],
)
def test_json_scorer_validates_schemas(answer: str, value: float, words: str) -> None:
    score = score_json(answer, None, {}, PERSON)
    assert score.value == value
    assert words in score.reason


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://localhost:9/schema.json"},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "(?<n"},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_cannot_be_applied_is_said_so(schema: dict[str, Any]) -> None:
    score = score_json('"text"', None, {}, schema)
    assert score.value == 0.0
    assert "the schema cannot be applied" in score.reason


def test_the_schema_says_which_draft() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert score_json('["a"]', None, {}, schema).value == 0.0
    newest = {"prefixItems": [{"type": "integer"}]}
    assert score_json('["a"]', None, {}, newest).value == 0.0


@settings(deadline=None)
@given(VALUES)
def test_json_scorer_accepts_output_of_json_dumps(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2), f"```json\n{json.dumps(value)}\n```"):
        assert score_json(text, None, {}, None).value == 1.0


@settings(deadline=None)
@given(st.text() | st.text('{}[]":,0123456789.-eE\\u ntrfalse`\n'))
def test_no_answer_makes_it_raise(answer: str) -> None:
    for schema in (None, PERSON):
        score = score_json(answer, None, {}, schema)
        assert score.value in (0.0, 1.0)
        assert 0 < len(score.reason) <= MOST_REASON_CHARS
