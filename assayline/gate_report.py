"""What a gate found: every limit, whether it holds, and the figures in a sentence."""

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["held", "broken", "not judged"]


@dataclass(frozen=True, slots=True)
class Check:
    """One limit, and what became of it."""

    check: str
    verdict: Verdict
    words: str
    """What was found, in a sentence with its figures."""
    candidate: float | None = None
    baseline: float | None = None
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class GateReport:
    """A run held against a baseline."""

    candidate: str
    baseline: str
    checks: list[Check] = field(default_factory=list)

    @property
    def broken(self) -> list[Check]:
        """The limits that do not hold."""
        return [check for check in self.checks if check.verdict == "broken"]

    @property
    def sentence(self) -> str:
        """How it ended, with the figures of every limit that is broken."""
        if not self.broken:
            left = sum(check.verdict == "not judged" for check in self.checks)
            rest = f" {left} could not be judged." if left else ""
            return f"Run {self.candidate} is within its limits against {self.baseline}.{rest}"
        told = " ".join(check.words for check in self.broken)
        return f"Run {self.candidate} is worse than {self.baseline} beyond its limits. {told}"
