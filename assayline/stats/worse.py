"""The decision whether a candidate is worse than its baseline: one for gate, night, suite, benchmark and leaderboard.

A limit fails only if the data show a worsening beyond it, and passes only if they show that it is within it. p-values
are two-sided, so a worsening of exactly the limit fails in at most half of `level`.
"""

from collections.abc import Iterable
from typing import Literal

Verdict = Literal["pass", "fail", "suspect", "inconclusive", "waiting"]
"""suspect: a nightly run that one comparison would fail, without the evidence that a night needs; waiting: a limit that
later nights will judge."""
Change = Literal["worse", "better", "same", "unclear", "too_few"]
LEVEL = 0.05
NIGHTS = 60
"""Length of the period in which a schedule of equal runs seldom has a failure."""
ROUNDING = 1e-12
"""Tolerance for rounding: a worsening of exactly the limit is within it."""
SHOWN: dict[Verdict, str] = {
    "fail": "worse than the baseline, shown beyond the limit",
    "pass": "shown within the limit",
    "inconclusive": "not shown beyond the limit, nor within it",
    "suspect": "not shown beyond the limit, nor within it",
}
OPEN: dict[Verdict, str] = {"suspect": "Suspect", "inconclusive": "Inconclusive", "waiting": "Not judged yet"}
"""Headings of the limits that neither fail nor pass."""


def find_level(nights: int = 1, tests: int = 1, *, is_suite: bool = False) -> float:
    """Return the largest two-sided p that is a failure, for one of `tests` that share a risk of false failures.

    That risk is 2.5% of comparisons, 5% of suites, and 5% of periods of that many `nights` of either. A leaderboard, a
    benchmark and limits on speed are families of tests instead: their p is adjusted.
    """
    return min(LEVEL, 2 * LEVEL / (nights * tests)) if is_suite or nights > 1 else LEVEL / tests


def find_gravest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several limits: the gravest. One that is waiting does not count."""
    found, grave = set(verdicts), ("fail", "suspect", "inconclusive")
    return next((verdict for verdict in grave if verdict in found), "pass")


def name_state(state: str, verdict: Verdict | None) -> str:
    """Return the state of a run as pages show it: that of its gate if it is worse or suspect."""
    return {"fail": "worse", "suspect": "suspect"}.get(verdict or "", state)


def decide_worse(p_beyond: float | None, most: float | None, limit: float, level: float = LEVEL) -> Verdict:
    """Judge a worsening against its limit.

    `p_beyond` is the p of a worsening of exactly the limit, and 1 if the estimate is within it; None without a test.
    `most` is the upper end of the 95% interval of the worsening; None without an interval.
    """
    if p_beyond is not None and p_beyond <= level:
        return "fail"
    return "pass" if most is not None and most <= limit + ROUNDING else "inconclusive"


def name_change(
    worsening: float, p_beyond: float | None, most: float | None, limit: float, level: float = LEVEL
) -> Change:
    """Judge a change in either direction: worse or better than the limit allows, the same, or unclear.

    `p_beyond` is that of a change of exactly the limit in the direction found, and `most` the larger end of its
    interval. too_few: without a test.
    """
    if p_beyond is None:
        return "too_few"
    verdict = decide_worse(p_beyond, most, limit, level)
    if verdict == "fail":
        return "worse" if worsening > 0 else "better"
    return "same" if verdict == "pass" else "unclear"


def say_worse(verdict: Verdict, worsening: float, p_value: float | None, level: float = LEVEL) -> str:
    """Describe a verdict, and a difference by more than chance that is not beyond the limit.

    `p_value` is that of no difference.
    """
    if verdict == "fail" or p_value is None or p_value > level:
        return SHOWN[verdict]
    return f"{'worse' if worsening > 0 else 'better'} than the baseline by more than chance, {SHOWN[verdict]}"
