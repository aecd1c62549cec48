"""Decisions about a run, which no database can compute again: verdicts of gates, labels, pins and unpins of baselines.

`decisions.jsonl` in the run's folder has a line for each, and lines are only added, so that a rebuilt database and a
copied folder have them, too. In the database they are rows of `verdicts`, `labels` and `baselines`.
"""

import getpass
import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from assayline.files import MAKE_ROOM, read_kept, write_text
from assayline.store.database import Connection, Row, read_rows, transaction
from assayline.store.manifest import MANIFEST_NAME
from assayline.store.runs import insert_row, insert_rows

DECISIONS_NAME = "decisions.jsonl"
VERDICT, LABEL, PIN, UNPIN = "verdict", "label", "pin", "unpin"


def name_user() -> str:
    """Return the name of the account that decides."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return str(os.getuid())


def keep_decisions(run_dir: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add decisions, as `read_decisions` returns them, to a run's folder. Without one, a run cannot be rebuilt either.

    The caller has the database open for writing, which admits one process at a time. Raises StoreError.
    """
    if not (run_dir / MANIFEST_NAME).exists():
        return
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in [*read_decisions(run_dir), *rows]]
    write_text(run_dir / DECISIONS_NAME, "".join(f"{line}\n" for line in lines), MAKE_ROOM)


def read_decisions(run_dir: Path) -> list[Row]:
    """Read a run's decisions in their order: the columns of their table, and `decision`. Raises StoreError."""

    def parse(text: str) -> list[Row]:
        rows = [json.loads(line) for line in text.split("\n") if line]  # a text may hold other line breaks
        return [{"decision": str(row["decision"]), **row} for row in rows]

    hint = "remove the damaged line."
    return read_kept(run_dir / DECISIONS_NAME, parse, [], "the verdicts and pins of the run", hint)


def read_pins(run_dir: Path) -> dict[str, Row]:
    """Return the run's last pin or unpin of each baseline name. Raises StoreError."""
    return {row["baseline"]: row for row in read_decisions(run_dir) if row["decision"] in (PIN, UNPIN)}


def settle_pins(connection: Connection, runs_dir: Path) -> None:
    """Complete pins and unpins that a killed command left in one of database and folder. Raises StoreError.

    A pin is in the database first, and an unpin in the folder.
    """
    for pin in read_rows(connection, "select * from baselines"):
        kept = read_pins(runs_dir / pin["run_id"]).get(pin["baseline"])
        if kept and kept["decision"] == UNPIN and kept.get("unpinned_at", "") > str(pin["pinned_at"]):
            connection.execute("delete from baselines where baseline = ?", [pin["baseline"]])
        elif not kept or kept["decision"] == UNPIN or kept["pinned_at"] != str(pin["pinned_at"]):
            keep_decisions(runs_dir / pin["run_id"], [{"decision": PIN, **pin}])


def add_verdict(connection: Connection, row: Mapping[str, Any]) -> None:
    """Insert a row of `verdicts`, unless it is there."""
    key = ("run_id", "baseline_run_id", "judged_at", "ordinal")
    same = " and ".join(f"{name} = ?" for name in key)
    query = f"select 1 from verdicts where {same}"  # noqa: S608 - names are ours
    if not connection.execute(query, [row[name] for name in key]).fetchall():
        insert_row(connection, "verdicts", dict(row))


def add_label(connection: Connection, run_dir: Path, row: Mapping[str, Any]) -> None:
    """Insert a row of `labels`, and forget the audits of the run's judges. Raises StoreError."""
    with transaction(connection):
        insert_row(connection, "labels", dict(row))
        connection.execute("delete from judge_audits where judged_run_id = ?", [row["run_id"]])
        keep_decisions(run_dir, [{"decision": LABEL, **row}])


def restore_decisions(connection: Connection, run_dir: Path) -> None:
    """Insert the verdicts and labels in the run's folder that the database lacks. Raises StoreError."""
    rows = read_decisions(run_dir)
    for row in rows:
        if row["decision"] == VERDICT:
            verdict = {name: value for name, value in row.items() if name != "decision"}
            add_verdict(connection, {**verdict, "judged_at": datetime.fromisoformat(row["judged_at"])})
    labels = [
        {name: value for name, value in row.items() if name != "decision"} for row in rows if row["decision"] == LABEL
    ]
    if labels:
        connection.execute("delete from labels where run_id = ?", [run_dir.name])
        insert_rows(connection, "labels", labels)
