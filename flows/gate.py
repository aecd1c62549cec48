"""gate: fail if a run is worse than its baseline beyond the limits of its spec.

    assayline gate RUN_ID [--baseline NAME|RUN_ID] [--max_accuracy_drop 0.02] [--dry-run] [--FIELD VALUE ...]

A limit that fails ends the flow run in the state Worse, with exit code 1. If none fails and one is inconclusive, the
state is Inconclusive, which is a completed state. A Prefect automation can send a notification
(docs/guides/nightly-runs.md).
"""

import dataclasses
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from assayline.comparison.gate import GateFailedError, GateReport, judge_run, save_verdicts
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import completed, publish_gate, worse
from assayline.runs.manifest import list_run_ids, match_run_id
from assayline.settings import Settings, load_settings
from assayline.store.database import Connection
from assayline.store.thread import DatabaseThread


def name_gate() -> str:
    """Return the flow run's name for the UI."""
    return f"gate of {flow_run.parameters.get('run_id', 'a run')}"


@flow(name="gate", flow_run_name=name_gate, persist_result=False)
def gate(run_id: str, baseline: str | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fail if a run is worse than its baseline beyond its limits.

    Args:
        run_id: the run to judge, a unique prefix of its id, or `last`.
        baseline: name of a pinned baseline, or id of a run (default: gate.baseline of the run's spec).
        limits: fields that override the gate of the run's spec: {"max_accuracy_drop": 0.02}.
    """
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    run_id = match_run_id(run_id, list_run_ids(settings.data_dir / "runs")) or run_id
    report = judge(settings, run_id, baseline, limits or {})
    publish_gate(settings, run_id, report.baseline, report.sentence)
    if report.failed:
        return worse(report.sentence, GateFailedError(report.sentence, report))
    return completed(report.sentence, dataclasses.asdict(report), report.verdict)


def judge(
    settings: Settings,
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
        get_run_logger().log(30 if verdict == "fail" else 20, "%s: %s", verdict, words)
    return report
