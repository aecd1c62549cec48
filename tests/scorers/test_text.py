"""Scorers that compare texts."""

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.scorers.text import score_contains, score_exact_match, score_regex, score_token_f1


@pytest.mark.parametrize(
    ("answer", "target", "ignore_case", "value", "extracted"),
    [
        ("4", "4", False, 1.0, "4"), (" 4\n", "\t4 ", False, 1.0, "4"), ("a b", "a  b", False, 0.0, "a b"),
        ("Paris", "paris", False, 0.0, "Paris"), ("Paris", "PARIS", True, 1.0, "paris"),
        ("ÉCOLE", "école", True, 1.0, "école"), ("Paris.", "Paris", False, 0.0, "Paris."),
        ("", "", False, 1.0, ""), (" \n", "", False, 1.0, ""), ("", "4", False, 0.0, ""),
    ],
)  # fmt: skip
def test_exact_match(answer, target, ignore_case, value, extracted):
    assert score_exact_match(answer, target, {}, ignore_case)[:2] == (value, extracted)


@pytest.mark.parametrize(
    ("answer", "target", "ignore_case", "value"),
    [
        ("It is Paris, of course", "paris", True, 1.0), ("It is Paris, of course", "paris", False, 0.0),
        ("comparison", " paris ", True, 1.0), ("100%", "%", False, 1.0), ("", "x", True, 0.0),
        ("anything", "", True, 0.0), ("a_b", "a%b", True, 0.0),
    ],
)  # fmt: skip
def test_contains(answer, target, ignore_case, value):
    assert score_contains(answer, target, {}, ignore_case)[:2] == (value, answer.strip())


@pytest.mark.parametrize(
    ("answer", "target", "pattern", "take", "value", "extracted"),
    [
        ("a=1, b=2", "1", r"=(\d)", "first", 1.0, "1"),
        ("a=1, b=2", "2", r"=(\d)", "last", 1.0, "2"),
        ("a=1, b=2", "=2", r"=\d", "last", 1.0, "=2"),
        ("ANSWER: yes", "YES", r"(?i)answer: (\w+)", "first", 1.0, "yes"),
        ("ANSWER: yes", "YES", r"(?i:answer): (\w+)", "first", 0.0, "yes"),
        ("ANSWER: yes", "yes", r"answer: (\w+)", "first", 0.0, None),
        ("x", "x", r"(y)?x", "first", 0.0, None),
        ("say  42 ", "42", r"say(.*)", "first", 1.0, "42"),
        ("line\n#### 7", "7", r"(?m)^#### (\d+)$", "first", 1.0, "7"),
        ("", "", "^$", "first", 1.0, ""),
    ],
)
def test_regex(answer, target, pattern, take, value, extracted):
    assert score_regex(answer, target, {}, pattern, take)[:2] == (value, extracted)


def squad_f1(answer, target):
    """Written after the description of SQuAD's metric, with Python's own means."""

    def words(text):
        bare = "".join(sign for sign in text.lower() if sign not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", bare).split()

    found, wanted = words(answer), words(target)
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(found), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("answer", "target", "value", "extracted"),
    [
        ("The cat sat", "a cat, sat!", 1.0, "cat sat"),
        ("cat cat cat", "cat", 0.5, "cat cat cat"),
        ("dog", "cat", 0.0, "dog"),
        ("the", "an", 1.0, ""),
        ("", "cat", 0.0, ""),
    ],
)
def test_token_f1(answer, target, value, extracted):
    assert score_token_f1(answer, target, {})[:2] == (value, extracted)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["the", "a", "cat", "Cat,", "sat", "an", "don't", "U.S."]),
        st.text(string.printable, max_size=5),
    ),
    max_size=12,
).map(" ".join)


@pytest.mark.hypothesis
@given(answer=WORDS, target=WORDS)
def test_token_f1_against_python(answer, target):
    assert score_token_f1(answer, target, {}).value == pytest.approx(squad_f1(answer, target))
