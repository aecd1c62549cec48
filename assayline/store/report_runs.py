"""Which run a report is about, and which it is held against: runs that have ended, and not the same one twice."""

import duckdb

from assayline.errors import SpecError
from assayline.store.baselines import check_run, resolve_baseline


def check_report_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Raises SpecError for a run that is not in the database, or has not ended."""
    if check_run(connection, run_id) == "running":
        raise SpecError(
            f"Run {run_id} has not finished, and a report is of a run that has. If nobody works on it any more, "
            f"`python -m flows.evaluate --resume {run_id}` goes on with it."
        )


def find_baseline_run(connection: duckdb.DuckDBPyConnection, name: str, run_id: str) -> str:
    """The run that a pinned name or a run's id means, other than the report's own. Raises SpecError."""
    found = resolve_baseline(connection, name)
    if found == run_id:
        raise SpecError(f"The baseline {name!r} is run {run_id} itself. Give another run, or leave --baseline out.")
    if check_run(connection, found) == "running":
        raise SpecError(f"The baseline {name!r} is run {found}, which has not finished. Give a run that has.")
    return found
