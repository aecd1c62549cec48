"""Count in = count out: what `request_integrity` and `error_breakdown` say of a run, and how its load ended."""

from typing import NamedTuple

import duckdb


class Verdict(NamedTuple):
    """What is wrong with a run."""

    broken: dict[str, int]
    """The counts of `request_integrity` that should be 0 and are not."""
    errors: dict[str, int]
    """Error rows by kind, most first."""
    unsent: int
    """Requests that the end of the load left unsent."""
    sent: int
    """Results and errors of requests that reached an engine."""
    load_ends: dict[str, str]
    """Why the load ended before its requests did, by reason: what the worker said of it."""

    @property
    def error_rows(self) -> int:
        """All error rows."""
        return sum(self.errors.values())


def judge_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> Verdict:
    """Looks at a run whose parts are loaded."""
    broken = {name: count for name, count in read_integrity(connection, run_id).items() if count}
    rows = connection.execute(
        "select error_kind, sum(error_requests)::bigint as requests from error_breakdown where run_id = ? "
        "group by error_kind order by requests desc, error_kind",
        [run_id],
    ).fetchall()
    errors = {str(kind): int(count) for kind, count in rows}
    [(unsent, sent)] = connection.execute(
        "select count(*) filter (status = 'unsent'), "
        "count(*) filter (status in ('ok', 'error') and worker <> 'prepare') from stg_requests where run_id = ?",
        [run_id],
    ).fetchall()
    ends = connection.execute(
        "select details_json ->> '$.reason', message from engine_events where run_id = ? and event = 'load_ended' "
        "order by at_s",
        [run_id],
    ).fetchall()
    return Verdict(broken, errors, unsent, sent, {str(reason): str(message or "") for reason, message in ends})


def read_integrity(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, int]:
    """The run's counts of what must not be, by name; all 0 for a run that adds up."""
    found = connection.execute("select * exclude (run_id, is_sound) from request_integrity where run_id = ?", [run_id])
    names = [column[0] for column in found.description or ()]
    rows = found.fetchall()
    return dict(zip(names, rows[0], strict=True)) if rows else {"wrong_run_rows": 1}
