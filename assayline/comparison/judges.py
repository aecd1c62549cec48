"""Audits of judges: measured from their verdicts, and stored for any reader."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from assayline.stats.judges import MEASURES, audit_judge
from assayline.store.database import Connection, Row, is_read_only, read_rows, transaction
from assayline.store.runs import insert_rows

ENDS = {"": "value", "_low": "low", "_high": "high"}
COUNTS = (
    "requests", "judged_requests", "unreadable_requests", "error_requests", "missing_requests", "labelled_requests",
    "unknown_labels",
)  # fmt: skip


def audit_judges(connection: Connection, run_ids: Sequence[str]) -> list[Row]:
    """Audit the judges of these runs and their panels; judges first, then panels. A reader stores nothing.

    Rows have judges (their runs), scorer, judged_run_id, other_run_id, the counts of requests, and the measures of
    `audit_judge` by name, each with the ends of its interval, such as kappa, kappa_low and kappa_high. None is
    undefined.
    """
    judges = read_rows(connection, _JUDGES, list(run_ids))
    votes = connection.execute("from count_votes(?::varchar[])", [list(run_ids)]).fetchnumpy()
    now = datetime.now(UTC).replace(tzinfo=None)
    audits, stores = [], not is_read_only(connection)
    with transaction(connection):
        for judge in judges:
            own = np.asarray(votes["judge_index"]) == judge.pop("judge_index")
            measures = audit_judge({name: np.asarray(column)[own] for name, column in votes.items()})
            counted = [{"measure": name, "value": judge[name]} for name in COUNTS]
            key = {name: value for name, value in judge.items() if name not in COUNTS}
            known = [key["judges"], key["scorer"]]
            if stores:
                connection.execute("delete from judge_audits where judges = ? and scorer = ?", known)
                rows = [{**key, **row, "audited_at": now} for row in [*counted, *measures]]
                insert_rows(connection, "judge_audits", rows)
            found = {f"{row['measure']}{end}": row[name] for row in measures for end, name in ENDS.items()}
            audits.append({**dict.fromkeys(f"{name}{end}" for name in MEASURES for end in ENDS), **judge, **found})
    return audits


_JUDGES = """
    select
        judge_index,
        list(distinct judge_run_id order by judge_run_id) as judges,
        any_value(scorer) as scorer,
        any_value(judged_run_id) as judged_run_id,
        any_value(other_run_id) as other_run_id,
        count(*) as requests,
        count(*) filter (status = 'judged') as judged_requests,
        count(*) filter (status = 'unreadable') as unreadable_requests,
        count(*) filter (status = 'error') as error_requests,
        count(*) filter (status = 'missing') as missing_requests,
        count(label_value) filter (status = 'judged') as labelled_requests,
        count(label) filter (status = 'judged' and label_value is null) as unknown_labels
    from list_judgements(?::varchar[])
    group by judge_index
    order by judge_index
"""
