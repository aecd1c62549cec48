"""The decision of a suite: GO, NO-GO or INCONCLUSIVE.

- A critical evaluation counts with every limit of its gate.
- Supporting evaluations count together: the mean of their differences in accuracy, weighted, against the mean of their
  limits, with the same weights.
- Advisory evaluations do not count.

GO: every limit that counts passes. Those on accuracy and speed pass only if the data show the model within them, so a
model that is at one of them gets GO in at most 2.5% of decisions, however many other limits there are (an
intersection-union test, Berger 1982, "Multiparameter hypothesis testing and acceptance sampling"). Shares of errors,
cut-off answers and drafts, and costs, are compared as observed: a model at one of those limits passes half of the time.

NO-GO: a limit that counts fails. All tests of the decision share its risk of a false alarm: each fails at p ≤ 0.1 /
tests (two-sided, so 0.05 / tests towards worse; at most 0.05), so models as good as their baselines get NO-GO in at
most 5% of decisions (Bonferroni's inequality). For a suite of every night, in 5% of periods of `NIGHTS` nights.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assayline.benchmark.campaign import Cell
from assayline.benchmark.suite import shorten_model
from assayline.comparison.gate import Check, GateReport, judge_comparison, mark_suspect, say_comparison
from assayline.comparison.queries import foresee_reach
from assayline.errors import AssaylineError, SpecError
from assayline.stats.pairs import average_scores
from assayline.stats.repeats import FEWEST, FEWEST_NIGHTS
from assayline.stats.worse import NIGHTS, Verdict, find_gravest, find_level
from assayline.words import count, show_share

Word = Literal["GO", "NO-GO", "SUSPECT", "INCONCLUSIVE"]
WORDS: dict[Verdict, Word] = {"pass": "GO", "fail": "NO-GO", "suspect": "SUSPECT", "inconclusive": "INCONCLUSIVE"}


class NoGoError(AssaylineError):
    """A suite is NO-GO, or SUSPECT. `result` is what is returned otherwise."""

    exit_code = 1

    def __init__(self, message: str, result: Any, verdict: Verdict) -> None:
        super().__init__(message)
        self.result, self.verdict = result, verdict


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """A cell with the verdict on its newest run."""

    cell: Cell
    run_id: str | None
    report: GateReport | None
    obstacle: str = ""
    """Why there is no report."""
    mean_score: float | None = None
    """The accuracy of the run, whether it is judged or not."""

    @property
    def accuracy(self) -> Check | None:
        """The limit on accuracy, if both runs have scores of enough prompts."""
        checks = self.report.checks if self.report else []
        return next(
            (one for one in checks if one.compared and one.compared.method == "prompts" and one.compared.ends), None
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a suite and what led to it."""

    judged: list[JudgedCell]
    """With the verdicts at the level of the decision."""
    weighted: dict[str, Check]
    """The limit on the weighted mean of the supporting evaluations, by model."""
    tests: int
    level: float
    """Largest two-sided p of a failure."""
    is_nightly: bool

    @property
    def verdict(self) -> Verdict:
        return find_gravest(verdict for _, verdict in self.counted)

    @property
    def word(self) -> Word:
        return WORDS[self.verdict]

    @property
    def counted(self) -> list[tuple[str, Verdict]]:
        """The limits that count, by name, with their verdicts."""
        found: list[tuple[str, Verdict]] = []
        for one in self.judged:
            if one.cell.tier == "critical":
                checks = one.report.checks if one.report else []
                found += [(f"{one.cell.label} ({check.check})", check.verdict) for check in checks]
                found += [] if one.report else [(one.cell.label, "inconclusive")]
        for model, check in self.weighted.items():
            found.append((f"supporting evaluations · {shorten_model(model)}", check.verdict))
        return found

    @property
    def headline(self) -> str:
        """The decision with its reasons: what fails, or else what is open."""
        named, waiting = (
            [name for name, verdict in self.counted if verdict == one] for one in (self.verdict, "waiting")
        )
        later = f" Not judged yet: {'; '.join(waiting)}." if waiting else ""
        if self.verdict == "pass":
            return f"GO: all {count(len(named), 'limit')} that count are shown to be kept.{later}"
        what = {"fail": "beyond the limit", "suspect": "one decision alone would fail"}.get(self.verdict, "open")
        return f"{self.word}: {what}: {'; '.join(named)}.{later}"

    @property
    def risk(self) -> str:
        """The risk of a false alarm, as text."""
        many = f"periods of {NIGHTS} nights" if self.is_nightly else "decisions"
        return (
            f"False NO-GO: at most 5% of {many} ({count(self.tests, 'test')}, each fails at p ≤ {self.level:.2g}). "
            "False GO, of a model at one of its limits on accuracy or speed: at most 2.5%. Shares and costs are "
            "compared as observed."
        )


def decide(judged: Sequence[JudgedCell], *, is_nightly: bool = False) -> Decision:
    """Decide by the gate reports of all cells. The number of tests depends on the specs alone, not on the results."""
    supporting: dict[str, list[JudgedCell]] = {}
    for one in judged:
        if one.cell.tier == "supporting":
            supporting.setdefault(one.cell.variant, []).append(one)
    tests, level = _share_risk([one.cell for one in judged], is_nightly)
    alone = _share_risk([one.cell for one in judged], is_nightly=False)[1]
    return Decision(
        [_at_level(one, level, alone) if one.cell.tier == "critical" else one for one in judged],
        {model: mark_suspect(judge_weighted(cells, level), alone) for model, cells in supporting.items()},
        tests,
        level,
        is_nightly,
    )


def _share_risk(cells: Sequence[Cell], is_nightly: bool) -> tuple[int, float]:
    """Return the number of tests of a decision, and the largest two-sided p of a failure."""
    models = {cell.variant for cell in cells if cell.tier == "supporting"}
    tests = sum(cell.tests for cell in cells if cell.tier == "critical") + len(models)
    return tests, find_level(NIGHTS if is_nightly else 1, max(1, tests), is_suite=True)


def foresee_reaches(cells: Sequence[Cell], prompts: Mapping[str | None, int]) -> list[str]:
    """Describe the reach of critical limits on accuracy before a run, given the prompts of pinned baselines."""
    _, level = _share_risk(cells, is_nightly=False)
    return [
        f"{cell.label}: {foresee_reach(prompts[cell.baseline], cell.spec.gate.max_accuracy_drop, level)}"
        for cell in cells
        if cell.tier == "critical" and cell.baseline in prompts
    ]


def check_repeats(cells: Sequence[Cell], *, is_nightly: bool = False) -> None:
    """Raise SpecError if limits on speed and cost cannot be judged for lack of repeats."""
    needed = FEWEST_NIGHTS if is_nightly else FEWEST
    few = [f"{cell.label} ({cell.repeats})" for cell in cells if cell.measures and cell.repeats < needed]
    if few:
        raise SpecError(
            f"Limits on speed or cost need {needed} repeats: {', '.join(few)}. hint: in the suite, set `repeats: "
            f"{needed}` for each, or set `overrides: {{gate.max_slowdown: {{}}, gate.max_cost_increase: {{}}}}` to "
            "leave speed and cost out."
        )


def _at_level(one: JudgedCell, level: float, alone: float) -> JudgedCell:
    """Leave failures open whose p is above the level, as suspect if one decision `alone` would fail."""
    if one.report is None:
        return one
    checks = [
        mark_suspect(
            dataclasses.replace(
                check,
                verdict="inconclusive",
                words=f"{check.words} The gate alone would fail; this decision needs p ≤ {level:.2g}.",
            ),
            alone,
        )
        if check.verdict in ("fail", "suspect") and check.p_value is not None and check.p_value > level
        else check
        for check in one.report.checks
    ]
    return dataclasses.replace(one, report=dataclasses.replace(one.report, checks=checks))


def judge_weighted(cells: Sequence[JudgedCell], level: float) -> Check:
    """Judge the weighted mean of the differences in accuracy."""
    name = "weighted accuracy"
    weights, checks = [one.cell.weight for one in cells], [one.accuracy for one in cells]
    parts = [check.compared for check in checks if check is not None and check.compared is not None]
    if len(parts) < len(cells):
        missing = ", ".join(one.cell.label for one in cells if one.accuracy is None)
        total = math.fsum(one.cell.weight * one.cell.spec.gate.max_accuracy_drop for one in cells)
        limit = total / math.fsum(weights)
        return Check(name, "inconclusive", f"No difference in accuracy of {missing}.", limit=limit)
    found = average_scores(parts, weights, name)
    lost = f"{show_share(found.lost)} of the prompts lack a score in one run and count as lost for a pass"
    said = say_comparison(found, "The weighted mean", count(len(cells), "evaluation"), more=lost if found.lost else "")
    return judge_comparison(found, name, said, level, "this decision")
