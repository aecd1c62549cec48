"""The scorer choice: the letter that an answer settles on, and how it was found."""

import pytest

from assayline.scorers.letters import find_target, score_choice, take_letter

SETTLED = [
    ("B", "B"), ("(B)", "B"), ("B. Paris", "B"), ("b) Paris", "B"), ("The answer is (B).", "B"),
    ("the answer is: **B**", "B"), ("Answer: b", "B"), ("The correct option is C because A is wrong.", "C"),
    (r"So \boxed{C}", "C"), (r"The answer is $\boxed{\text{C}}$.", "C"),
    ("The answer is A. Wait. The answer is D.", "D"), ("The answer is a dog, so (D)", "D"),
    ("A dog barks, so it must be C", "C"), ("B\n\nExplanation: A is wrong, C too.", "B"),
    ("Both A and B look right, but only C is", "C"), ("答案是B。", "B"), ("It's (A), not (B)", "A"), ("Because", None),
    ("E", None), ("B's", None), ("", None),
    ("B (A is a trap)", "B"), ("B, not the A of the first line", "B"), ("C - unlike A, it floats", "C"),
    ("B because A is false", "B"), ("A because B is false", "A"), ("D, since C would sink", "D"),
    ("(C) — A and B are too small", "C"), ("B; A is the usual mistake", "B"), ("**B** (not A)", "B"),
    ("B weil A falsch ist", "B"), ("C porque A es falsa", "C"), ("A is wrong. B is wrong. D is wrong. So C.", "C"),
    ("(A) is incorrect, (B) is not right and (C) remains.", "C"), ("Rule out A. Eliminate D. That leaves B.", "B"),
    ("A ist falsch. B ist richtig.", "B"), ("Ответ: С", "C"), ("Ответ: В", "B"), ("Правильный ответ: А", "A"),
    ("Ответ: В, а не D", "B"), ("Ответ: B", "B"), ("В", "B"), ("Απάντηση: Β. The answer is Β.", "B"),
    ("उत्तर: ख", "B"), ("คำตอบคือ ค", "C"), ("정답: 나", "B"), ("答えはウ。", "C"), ("答案：丙", "C"), ("תשובה: ב", "B"),
    ("الجواب: ج", "C"), ("The answer is Ｂ", "B"), ("B\n\nQuestion: Which is red?\nAnswer: C", "B"),
    ("The answer is B.\n\nQ: Which one?\nA: The answer is C.", "B"), ("It's B, isn't it? A is out.", "B"),
    ("I'd go with B; A is tempting.", "B"), ("I choose option C over A.", "C"), ("Option B (A comes close)", "B"),
    ("The correct answer is D. A is a distractor.", "D"), ("Let's see. A man walks. Therefore: C", "C"),
    ("(A) is wrong. (B) is wrong. (D) is wrong.", None), ("Not A.", None), ("A man walks into a bar.", None),
    ("It is either A or B.", None), ("Neither A nor B.", None), ("I think it floats.", None), ("A is false.", None),
    ("В этом вопросе ответа нет.", None),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "letter"), SETTLED)
def test_the_letter_that_an_answer_settles_on(answer, letter):
    assert take_letter(answer, "ABCD")[0] == letter
    assert score_choice(answer, "C", {}).extracted == letter


FOUND = [
    ("I cannot tell from what is given.", None, None), ("The third option fits, I believe.", None, None),
    ("Options A, C and D are wrong.", None, None), ("Answer: C/D", None, None),
    ("It is either A, or perhaps B.", None, None), ("The answer is not A.", None, None),
    ("It can't be the option (B)!", None, None), ("My choice would be D, not B.", "D", "only"),
    ("The answer isn't A or C; it's (B)", "B", "stated"), ("Nicht A, sondern B", "B", "only"),
    ("Ответ не A, а B", "B", "only"), ("答案不是A，是B", "B", "only"), ("D, since I checked it twice", "D", "only"),
    ("A) rust\nB) frost\nC) dust", None, None), ("A. rust\nB. frost\nC. dust\n\nAs for me, B fits.", "B", "only"),
    ("A. false\nB. true\n\n**B**", "B", "only"), ("Option B is correct. Option A is wrong.", "B", "stated"),
    ("The correct option, therefore, is B. A is wrong.", "B", "stated"),
    ("It must be (B), rather than (D).", "B", "stated"), (r"\boxed{\textbf{B. 12}}, not A", "B", "stated"),
    ("{'choice': 'B', 'why': 'C is false'}", "B", "stated"), ("الإجابة: ب", "B", "stated"), ("答案：Ｂ", "B", "stated"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "letter", "found_by"), FOUND)
def test_a_letter_that_nobody_stated_is_not_made_up(text, letter, found_by):
    assert take_letter(text, "ABCDEFGHIJ") == (letter, found_by)


TARGETS = [
    ("B", "ABCD", "B"), ("b", "ABCD", "B"), ("(B)", "ABCD", "B"), ("B. Paris", "ABCD", "B"), ("1", "ABCD", "B"),
    ("0", "ABCD", "A"), ("4", "ABCD", None), ("1", "1234", "1"), ("E", "ABCD", None), ("", "ABCD", None),
]  # fmt: skip


@pytest.mark.parametrize(("target", "letters", "letter"), TARGETS)
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
