"""Stages after the last answer of a run: judges, gate, report, pages. `Evaluation.finish` scores before.

A stage that is missing is what the same command adds: `find_unreported` finds such a run. Judges, and the runs of a
campaign, are done by the same loop, `do_runs`: a run that fails is recorded with its reason, and the others go on.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from assayline.comparison.gate import GateReport, judge_run
from assayline.comparison.queries import store_comparisons
from assayline.errors import AssaylineError, JudgeNotTrustedError, RunFailedError, SpecError
from assayline.report.board import compose_board, read_board
from assayline.report.document import Document, Paragraph, Section
from assayline.report.make import Written, make_report, open_database, write_report
from assayline.report.run.page import say_run
from assayline.run.evaluation import RunResult
from assayline.run.judging import check_trust, count_unjudged, plan_judge, read_verdicts
from assayline.run.rescore import Rescored, rescore_run
from assayline.run.watch import AnyLogger
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.judges import JudgeScorer
from assayline.store.database import Connection, transaction
from assayline.store.decisions import VERDICT, add_verdict, keep_decisions
from assayline.store.manifest import Purpose, read_manifest
from assayline.store.thread import DatabaseThread

Make = Callable[..., Written | None]
"""Makes a report, compared with the run or pinned name `baseline`; returns None if there is nothing to report."""
Complete = Callable[[EvalSpec], RunResult]
"""Completes a run of a spec, resumes it, or finds it complete."""


class Judge(NamedTuple):
    """A judge of a panel."""

    label: str
    scorer: JudgeScorer
    number: int
    """Its place in the panel."""

    @property
    def key(self) -> str:
        return self.label


def do_runs(left: Sequence[Any], total: int, log: AnyLogger, complete: Callable[[Any, str], object]) -> dict[str, str]:
    """Do the runs that are left of `total`, and return the reasons of failures by key.

    Further runs of a failed key are skipped. `complete` is called with each run and its name.
    """
    failed: dict[str, str] = {}
    for number, one in enumerate(left, total - len(left) + 1):
        if one.key in failed:
            continue
        log.info("Run %d of %d: %s", number, total, one.label)
        try:
            complete(one, f"{one.label} · {number} of {total}")
        except AssaylineError as error:  # for example a configuration that does not fit into memory
            failed[one.key] = f"{one.label}: {error}"
            log.error("%s failed; skipping its remaining runs: %s", one.label, error)
    return failed


def judge_answers(
    settings: Settings,
    log: AnyLogger,
    run_id: str,
    scorers: Sequence[JudgeScorer],
    complete: Complete,
    are_new: bool = False,
) -> list[Rescored]:
    """Complete the runs of judges over a run's answers and store their scores. `are_new`: add them to the run.

    A judge's completed run is not repeated, so each answer is judged once. With all other scores stored, raises
    RunFailedError if a judge fails, and JudgeNotTrustedError if one agrees with the labels less than it must.
    """
    name = read_manifest(settings.run_dir(run_id)).name
    judges = [Judge(f"{one.title}, judge {n + 1}", one, n) for one in scorers for n in range(len(one.spec))]
    asked: dict[str, list[str]] = {}

    def ask(judge: Judge, _: str) -> None:
        own: list[str] = []
        for attempt in range(judge.scorer.retries + 1):
            if attempt and not count_unjudged(settings, run_id, own):
                break
            spec = plan_judge(judge.scorer, judge.number, run_id, name, own, attempt)
            own.append(complete(spec).run_id)
        asked[judge.label] = own

    failed = do_runs(judges, len(judges), log, ask)
    found, doubts = [], []
    for scorer in scorers:
        panel = [judge.label for judge in judges if judge.scorer is scorer]
        if failed.keys() & panel:
            continue
        judge_run_ids = [judge_run_id for label in panel for judge_run_id in asked[label]]
        scores = {scorer.title: read_verdicts(settings, scorer, judge_run_ids)}
        if missing := count_unjudged(settings, run_id) - len(scores[scorer.title].scores):
            log.warning(
                "%s: %d answers have no score: the judge's verdict cannot be read, or is an error. They are not "
                "counted as wrong.",
                scorer.title,
                missing,
            )
        found.append(rescore_run(settings.run_dir(run_id), settings, [scorer], scores=scores, is_added=are_new))
        log.info(
            "%s: %d answers judged in %s", scorer.title, len(scores[scorer.title].scores), ", ".join(judge_run_ids)
        )
        if doubt := check_trust(settings, scorer, judge_run_ids):
            doubts.append(doubt)
    if failed:
        raise RunFailedError(
            f"Run {run_id} lacks scores of judges that did not complete. {' '.join([*failed.values(), *doubts])} "
            "hint: rerun the command to retry them."
        )
    if doubts:
        raise JudgeNotTrustedError(" ".join(doubts))
    return found


def gate_run(
    settings: Settings,
    log: AnyLogger,
    run_id: str,
    baseline: str | None,
    limits: dict[str, Any],
    flow_run_id: str | None = None,
    nights: int = 1,
) -> GateReport:
    """Judge a run, store the verdicts and log them. Raises SpecError and ComparisonError.

    `flow_run_id`: the flow run that evaluated the run and now judges it, as one of `nights`.
    """

    def judge_and_save(connection: Connection) -> GateReport:
        found = judge_run(connection, run_id, baseline, limits, nights)
        save_verdicts(connection, settings.data_dir, found, flow_run_id)
        return found

    report = DatabaseThread(settings).run(judge_and_save)
    for verdict, words in dict.fromkeys((check.verdict, check.words) for check in report.checks):
        log.log(logging.WARNING if verdict == "fail" else logging.INFO, "%s: %s", verdict, words)
    return report


def save_verdicts(connection: Connection, data_dir: Path, report: GateReport, flow_run_id: str | None = None) -> None:
    """Store a gate's report next to earlier ones, in the run's folder too. Raises StoreError.

    `flow_run_id` is the flow run of the gate, if any.
    """
    judged_at = datetime.now(UTC).replace(tzinfo=None)
    rows = [
        {
            "run_id": report.candidate,
            "baseline_run_id": report.baseline,
            "judged_at": judged_at,
            "ordinal": ordinal,
            "limit_on": check.check,
            "verdict": check.verdict,
            "candidate_value": check.candidate,
            "baseline_value": check.baseline,
            "limit_value": check.limit,
            "unit": check.unit,
            "words": check.words,
            "limits_json": json.dumps(report.limits, sort_keys=True),
            "flow_run_id": flow_run_id,
            "prompts_json": json.dumps(check.prompts) if check.prompts else None,
        }
        for ordinal, check in enumerate(report.checks)
    ]
    sides = {"run_id": report.candidate, "baseline_run_id": report.baseline}
    compared = [check.compared.as_row(check.verdict) | sides for check in report.checks if check.compared]
    store_comparisons(connection, "gate", compared)
    with transaction(connection):
        for row in rows:
            add_verdict(connection, row)
        keep_decisions(data_dir / "runs" / report.candidate, [{"decision": VERDICT, **row} for row in rows])


def say_page(document: Document, headline: str) -> str:
    """Return the summary of a judged run's page: that of the report if the run is worse, else the verdict."""
    return " ".join(document.headline[:2]) if document.state == "worse" else headline


def report_run(settings: Settings, log: AnyLogger, run_id: str, baseline: str | None = None) -> Written | None:
    """Write a run's report. None if that failed, or if no prompt was rendered, as the database then lacks the run."""

    def make(baseline: str | None) -> Written | None:
        is_stored = read_manifest(settings.run_dir(run_id)).template_id is not None
        return make_report(settings, run_id, baseline) if is_stored else None

    return try_report(log, "report", run_id, make, baseline)


def add_history(settings: Settings, log: AnyLogger, run_id: str, baseline: str | None, report: Written) -> Written:
    """Write the history of a run, and return the report with the history's sections after its comparison."""

    def make(baseline: str | None) -> Written:
        return make_report(settings, run_id, baseline, kind="history")

    history = try_report(log, "history", f"--history {run_id}", make, baseline)
    if history is None:
        return report
    sections = report.document.sections
    said = Section("history", "History", [Paragraph(one) for one in history.document.headline])
    document = replace(report.document, sections=[*sections[:2], said, *history.document.sections, *sections[2:]])
    return replace(report, document=document)


def write_leaderboard(settings: Settings, log: AnyLogger, prompt_set: str) -> Written | None:
    """Write the leaderboard of a prompt set; None for a single model."""

    def make(baseline: None) -> Written | None:
        rows = open_database(settings).run(lambda connection: read_board(connection, (prompt_set,)))
        return write_report(compose_board(rows), settings) if rows.pairs else None

    return try_report(log, "leaderboard", f"--leaderboard {prompt_set}", make)


def describe_result(result: RunResult, purpose: Purpose) -> str:
    """Return the headline of a run; that of a night ends with its verdict: `98.1% correct; within its limits`."""
    figures, report = say_run(result.metrics), result.gate
    if purpose.kind != "night":
        return figures
    if report is None:
        return f"{figures}; not judged{'' if purpose.baseline else ': no baseline'}"
    if any(check.verdict != "pass" for check in report.checks):
        return f"{figures}. {report.sentence}"
    return f"{figures}; within its limits against {report.baseline}"


def try_report(log: AnyLogger, what: str, command: str, make: Make, baseline: str | None = None) -> Written | None:
    """Make a report, without the baseline if that is missing. None on failure; the log names `command` to retry."""
    try:
        try:
            written = make(baseline=baseline)
        except SpecError as error:
            if baseline is None:
                raise
            log.warning("Writing the %s without its baseline: %s", what, error)
            written = make(baseline=None)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        log.warning("Failed to write the %s: %s hint: retry with `assayline report %s`.", what, why, command)
        return None
    if written is not None:
        log.info("%s: %s", what.capitalize(), written.html.absolute())
    return written
