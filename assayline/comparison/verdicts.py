"""What gates said, as rows of `verdicts`, a ledger: the history shows those of a night beside it."""

import json
from datetime import UTC, datetime

from assayline.comparison.gate import GateReport
from assayline.store.database import Connection, transaction


def save_verdicts(connection: Connection, report: GateReport, flow_run_id: str | None = None) -> None:
    """Stores a gate's report beside earlier ones. `flow_run_id`: the flow run that the gate is part of, if it is."""
    judged_at = datetime.now(UTC).replace(tzinfo=None)
    rows = [
        [
            report.candidate,
            report.baseline,
            judged_at,
            ordinal,
            check.check,
            check.verdict,
            check.candidate,
            check.baseline,
            check.limit,
            check.unit,
            check.words,
            json.dumps(report.limits, sort_keys=True),
            flow_run_id,
        ]
        for ordinal, check in enumerate(report.checks)
    ]
    with transaction(connection):
        connection.executemany(f"insert into verdicts values ({', '.join('?' * 13)})", rows)  # noqa: S608 - marks alone
