"""gate: fails when a run is worse than its baseline, beyond the limits of its spec.

    python -m flows.gate RUN_ID [--baseline NAME|RUN_ID] [--max_accuracy_drop 0.02] [--dry-run] [--FIELD VALUE ...]

A broken limit ends the flow run in the state Worse, of which an automation can notify people (docs/comparison.md), and
gives exit code 1.
"""

if __name__ == "__main__":  # before Prefect is imported, which --help need not wait for
    from flows.cli import run_module

    run_module("gate")

import dataclasses
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from assayline.comparison.gate import GateFailedError, GateReport, judge_run
from assayline.comparison.verdicts import save_verdicts
from assayline.settings import load_settings
from assayline.store.database import Connection
from assayline.store.thread import DatabaseThread
from flows.cli.tables import describe_gate
from flows.live.logs import speak_in_sentences
from flows.live.states import completed, worse
from tasks.publish import publish_gate


def name_gate() -> str:
    """The run's name in the UI."""
    return f"gate of {flow_run.parameters.get('run_id', 'a run')}"


@flow(name="gate", flow_run_name=name_gate, persist_result=False)
def gate(run_id: str, baseline: str | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fails when a run is worse than its baseline, beyond its limits.

    Args:
        run_id: the run to judge.
        baseline: name of a pinned baseline, or id of a run (default: gate.baseline of the run's spec).
        limits: fields of the spec's gate to lay over the run's own: {"max_accuracy_drop": 0.02}.
    """
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()

    flow_run_id = flow_run.parent_flow_run_id

    def judge(connection: Connection) -> GateReport:
        found = judge_run(connection, run_id, baseline, limits)
        save_verdicts(connection, found, flow_run_id)
        return found

    report = DatabaseThread(settings).run(judge)
    _publish(report)
    if report.broken:
        return worse(report.sentence, GateFailedError(report.sentence, report))
    return completed(report.sentence, dataclasses.asdict(report))


def _publish(report: GateReport) -> None:
    """What the page cannot show does not change the verdict."""
    for check in report.checks:
        get_run_logger().log(30 if check.verdict == "broken" else 20, "%s: %s", check.verdict, check.words)
    try:
        publish_gate(report.candidate, describe_gate(report))
    except Exception as error:
        get_run_logger().error("The run's page lacks the limits: %s: %s", type(error).__name__, error)
