"""The scorer choice: the letter that an answer settles on."""

import pytest

from assayline.scorers.letters import find_target, score_choice, take_letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B. Paris", "B"),
        ("b) Paris", "B"),
        ("The answer is (B).", "B"),
        ("the answer is: **B**", "B"),
        ("Answer: b", "B"),
        ("The correct option is C because A is wrong.", "C"),
        (r"So \boxed{C}", "C"),
        (r"The answer is $\boxed{\text{C}}$.", "C"),
        ("The answer is A. Wait. The answer is D.", "D"),
        ("The answer is a dog, so (D)", "D"),
        ("A dog barks, so it must be C", "C"),
        ("B\n\nExplanation: A is wrong, C too.", "B"),
        ("Both A and B look right, but only C is", "C"),
        ("答案是B。", "B"),
        ("It's (A), not (B)", "A"),
        ("Because", None),
        ("E", None),
        ("B's", None),
        ("", None),
    ],
)
def test_the_letter_that_an_answer_settles_on(answer, letter):
    assert take_letter(answer, "ABCD")[0] == letter


@pytest.mark.parametrize(
    ("target", "letters", "letter"),
    [
        ("B", "ABCD", "B"),
        ("b", "ABCD", "B"),
        ("(B)", "ABCD", "B"),
        ("B. Paris", "ABCD", "B"),
        ("1", "ABCD", "B"),
        ("0", "ABCD", "A"),
        ("4", "ABCD", None),
        ("1", "1234", "1"),
        ("E", "ABCD", None),
        ("", "ABCD", None),
    ],
)
def test_the_letter_of_a_target(target, letters, letter):
    assert find_target(target, letters) == letter


def test_choice_says_why():
    assert score_choice("(C)", "2", {}, "ABCD")[:3] == (1.0, "C", "the letter of the target")
    assert score_choice("(C)", "A", {}, "ABCD")[:3] == (0.0, "C", "C, not A")
    assert score_choice("I do not know", "A", {}, "ABCD")[:3] == (0.0, None, "no letter in the answer")
    assert score_choice("A", "Paris", {}, "ABCD")[:3] == (0.0, "A", "the target is none of ABCD: Paris")
    assert score_choice("The answer is 3", "3", {}, "1234").value == 1.0


@pytest.mark.parametrize("frame", ["{}", "({})", "{}.", "Answer: {}", "**{}**", "It is ({})."])
@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_a_letter_in_a_frame_is_itself(letter, frame):
    assert take_letter(frame.format(letter), "ABCDEFGHIJ")[0] == letter
