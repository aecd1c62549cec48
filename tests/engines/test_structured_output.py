"""Answers of a given form, on a real vLLM engine: each is checked by a parser that is not the engine's.

Whole answers of a JSON schema, and answers after thinking, are in test_offline_engines.py.
"""

import json
import re
from typing import Any

import pytest
from engine_kit import SCHEMA, VLLM, answers_in, by_id

from assayline.spec.engine import list_ignored

pytestmark = pytest.mark.vllm

SUM_GRAMMAR = """
root ::= term (" + " term)? " = " number
term ::= number | "(" number ")"
number ::= digit | digit digit
digit ::= [0-9]
"""
LARK_GRAMMAR = """
start: "yes" | "no" NUMBER
NUMBER: /[0-9]/
"""


def test_json_that_is_cut_off_says_so(engine, asker):
    for answer in answers_in(engine, asker, {"json_schema": SCHEMA}, max_tokens=3):
        assert answer.finish_reason == "length"
        with pytest.raises(ValueError, match="column"):
            json.loads(str(answer.text))


EXPRESSION, CHOICE = r"[A-F]{2}-[0-9]{1,3}(, (odd|even))?", ["yes", "no", "perhaps 7", 'A "quoted" one']
TERM = r"([0-9]{1,2}|\([0-9]{1,2}\))"
needs_terminals = pytest.mark.skipif(VLLM < (0, 31), reason="before vLLM 0.31 a grammar with terminals goes wrong")


@pytest.mark.parametrize(
    ("form", "pattern", "least"),
    [
        ({"regex": EXPRESSION}, EXPRESSION, 4),
        ({"choice": CHOICE}, "|".join(map(re.escape, CHOICE)), 2),
        ({"grammar": SUM_GRAMMAR}, rf"{TERM}( \+ {TERM})? = [0-9]{{1,2}}", 4),
        pytest.param({"grammar": LARK_GRAMMAR}, "yes|no[0-9]", 1, marks=needs_terminals),
    ],
    ids=["an expression", "choices", "a grammar", "a grammar of lark"],
)
def test_every_answer_has_its_form(engine, asker, form, pattern, least):
    texts = [str(answer.text) for answer in answers_in(engine, asker, form)]
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(set(texts)) >= least


BROKEN: dict[str, dict[str, Any]] = {
    "a grammar without a root": {"grammar": "number ::= [0-9]"},
    "a grammar of something else": {"grammar": "root ::= ((("},
    "a reference to nothing": {"json": {"$ref": "#/$defs/nothing"}},
}


@pytest.mark.parametrize("case", BROKEN)
def test_structured_output_refused_by_the_engine_is_an_error_row(engine, asker, case):
    good, bad = asker.ask(), asker.ask(structured_outputs=BROKEN[case])
    answers = by_id(engine.generate([good, bad]))
    assert answers[good.request_id].text == "7"
    assert answers[bad.request_id].error_kind == "rejected_by_engine" and answers[bad.request_id].error_message


EXCLUDED = {
    "pattern": ("^[a-z]+$", "1"), "minLength": (3, "a"), "maxLength": (1, "abc"), "format": ("date", "abc"),
    "minimum": (3, 1), "exclusiveMaximum": (3, 3), "multipleOf": (3, 4), "maxItems": (1, [1, 2]),
    "uniqueItems": (True, [1, 1]), "contains": ({"type": "integer"}, ["a"]),
    "propertyNames": ({"enum": ["a"]}, {"b": 1}),
    "patternProperties": ({"^a": {"type": "integer"}}, {"a": "x"}), "dependentRequired": ({"a": ["b"]}, {"a": 1}),
    "not": ({"type": "string"}, "a"), "if": ({"type": "string"}, "abc"), "enum": (["a"], "b"), "const": ("a", "b"),
    "items": ({"type": "integer"}, ["a"]), "properties": ({"a": {"type": "integer"}}, {"a": "x"}),
    "anyOf": ([{"type": "integer"}], "a"), "additionalProperties": ({"type": "integer"}, {"a": "x"}),
}  # fmt: skip
"""A keyword's value, and a value of JSON that it excludes."""


@pytest.mark.parametrize("keyword", EXCLUDED)
def test_list_ignored_names_what_xgrammar_does_not_enforce(keyword):
    """In a schema without a type, and the same at any depth."""
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string

    given, value = EXCLUDED[keyword]
    part = {keyword: given} | ({"then": {"type": "integer"}} if keyword == "if" else {})
    schema = {"type": "object", "properties": {"v": part}, "required": ["v"], "additionalProperties": False}
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False)
    is_ignored = _is_grammar_accept_string(grammar, json.dumps({"v": value}))
    assert list_ignored(schema) == ([f"properties.v.{keyword}"] if is_ignored else [])
    assert list_ignored({"anyOf": [{"$defs": {"d": part}}]}) == ([f"anyOf.0.$defs.d.{keyword}"] if is_ignored else [])
