"""The page of a suite: the decision, its reasons, and every evaluation with its limits."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from assayline.benchmark.campaign import Campaign
from assayline.benchmark.decision import Decision, JudgedCell
from assayline.benchmark.suite import shorten_model
from assayline.comparison.gate import Check
from assayline.report.compared import show_interval, tabulate_limits
from assayline.report.document import Column, Document, Figure, Part, Table, make_section, tabulate, warn
from assayline.stats.worse import OPEN, find_gravest
from assayline.words import count, name_metric, show_name, show_number, show_points, show_share

TIERS = ("critical", "supporting", "advisory")
EVALUATIONS = (
    Column("evaluation", "evaluation", show_name),
    Column("model", "model", show_name),
    Column("tier", "tier"),
    Column("verdict", "verdict"),
    Column("accuracy", "candidate", show_share),
    Column("baseline", "baseline", show_share),
    Column("difference", "difference", show_points),
    Column("95% interval", "interval", show_number, is_wide=True),
    Column("p at the limit", "p_value", show_number, is_wide=True),
    Column("failed", "failed", is_wide=True),
    Column("open", "open", is_wide=True),
)
RUNS = (
    Column("evaluation", "evaluation", show_name),
    Column("model", "model", show_name),
    Column("run", "run_id", show_name),
    Column("baseline", "against", show_name),
)


def list_evaluations(decision: Decision) -> list[dict[str, Any]]:
    """Return a row per evaluation and model, the critical ones first, then the weighted means."""
    judged = sorted(decision.judged, key=lambda one: TIERS.index(one.cell.tier))
    means = [
        {
            "evaluation": "weighted mean",
            "model": shorten_model(model),
            "tier": "supporting",
            **_show_checks([check], check),
        }
        for model, check in decision.weighted.items()
    ]
    return [*map(_row, judged), *means]


def tabulate_evaluations(rows: Sequence[dict[str, Any]]) -> Table:
    """Tabulate the rows of `list_evaluations`."""
    has_models = len({row["model"] for row in rows}) > 1
    return tabulate("Evaluations", [one for one in EVALUATIONS if has_models or one.header != "model"], rows)


def _row(one: JudgedCell) -> dict[str, Any]:
    checks = one.report.checks if one.report else []
    told = _show_checks(checks, one.accuracy)
    against = one.report.baseline if one.report else one.cell.baseline
    return {
        "evaluation": one.cell.task,
        "model": shorten_model(one.cell.variant),
        "tier": one.cell.tier,
        "run_id": one.run_id,
        "against": against,
        **told,
        **({} if one.report else {"verdict": "not judged", "candidate": one.mean_score, "obstacle": one.obstacle}),
    }


def _show_checks(checks: Sequence[Check], accuracy: Check | None) -> dict[str, Any]:
    found = {
        "verdict": find_gravest(check.verdict for check in checks) if checks else "",
        "failed": ", ".join(name_metric(check.check) for check in checks if check.verdict == "fail"),
        "open": ", ".join(name_metric(check.check) for check in checks if check.verdict in OPEN),
    }
    if accuracy is None or accuracy.compared is None or not accuracy.compared.ends:
        return {**found, "candidate": None, "baseline": None, "difference": None, "interval": "", "p_value": ""}
    return {
        **found,
        "candidate": accuracy.candidate,
        "baseline": accuracy.baseline,
        "difference": accuracy.compared.difference,
        "interval": show_interval(accuracy.compared),
        "p_value": "" if accuracy.p_value is None else f"{accuracy.p_value:.2g}",
    }


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return rows and sentences of a decision's page, for the suite's file."""
    limits: list[tuple[str, Any]] = [
        (
            f"{one.cell.label}, {one.cell.tier}",
            _list_rows(one.report.checks) if one.report else one.obstacle,
        )
        for one in decision.judged
    ]
    if decision.weighted:
        limits.append(("Supporting evaluations together", _list_rows(decision.weighted.values())))
    return {
        "headline": [decision.headline, decision.risk],
        "counted": [verdict for _, verdict in decision.counted],
        "evaluations": list_evaluations(decision),
        "limits": limits,
    }


def compose_suite(plan: Campaign) -> Document:
    """Build the page of a suite; until the decision is made, it has the runs alone."""
    subtitle, folder = f"suite {plan.campaign_id}", f"suites/{plan.campaign_id}"
    if not plan.page:
        rows = [
            {"evaluation": key.rpartition(" · ")[0], "model": key.rpartition(" · ")[2], "run_id": one, "against": None}
            for key, run_ids in plan.runs.items()
            for one in run_ids
        ]
        said = f"{count(len(rows), 'run has', 'runs have')} begun. The decision follows the last run."
        runs = make_section("runs", "Runs", tabulate("Runs", RUNS, rows))
        return Document.of(plan.name, subtitle, plan.decision or "undecided", [said], [], [runs], folder)
    shown, counted = plan.page["evaluations"], Counter(plan.page["counted"])
    evaluations = [row for row in shown if "run_id" in row]
    return Document.of(
        plan.name,
        subtitle,
        str(plan.decision),
        plan.page["headline"],
        [
            Figure("Decision", str(plan.decision), is_bad=counted["fail"] > 0),
            Figure("Limits kept", f"{counted['pass']:,} of {counted.total():,}", "that count"),
            Figure("Failed", f"{counted['fail']:,}"),
            Figure("Open", f"{sum(counted[verdict] for verdict in OPEN):,}"),
            Figure("Evaluations", f"{len(evaluations):,}", count(len({row["model"] for row in evaluations}), "model")),
        ],
        [
            make_section("evaluations", "Evaluations", tabulate_evaluations(shown), HOW),
            make_section("limits", "Limits", (_show_limits(*one) for one in plan.page["limits"])),
            make_section("runs", "Runs", tabulate("Runs and baselines", RUNS, evaluations)),
        ],
        folder,
    )


HOW = (
    "A critical evaluation counts with every limit. Supporting ones count by the weighted mean of their accuracy "
    "alone, and advisory ones not at all."
)


def _show_limits(name: str, found: Any) -> Part:
    if isinstance(found, str):
        return warn(f"{name}: not judged. {found}")
    return tabulate_limits(name, [Check(**row) for row in found], has_words=True)


def _list_rows(checks: Iterable[Check]) -> list[dict[str, Any]]:
    names = ("check", "verdict", "words", "candidate", "baseline", "limit", "unit")
    return [{name: getattr(check, name) for name in names} for check in checks]
