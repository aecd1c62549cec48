"""Targets with several right answers; composed, decomposed and unseparated text."""

import pytest
from pydantic import TypeAdapter

from assayline.errors import PromptError
from assayline.prompts.targets import ObjectTarget, read_golds, write_target
from assayline.scorers.process import ScorerInput, check_objects, score_answers
from assayline.spec.criteria import Scorer

TRIVIA = {"value": "Lisbon", "aliases": ["Lisboa"], "normalized_aliases": ["lisbon"], "type": "WikipediaEntity"}
NATURAL = {"short_answers": [{"text": ["Oslo"], "start_token": [1]}, {"text": []}], "yes_no_answer": [1, -1]}


@pytest.mark.parametrize(
    ("value", "golds"),
    [
        ("Oslo", ["Oslo"]), ('["Oslo"]', ['["Oslo"]']), (7, ["7"]), (["Lisbon", "Lisboa"], ["Lisbon", "Lisboa"]),
        (["7", "seven", None, "7"], ["7", "seven"]), ([3, 4.5, True], ["3", "4.5", "true"]), (["Oslo"], ["Oslo"]),
        ([], [None]), (None, [None]),
        ({"text": ["Denver", "in Denver"], "answer_start": [177, 170]}, ["Denver", "in Denver"]),
        ({"text": [], "answer_start": []}, [""]),
        ([{"text": "Denver", "answer_start": 177}, {"text": "the city", "answer_start": 1}], ["Denver", "the city"]),
        (TRIVIA, ["Lisbon", "Lisboa", "lisbon"]),
        ({"spans": ["2", "two"], "types": ["number", "span"]}, ["2", "two"]),
        ({"number": "3", "date": {"day": "", "month": "", "year": ""}, "spans": []}, ["3"]),
        ({"number": "", "date": {"day": "4", "month": "July", "year": "1776"}, "spans": []}, ["4 July 1776"]),
        ({"number": "", "date": {}, "spans": ["Ann", "Bo"]}, ["Ann, Bo"]), (NATURAL, ["Oslo", "yes"]),
        ({"one_of": ["a", "b"]}, ["a", "b"]),
    ],
)  # fmt: skip
def test_the_right_answers_in_a_target(value, golds):
    assert read_golds(write_target(value)) == golds


@pytest.mark.parametrize("value", [{"name": "tide"}, [["a"], ["b"]], [{"name": "tide"}], {"text": "a", "note": "b"}])
def test_an_object_of_an_unknown_shape_is_refused_for_scorers_of_text(value):
    target = write_target(value)
    assert isinstance(target, ObjectTarget)
    make = TypeAdapter(Scorer).validate_python
    with pytest.raises(PromptError, match=r"contains compares text, and the target .*hint: name a column"):
        check_objects([make("contains")], [target])
    check_objects([make("json")], [target])


@pytest.mark.parametrize(
    ("scorer", "answer", "target", "value"),
    [
        ({"kind": "exact_match", "ignore_case": True}, "lisboa", ["Lisbon", "Lisboa"], 1.0),
        ("exact_match", "Porto", ["Lisbon", "Lisboa"], 0.0),
        ("contains", "It is Lisboa.", ["Lisbon", "Lisboa"], 1.0),
        ({"kind": "regex", "pattern": r"is (\w+)"}, "It is Lisboa.", ["Lisbon", "Lisboa"], 1.0),
        ("numeric", "7", ["8", "seven", "7"], 1.0),
        ("choice", "B", ["A", "B"], 1.0),
        ("token_f1", "the red house", ["a blue car", "red house"], 1.0),
        ("exact_match", "Sa\u0303o Tome\u0301", "São Tomé", 1.0),
        ("contains", "In São Tomé", "Sa\u0303o Tome\u0301", 1.0),
        ({"kind": "regex", "pattern": "(caf.)$"}, "cafe\u0301", "café", 1.0),
        ("token_f1", "Bjo\u0308rn", "Björn", 1.0),
        ("exact_match", "\u1112\u1161\u11ab\u1100\u1173\u11af", "한글", 1.0),
        ("exact_match", "cafe", "café", 0.0),
        ("token_f1", "北京市", "北京", 0.8),
        ("token_f1", "北京市。", "北京市", 1.0),
        ("token_f1", "東京タワーです", "東京タワー", 10 / 12),
        ("token_f1", "กรุงเทพ", "กรุงเทพ", 1.0),
        ("token_f1", "東京 Tower", "Tower", 0.5),
        ("contains", "Rome.\n\nQ: Capital of France?\nA: Paris", "Paris", 0.0),
    ],
)
def test_scorers_of_text(scorer, answer, target, value):
    [score] = score_answers(
        TypeAdapter(Scorer).validate_python(scorer), [ScorerInput(answer, write_target(target), {})]
    )
    assert score is not None and score.value == pytest.approx(value, abs=1e-3)


def test_the_reason_names_the_target_that_counts():
    scorer = TypeAdapter(Scorer).validate_python("exact_match")
    answers = [ScorerInput(text, write_target(["Lisbon", "Lisboa"]), {}) for text in ("Lisboa", "Porto")]
    assert [score.reason for score in score_answers(scorer, answers) if score] == [
        "the same text as the target: Lisboa, one of 2 targets", "not the target: Lisbon: none of 2 targets"
    ]  # fmt: skip


def test_many_answers_are_scored_in_processes_as_here():
    scorer = TypeAdapter(Scorer).validate_python("numeric")
    answers = [ScorerInput(f"so {n}" if n % 7 else None, None if n % 5 == 0 else "42", {}) for n in range(4321)]
    here = [score for start in range(0, 4321, 500) for score in score_answers(scorer, answers[start : start + 500])]
    assert list(score_answers(scorer, iter(answers))) == here
    assert sum(score is None for score in here) == 865 and here[42].value == 0.0 and here[7].reason == "no answer"
