"""The scorer `math`: whether the last mathematical expression of an answer equals the target, by math-verify."""

import math_verify


def score_math(answer: str, target: str | None, row: dict[str, object]) -> tuple[float, str | None, str] | None:
    """Return 1 if the answer's expression equals the target's, and what was found; None without a target.

    Raises ValueError if the target has no expression.
    """
    if target is None:
        return None
    is_marked = "$" in target or "\\boxed" in target
    expected = math_verify.parse(target if is_marked else f"${target}$") or math_verify.parse(target)
    if not expected:
        raise ValueError(f"the target {target!r:.100} has no mathematical expression")
    found = math_verify.parse(answer)
    if not found:
        return 0.0, None, "no mathematical expression"
    is_equal = math_verify.verify(expected, found)
    return float(is_equal), str(found[-1]), "equal" if is_equal else "not equal"
