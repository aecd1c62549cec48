"""The scorer `math`: whether the last mathematical expression of an answer equals the target, by math-verify."""

import re
from unicodedata import normalize

import math_verify

from assayline.scorers import Score
from assayline.scorers.reading import cut_next_question

MIXED = re.compile(r"(?<![\d/.,])(\d+)\s+(\d+)/(\d+)(?![\d/])")
BOX = r"\boxed{"
FILLED_BOX = re.compile(r"\\boxed\{(?!\s*\})")
TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BARE = re.compile(r"(?:\\[A-Za-z]+|(?<![A-Za-z])[a-z](?![A-Za-z])|[^A-Za-z\\$\n])+")
"""An expression without words."""


def score_math(answer: str, target: str, row: dict[str, object]) -> Score:
    """Return 1 if the answer's expression equals the target's, by math-verify.

    Text after a new question does not count. Raises ValueError if the target has no expression.
    """
    target, answer = _plain(target), _mark_last(_plain(cut_next_question(answer)))
    is_marked = "$" in target or BOX in target
    expected = math_verify.parse(target if is_marked else f"${target}$") or math_verify.parse(target)
    if not expected:
        raise ValueError(f"the target {target!r:.100} has no mathematical expression")
    found = math_verify.parse(answer)
    if not found:
        return Score(0.0, None, "no mathematical expression")
    is_equal = math_verify.verify(expected, found)
    return Score(float(is_equal), str(found[-1]), "equal" if is_equal else "not equal")


def _plain(text: str) -> str:
    """Write amounts, mixed numbers and other scripts' digits as numbers: `\\$18.90`, `32,\\!348`, `2½`, `٤٢`."""
    plain = text.replace(r"\$", "").replace(r"\!", "").replace("{,}", ",")
    plain = re.sub(r"\d", lambda digit: str(int(digit[0])), plain)
    plain = re.sub("[¼-¾⅐-⅞]", lambda part: f" {normalize('NFKC', part[0])}".replace("⁄", "/"), plain)
    return MIXED.sub(lambda mixed: f"{int(mixed[1]) * int(mixed[3]) + int(mixed[2])}/{mixed[3]}", plain)


def _mark_last(answer: str) -> str:
    """Return the answer from its last box on, because an earlier one was withdrawn; else mark up its last tag or all
    of it, if that is an expression.
    """
    if boxes := [box.start() for box in FILLED_BOX.finditer(answer)]:
        return answer[boxes[-1] :]
    stated = (TAG.findall(answer) or [answer])[-1].strip(" \n*_`")
    return f"${stated}$" if BARE.fullmatch(stated) else stated
