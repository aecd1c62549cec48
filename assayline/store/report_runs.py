"""Which run a report is about, and which it is held against: by id, or by the name under which a baseline is pinned."""

import difflib

import duckdb

from assayline.errors import SpecError


def find_report_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> str:
    """A run of the database that has ended. Raises SpecError in a sentence."""
    states = dict(connection.execute("select run_id, state from runs order by started_at desc").fetchall())
    if run_id not in states:
        raise SpecError(f"There is no run {run_id!r} in the database ({_suggest(run_id, list(states))}).")
    if states[run_id] == "running":
        raise SpecError(
            f"Run {run_id} has not finished, and a report is of a run that has. If nobody works on it any more, "
            f"`python -m flows.evaluate --resume {run_id}` goes on with it."
        )
    return run_id


def find_baseline_run(connection: duckdb.DuckDBPyConnection, wanted: str, run_id: str) -> str:
    """The run that a baseline's name or a run's id means, other than the report's own. Raises SpecError."""
    pinned = dict(connection.execute("select baseline, run_id from baselines order by pinned_at").fetchall())
    states = dict(connection.execute("select run_id, state from runs order by started_at desc").fetchall())
    found = str(pinned.get(wanted, wanted))
    if found not in states:
        if wanted in pinned:
            raise SpecError(f"The baseline {wanted!r} is pinned to run {found}, which is not in the database.")
        raise SpecError(
            f"The baseline {wanted!r} is neither a pinned name ({', '.join(pinned) or 'none is pinned'}) nor a run of "
            f"the database ({_suggest(wanted, list(states))})."
        )
    if states[found] == "running":
        raise SpecError(f"The baseline {found} has not finished: give a run that has.")
    if found == run_id:
        raise SpecError(f"The baseline {wanted!r} is run {run_id} itself: give another run, or leave --baseline out.")
    return found


def _suggest(run_id: str, ids: list[str]) -> str:
    close = difflib.get_close_matches(run_id, ids, n=3, cutoff=0.6)
    if close:
        return f"nearest: {', '.join(close)}"
    return f"newest: {', '.join(ids[:3])}" if ids else "it has none yet"
