"""The decision whether a candidate is worse than its baseline: one for gate, night, suite, benchmark and leaderboard.

A limit fails only if the data show a worsening beyond it, and passes only if they show that it is within it. p-values
are two-sided, so a worsening of exactly the limit fails in at most half of `level`.
"""

from typing import Literal

Verdict = Literal["pass", "fail", "inconclusive"]
ROUNDING = 1e-12
"""Tolerance for rounding: a worsening of exactly the limit is within it."""
NOT_SHOWN = "worse than the baseline by more than chance, not shown beyond the limit"


def decide_worse(p_beyond: float | None, most: float | None, limit: float, level: float = 0.05) -> Verdict:
    """Judge a worsening against its limit.

    `p_beyond` is the p of a worsening of exactly the limit, and 1 if the estimate is within it; None without a test.
    `most` is the upper end of the 95% interval of the worsening; None without an interval.
    """
    if p_beyond is not None and p_beyond <= level:
        return "fail"
    return "pass" if most is not None and most <= limit + ROUNDING else "inconclusive"
