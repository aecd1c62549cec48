"""The scorer math reads expressions as math-verify does."""

import pytest

from assayline.scorers.math import score_math
from assayline.scorers.process import ScorerInput, score_answers
from assayline.spec.criteria import MathScorer


@pytest.mark.parametrize(
    ("answer", "target", "value"),
    [
        (r"The answer is $\frac{1}{2}$.", "0.5", 1.0), (r"so \boxed{42}", "42", 1.0),
        (r"$\sqrt{8}$", r"2\sqrt{2}", 1.0), ("It is 1,234", "1,234", 1.0), (r"$x\in[1,2]$", "[1,2]", 1.0),
        (r"\boxed{41}", "42", 0.0), (r"So \boxed{\$18.90}.", r"\$18.90", 1.0),
        (r"So \boxed{18.90}.", r"\$18.90", 1.0), (r"\boxed{32{,}348}", r"\$32,\!348", 1.0),
        (r"I first thought \boxed{5}. But \boxed{7} is right.", "7", 1.0), ("2 2/3", "2", 0.0),
        ("2 2/3", r"\frac{8}{3}", 1.0), (r"\boxed{2\frac{2}{3}}", r"\frac{8}{3}", 1.0), ("I do not know.", "42", 0.0),
        (r"\sqrt{8}", r"2\sqrt{2}", 1.0), ("**(3, 4)**", "(3,4)", 1.0), ("3x + 2", "2 + 3x", 1.0),
        ("<answer>12</answer> and not 13", "12", 1.0), ("<answer>It is $7$.</answer>", "7", 1.0),
        ("الجواب ٤٢", "42", 1.0), ("1½", "1.5", 1.0), ("#### 30\nThe answer is \\boxed{}.", "30", 1.0),
        (r"\boxed{ }", "30", 0.0), ("(B) 5", "5", 1.0), ("...", "5", 0.0),
    ],
)  # fmt: skip
def test_expressions_are_compared_by_value(answer, target, value):
    score = score_math(answer, target, {})
    assert score is not None and score[0] == value


@pytest.mark.slow
def test_math_runs_in_its_own_process():
    answers = [ScorerInput(r"\boxed{3}", "3", {}), ScorerInput("4", "3", {}), ScorerInput("4", "", {})]
    found = list(score_answers(MathScorer(kind="math"), answers))
    assert [score and (score.value, score.failure) for score in found][:2] == [(1.0, None), (0.0, None)]
    assert found[2] is not None and "has no mathematical expression" in str(found[2].failure)
