"""Keywords of a JSON schema that xgrammar does not enforce. Answers of a form are in test_vllm_answers.py."""

import json

import pytest

from assayline.spec.engine import list_ignored

pytestmark = pytest.mark.vllm

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
