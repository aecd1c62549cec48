"""Pinned baselines: names for runs that later ones are held against, as rows of `baselines`.

A run can be made again from its folder, a pin cannot: so the pins are also kept in `baselines.json` in the data folder,
from which `restore_pins` brings back those that a new database does not have.
"""

import difflib
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from assayline.errors import ComparisonError, SpecError, StoreError
from assayline.files import MAKE_ROOM, write_json
from assayline.runs.manifest import match_run_id, unknown_run
from assayline.store.database import Connection, transaction

PINS_NAME = "baselines.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A row of `baselines`."""

    baseline: str
    run_id: str
    pinned_at: str
    """UTC wall clock, ISO format."""
    note: str | None = None


def pin_baseline(
    connection: Connection, data_dir: Path, name: str, run_id: str, note: str | None = None, force: bool = False
) -> str | None:
    """Pins a run under a name; returns the run that had the name before, if one had.

    Raises SpecError for an invalid name or a run that is not there, ComparisonError for one that is not completed,
    unless `force`, and StoreError.
    """
    if not NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} cannot be the name of a baseline. Expected up to 64 letters, digits, dots, dashes and "
            "underscores, a letter or digit first."
        )
    if _read_state(connection, name) is not None:
        raise SpecError(f"{name!r} is the id of a run, and would be ambiguous as the name of a baseline. Take another.")
    state = check_run(connection, run_id)
    if state != "completed" and not force:
        raise ComparisonError(
            f"Run {run_id} is {state}, not completed: its figures may be those of a part. Pin a completed run, or "
            "insist with --force."
        )
    restore_pins(connection, data_dir)
    before = {pin.baseline: pin.run_id for pin in list_pins(connection)}.get(name)
    pinned_at = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    with transaction(connection):
        connection.execute("delete from baselines where baseline = ?", [name])
        text = note and note.encode("utf-8", "replace").decode()  # a shell's words need not be UTF-8
        connection.execute("insert into baselines values (?, ?, ?, ?)", [name, run_id, pinned_at, text])
    _keep(connection, data_dir)
    return before


def unpin_baseline(connection: Connection, data_dir: Path, name: str) -> Pin:
    """Takes a name away; returns what it was. The run stays. Raises SpecError for an unknown one, and StoreError."""
    restore_pins(connection, data_dir)
    found = _find_pin(connection, name)
    if found is None:
        raise SpecError(f"There is no baseline {name!r}. {_list_names(connection, name)}")
    connection.execute("delete from baselines where baseline = ?", [name])
    _keep(connection, data_dir)
    return found


def list_pins(connection: Connection) -> list[Pin]:
    """All of them, by name."""
    rows = connection.execute("select baseline, run_id, pinned_at, note from baselines order by baseline").fetchall()
    return [Pin(name, run_id, pinned_at.isoformat(), note) for name, run_id, pinned_at, note in rows]


def resolve_baseline(connection: Connection, name: str) -> str:
    """The run that a name, the id of a run, the beginning of one or `last` stands for. Raises SpecError."""
    if found := _find_pin(connection, name):
        if _read_state(connection, found.run_id) is None:
            raise SpecError(
                f"Baseline {name!r} is run {found.run_id}, which the database does not have. If its folder is still "
                f"there, `assayline rebuild {found.run_id}` loads it; else pin another run."
            )
        return found.run_id
    if run_id := match_run_id(name, _list_run_ids(connection)):
        return run_id
    raise SpecError(
        f"There is no baseline {name!r}, nor a run with that id. {_list_names(connection, name)} "
        "`assayline baseline pin NAME RUN_ID` pins one."
    )


def check_run(connection: Connection, run_id: str) -> str:
    """The run's state. Raises SpecError, with the nearest ids or the newest, for a run that is not there."""
    state = _read_state(connection, run_id)
    if state is not None:
        return state
    raise unknown_run(run_id, _list_run_ids(connection), "the database")


def restore_pins(connection: Connection, data_dir: Path) -> list[Pin]:
    """Pins that the folder's file has and the database has not; they are in both then. Raises StoreError."""
    path = data_dir / PINS_NAME
    if not path.exists():
        return []
    try:
        kept = [Pin(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
        times = [datetime.fromisoformat(pin.pinned_at) for pin in kept]
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}. Put a copy in its place, or remove it and pin anew."
        ) from None
    known = {pin.baseline for pin in list_pins(connection)}
    lost = [(pin, pinned_at) for pin, pinned_at in zip(kept, times, strict=True) if pin.baseline not in known]
    for pin, pinned_at in lost:
        connection.execute("insert into baselines values (?, ?, ?, ?)", [pin.baseline, pin.run_id, pinned_at, pin.note])
    return [pin for pin, _ in lost]


def _find_pin(connection: Connection, name: str) -> Pin | None:
    return next((pin for pin in list_pins(connection) if pin.baseline == name), None)


def _list_run_ids(connection: Connection) -> list[str]:
    """The newest first."""
    return [found for (found,) in connection.execute("select run_id from runs order by started_at desc").fetchall()]


def _read_state(connection: Connection, run_id: str) -> str | None:
    rows = connection.execute("select state from runs where run_id = ?", [run_id]).fetchall()
    return str(rows[0][0]) if rows else None


def _list_names(connection: Connection, name: str) -> str:
    names = [pin.baseline for pin in list_pins(connection)]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Pinned: {', '.join(names) or 'none yet'}."


def _keep(connection: Connection, data_dir: Path) -> None:
    hint = f"{MAKE_ROOM} The database has the pins; give the same command again, so that they survive its loss, too."
    write_json(data_dir / PINS_NAME, [asdict(pin) for pin in list_pins(connection)], hint)
