"""Answers of a given form, on a real vLLM engine: each is checked by a parser that is not the engine's."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_helpers import ARGS, Asker, by_id, open_engine

from assayline.answer_spec import OutputSpec, ReasoningSpec
from assayline.engines.offline import OfflineEngine
from assayline.records import Completion
from assayline.spec_file import parse_spec

pytestmark = pytest.mark.vllm

SCHEMA = {
    "type": "object",
    "properties": {
        "sum": {"type": "integer", "minimum": 0, "maximum": 99},
        "parity": {"enum": ["even", "odd"]},
        "digits": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
                   "minItems": 1, "maxItems": 3},
    },
    "required": ["sum", "parity", "digits"],
    "additionalProperties": False,
}
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
COMPACT = {"temperature": 1.0, "seed": 3, "max_tokens": 100}


def answers_in(engine: OfflineEngine, asker: Asker, output: dict[str, Any], **sampling: Any) -> list[Completion]:
    """Answers of many kinds: greedy ones, and random ones, which would be anything without the form."""
    form = {"structured_outputs": OutputSpec.model_validate(output).structured_outputs}
    questions = [row["question"] for row in asker.rows[:12]]
    requests = [asker.ask(question, **{**COMPACT, "seed": seed, **form, **sampling})
                for seed, question in enumerate(questions)]
    answers = by_id(engine.generate(requests))
    assert all(answer.error_kind is None for answer in answers.values()), next(iter(answers.values())).error_message
    return [answers[request.request_id] for request in requests]


@pytest.fixture(scope="module")
def compact(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineEngine]:
    """Without blanks, which are part of JSON: the tiny model writes them until its tokens are used up."""
    log = tmp_path_factory.mktemp("compact") / "engine.log"
    config = {"backend": "xgrammar", "disable_any_whitespace": True}
    with closing(open_engine(tiny_model, log, args={**ARGS, "structured_outputs_config": config})) as opened:
        yield opened


def test_every_answer_is_json_of_the_schema(compact: OfflineEngine, asker: Asker) -> None:
    answers = answers_in(compact, asker, {"json_schema": SCHEMA})
    for answer in answers:
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(str(answer.text)), SCHEMA)
    assert len({answer.text for answer in answers}) > 3


def test_json_that_is_cut_off_says_so(engine: OfflineEngine, asker: Asker) -> None:
    for answer in answers_in(engine, asker, {"json_schema": SCHEMA}, max_tokens=3):
        assert answer.finish_reason == "length"
        with pytest.raises(ValueError, match="column"):
            json.loads(str(answer.text))


def test_every_answer_matches_the_expression(engine: OfflineEngine, asker: Asker) -> None:
    pattern = r"[A-F]{2}-[0-9]{1,3}(, (odd|even))?"
    texts = [str(answer.text) for answer in answers_in(engine, asker, {"regex": pattern})]
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(set(texts)) > 3


def test_every_answer_is_one_of_the_choices(engine: OfflineEngine, asker: Asker) -> None:
    choice = ["yes", "no", "perhaps 7", "A \"quoted\" one"]
    texts = [answer.text for answer in answers_in(engine, asker, {"choice": choice})]
    assert set(texts) <= set(choice) and len(set(texts)) > 1


def parse_sum(text: str) -> None:
    """A recursive-descent parser of SUM_GRAMMAR. Raises AssertionError."""
    left, equals, result = text.partition(" = ")
    assert equals and re.fullmatch("[0-9]{1,2}", result), text
    terms = left.split(" + ")
    assert 1 <= len(terms) <= 2, text
    for term in terms:
        inner = term[1:-1] if term.startswith("(") and term.endswith(")") else term
        assert re.fullmatch("[0-9]{1,2}", inner), text


def test_every_answer_fits_the_grammar(engine: OfflineEngine, asker: Asker) -> None:
    texts = [str(answer.text) for answer in answers_in(engine, asker, {"grammar": SUM_GRAMMAR})]
    for text in texts:
        parse_sum(text)
    assert len(set(texts)) > 3


def test_a_grammar_may_be_lark(engine: OfflineEngine, asker: Asker) -> None:
    texts = [str(answer.text) for answer in answers_in(engine, asker, {"grammar": LARK_GRAMMAR})]
    assert all(re.fullmatch("yes|no[0-9]", text) for text in texts), texts


BROKEN: dict[str, dict[str, Any]] = {
    "a grammar without a root": {"grammar": "number ::= [0-9]"},
    "a grammar of something else": {"grammar": "root ::= ((("},
    "a reference to nothing": {"json": {"$ref": "#/$defs/nothing"}},
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_only_the_engine_can_refuse_is_an_error_row(engine: OfflineEngine, asker: Asker, case: str) -> None:
    good, bad = asker.ask(), asker.ask(structured_outputs=BROKEN[case])
    answers = by_id(engine.generate([good, bad]))
    assert answers[good.request_id].text == "7"
    assert answers[bad.request_id].error_kind == "rejected_by_engine" and answers[bad.request_id].error_message


def test_the_spec_s_form_reaches_the_engine(engine: OfflineEngine, asker: Asker) -> None:
    spec = parse_spec({"model": "m", "output": {"choice": ["cat", "dog"]}, "sampling": {"temperature": 0},
                       "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "a"}]}}})
    [answer] = engine.generate([asker.send(asker.ids_of("What is 3 + 4?"), **spec.sampling_defaults)])
    assert answer.text in ("cat", "dog")


PARSER = """
from vllm.reasoning.abs_reasoning_parsers import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class TinyParser(BaseThinkingReasoningParser):
    start_token = "<|assistant|>"
    end_token = "1"


ReasoningParserManager.register_module("tiny", module=TinyParser)
"""


def test_with_vllms_parser_the_thinking_is_free_and_the_answer_is_not(
    tiny_model: Path, asker: Asker, tmp_path: Path
) -> None:
    """The tiny model answers 9 + 4 with 13, and here the 1 is the end of its thinking."""
    plugin = tmp_path / "tiny_parser.py"
    plugin.write_text(PARSER)
    config = {"reasoning_parser": "tiny", "reasoning_parser_plugin": str(plugin)}
    args = {**ARGS, "structured_outputs_config": config}
    form = {"structured_outputs": {"choice": ["cat", "dog"]}}
    with closing(open_engine(tiny_model, tmp_path / "log", args=args, reasoning=ReasoningSpec(close="1"))) as engine:
        [answer] = engine.generate([asker.ask("What is 9 + 4?", **form)])
    assert answer.error_kind is None, answer.error_message
    assert (answer.reasoning, answer.text in ("cat", "dog")) == ("", True)
