"""gate: fail if a run is worse than its baseline beyond the limits of its spec.

    assayline gate RUN_ID [--baseline NAME|RUN_ID] [--max_accuracy_drop 0.02] [--dry-run] [--FIELD VALUE ...]

A limit that fails ends the flow run in the state Worse, with exit code 1. If none fails and one is inconclusive, the
state is Inconclusive, which is a completed state. A Prefect automation can send a notification
(docs/guides/nightly-runs.md).
"""

from typing import Any

from prefect import flow

from assayline.api import operations
from assayline.comparison.gate import GateReport
from assayline.flows.evaluate import open_front
from assayline.flows.live.reporting import end_judged


@flow(name="gate", flow_run_name="gate of {run_id}", persist_result=False)
def gate(
    run_id: str,
    baseline: str | None = None,
    limits: dict[str, Any] | None = None,
    *,
    is_remeasured: bool = False,
    is_nightly: bool = False,
) -> GateReport:
    """Fail if a run is worse than its baseline beyond its limits.

    Args:
        run_id: the run to judge, a unique prefix of its id, or `last`.
        baseline: name of a pinned baseline, or id of a run (default: gate.baseline of the run's spec).
        limits: fields that override the gate of the run's spec: {"max_accuracy_drop": 0.02}.
        is_remeasured: run both again, interleaved in one session, and judge the new runs.
        is_nightly: a schedule judges every night, so that chance has many opportunities: ask for more evidence.
    """
    report = operations.gate(
        run_id, baseline, limits, is_remeasured=is_remeasured, is_nightly=is_nightly, front=open_front()
    )
    return end_judged(report.sentence, report, report)
