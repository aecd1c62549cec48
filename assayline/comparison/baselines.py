"""Pinned baselines: names for runs to compare later runs with, as rows of `baselines`.

The folder of a pinned run keeps its pins, from which `restore_pins` restores them in a new database.
"""

import difflib
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from assayline.errors import ComparisonError, SpecError
from assayline.store.database import Connection, Row, read_rows, transaction
from assayline.store.decisions import DECISIONS_NAME, PIN, UNPIN, keep_decisions, name_user, read_decisions, read_pins
from assayline.store.manifest import ENDED_WELL, match_run_id, unknown_run
from assayline.store.runs import insert_row

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A row of `baselines`."""

    baseline: str
    run_id: str
    pinned_at: str
    """UTC time in ISO format."""
    note: str | None = None
    pinned_by: str | None = None


def pin_baseline(
    connection: Connection, data_dir: Path, name: str, run_id: str, note: str | None = None, force: bool = False
) -> str | None:
    """Pin a run under a name; return the run that had the name before, if any.

    Raises SpecError for an invalid name or an unknown run, ComparisonError for a run that is not completed unless
    `force`, and StoreError.
    """
    if not NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a valid baseline name. hint: use up to 64 letters, digits, dots, dashes and underscores, "
            "starting with a letter or digit."
        )
    if _read_state(connection, name) is not None:
        raise SpecError(f"{name!r} is the id of a run, which would be ambiguous. hint: choose another baseline name.")
    state = check_run(connection, run_id)
    if state not in ENDED_WELL and not force:
        raise ComparisonError(
            f"Run {run_id} is {state}, not completed, so its metrics may be incomplete. hint: pin a completed run, or "
            "pass --force."
        )
    before = {pin.baseline: pin.run_id for pin in list_pins(connection)}.get(name)
    pinned_at = datetime.now(UTC).replace(tzinfo=None)
    text = note and note.encode("utf-8", "replace").decode()  # arguments of a shell need not be UTF-8
    row = {"baseline": name, "run_id": run_id, "pinned_at": pinned_at, "note": text, "pinned_by": name_user()}
    with transaction(connection):
        connection.execute("delete from baselines where baseline = ?", [name])
        insert_row(connection, "baselines", row)
    keep_decisions(data_dir / "runs" / run_id, [{"decision": PIN, **row}])
    return before


def unpin_baseline(connection: Connection, data_dir: Path, name: str) -> Pin:
    """Remove a pin and return it; the run stays. Raises SpecError for an unknown name, and StoreError."""
    found = _find_pin(connection, name)
    if found is None:
        raise SpecError(f"There is no baseline {name!r}. hint: {_list_names(connection, name)}")
    unpinned_at = datetime.now(UTC).replace(tzinfo=None)
    unpin = {"decision": UNPIN, "baseline": name, "unpinned_at": unpinned_at, "unpinned_by": name_user()}
    keep_decisions(data_dir / "runs" / found.run_id, [unpin])
    connection.execute("delete from baselines where baseline = ?", [name])
    return found


def list_pins(connection: Connection) -> list[Pin]:
    """List all pins by name."""
    rows = read_rows(connection, "select * from baselines order by baseline")
    return [Pin(**{**row, "pinned_at": row["pinned_at"].isoformat()}) for row in rows]


def list_past_pins(runs_dir: Path, name: str) -> list[Row]:
    """List all pins and unpins of a name that runs' folders have, newest first. Raises StoreError."""
    folders = [path.parent for path in runs_dir.glob(f"*/{DECISIONS_NAME}")]
    rows = [{**row, "run_id": folder.name} for folder in folders for row in read_decisions(folder)]
    past = [row for row in rows if row["decision"] in (PIN, UNPIN) and row["baseline"] == name]
    return sorted(past, key=lambda row: row[f"{row['decision']}ned_at"], reverse=True)


def resolve_baseline(connection: Connection, name: str) -> str:
    """Resolve a baseline name, a run id, the start of one, or `last` to a run id. Raises SpecError."""
    if found := _find_pin(connection, name):
        if _read_state(connection, found.run_id) is None:
            raise SpecError(
                f"Baseline {name!r} is run {found.run_id}, which is not in the database. hint: if its folder still "
                f"exists, run `assayline db rebuild {found.run_id}`; otherwise pin another run."
            )
        return found.run_id
    if run_id := match_run_id(name, _list_run_ids(connection)):
        return run_id
    raise SpecError(
        f"There is no baseline {name!r}, nor a run with that id. hint: {_list_names(connection, name)} To pin a run, "
        "use `assayline baseline pin NAME RUN_ID`."
    )


def check_run(connection: Connection, run_id: str) -> str:
    """Return the run's state. Raises SpecError with the nearest or newest ids for an unknown run."""
    state = _read_state(connection, run_id)
    if state is not None:
        return state
    raise unknown_run(run_id, _list_run_ids(connection), "the database")


def restore_pins(connection: Connection, data_dir: Path) -> tuple[list[Pin], list[Pin]]:
    """Restore the pins of runs in the database whose names are free, the newest one of each name, if no unpin is newer.

    Return the restored pins, and those whose name another run keeps. Raises StoreError.
    """
    kept = [(one, row) for one in _list_run_ids(connection) for row in read_pins(data_dir / "runs" / one).values()]
    ends: dict[str, str] = {}
    for _, row in kept:
        ends[row["baseline"]] = max(ends.get(row["baseline"], ""), row.get("unpinned_at", ""))
    pins = [
        Pin(row["baseline"], run_id, row["pinned_at"], row["note"], row.get("pinned_by"))
        for run_id, row in kept
        if row["decision"] == PIN and row["pinned_at"] > ends[row["baseline"]]
    ]
    names = {pin.baseline: pin.run_id for pin in list_pins(connection)}
    restored, left = [], []
    for pin in sorted(pins, key=lambda pin: datetime.fromisoformat(pin.pinned_at), reverse=True):
        if names.setdefault(pin.baseline, pin.run_id) != pin.run_id:
            left.append(pin)
        elif _find_pin(connection, pin.baseline) is None:
            insert_row(connection, "baselines", {**asdict(pin), "pinned_at": datetime.fromisoformat(pin.pinned_at)})
            restored.append(pin)
    return restored, left


def _find_pin(connection: Connection, name: str) -> Pin | None:
    return next((pin for pin in list_pins(connection) if pin.baseline == name), None)


def _list_run_ids(connection: Connection) -> list[str]:
    """List the ids of all runs, newest first."""
    return [found for (found,) in connection.execute("select run_id from runs order by started_at desc").fetchall()]


def _read_state(connection: Connection, run_id: str) -> str | None:
    rows = connection.execute("select state from runs where run_id = ?", [run_id]).fetchall()
    return str(rows[0][0]) if rows else None


def _list_names(connection: Connection, name: str) -> str:
    names = [pin.baseline for pin in list_pins(connection)]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"pinned baselines: {', '.join(names) or 'none yet'}."
