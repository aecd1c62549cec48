"""What gates said, as rows of `verdicts`: the history shows them beside the nights that they are about."""

from datetime import UTC, datetime

from assayline.comparison.gate import GateReport
from assayline.store.database import Connection, transaction


def save_verdicts(connection: Connection, report: GateReport) -> None:
    """Stores a gate's report, in place of an earlier one of the same run against the same baseline."""
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
        ]
        for ordinal, check in enumerate(report.checks)
    ]
    with transaction(connection):
        connection.execute(
            "delete from verdicts where run_id = ? and baseline_run_id = ?", [report.candidate, report.baseline]
        )
        connection.executemany(f"insert into verdicts values ({', '.join('?' * 11)})", rows)  # noqa: S608 - marks alone
