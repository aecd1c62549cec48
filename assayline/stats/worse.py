"""The decision whether a candidate is worse than its baseline: one for gate, night, suite, benchmark and leaderboard.

A limit fails only if the data show a worsening beyond it, and passes only if they show that it is within it. p-values
are two-sided, so a worsening of exactly the limit fails in at most half of `level`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric of a run, or of the repeats of a configuration, against a baseline's."""

    metric: str
    detail: str | None = None
    """The scorer of an accuracy."""
    unit: str = "share"
    higher_is_better: bool = True
    value: float
    """Mean score over the pairs, or median over the repeats."""
    baseline_value: float
    counts: tuple[int, int]
    """Prompts of both sides, which are pairs, or repeats."""
    difference: float | None
    """Of scores, or of other metrics the change as a share of the baseline; None from a baseline of 0."""
    low: float | None = None
    """Lower end of its 95% interval; None without one."""
    high: float | None = None
    limit: float
    p_value: float | None = None
    """Two-sided p of no difference; None without a test."""
    p_beyond: float | None = None
    """That of a difference of exactly `limit` in the direction found, 1 if it is within it."""
    method: Literal["prompts", "repeats", "nights"]
    correlation: float | None = None
    """Of neighboring nights."""
    lost: float = 0.0
    """Share of prompts with a score in one run only, which count as lost for a pass."""
    pairs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The row of `measure_pairs` that it describes, and what else was counted; empty for other methods."""

    @property
    def worsening(self) -> float:
        """The difference, positive if worse."""
        return (self.difference or 0.0) * (-1 if self.higher_is_better else 1)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval of the worsening."""
        if self.low is None or self.high is None:
            return None
        return (-self.high, -self.low) if self.higher_is_better else (self.low, self.high)

    @property
    def p_worse(self) -> float | None:
        """The p of a worsening of exactly the limit."""
        return self.p_beyond if self.p_beyond is None or self.worsening > 0 else 1.0

    def judge(self, level: float = LEVEL) -> Verdict:
        """Judge the worsening against the limit."""
        return decide_worse(self.p_worse, self.ends and self.ends[1] + self.lost, self.limit, level)

    def name_change(self, level: float = LEVEL) -> Change:
        """Judge the change in either direction; a limit is not a share of a baseline of 0."""
        if self.method != "prompts" and not self.baseline_value and self.difference != 0:
            return "unclear"
        most = self.ends and max(-self.ends[0], self.ends[1])
        return name_change(self.worsening, self.p_beyond, most, self.limit, level)

    def is_worse(self, level: float = LEVEL) -> bool:
        """Return whether it is worse by more than chance, whatever the limit."""
        return self.worsening > 0 and self.p_value is not None and self.p_value <= level

    def say(self, verdict: Verdict, level: float = LEVEL) -> str:
        """Describe a verdict, and a difference by more than chance that is not beyond the limit."""
        if verdict == "fail" or self.p_value is None or self.p_value > level:
            return SHOWN[verdict]
        return f"{'worse' if self.worsening > 0 else 'better'} than the baseline by more than chance, {SHOWN[verdict]}"

    def as_row(self, verdict: str) -> dict[str, Any]:
        """Return the columns of the table `comparison`, without those of its runs."""
        names = ("metric", "detail", "value", "baseline_value", "difference", "low", "high", "p_value", "method")
        n = self.counts[0] if self.method == "prompts" else sum(self.counts)
        return {name: getattr(self, name) for name in names} | {"n": n, "verdict": verdict}
