"""list runs: list runs, newest first.

    assayline list runs [NAME] [--state STATE] [--model TEXT] [--tag TAG] [--text TEXT] [--since WHEN] [--limit N]

No Prefect flow: it reads the folders of the runs, and accuracy and speed from the database.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import name_run_state, parse_age, print_text
from assayline.report.document import Column
from assayline.words import nearest, show_bytes, show_share, show_value

if TYPE_CHECKING:
    from assayline.settings import Settings

EPILOG = """Commands accept a unique prefix of a RUN_ID, and `last` for the newest run.

An `interrupted` run was killed, and Ctrl-C leaves a `cancelled` one: rerun the command to resume it
(docs/concepts/resume.md). While another process holds the database, accuracy and tokens/s are left out.

Exit codes: 0 listed, 2 no run of this name, or an invalid setting."""
DATABASE_WAIT_S = 1.0
STATES = ("running", "completed", "failed", "cancelled", "interrupted", "imported")
PARSER = make_parser("list runs", EPILOG)
PARSER.add_argument("name", nargs="?", metavar="NAME", help="spec name (default: all runs)")
PARSER.add_argument("--state", choices=STATES, help="only runs in this state")
PARSER.add_argument("--model", metavar="TEXT", help="only runs with this in the name of their model")
PARSER.add_argument(
    "--tag", action="append", default=[], metavar="TAG", help="only runs with this tag; may be repeated"
)
PARSER.add_argument("--text", metavar="TEXT", help="only runs with this in id, name, model, prompt set, tags or note")
PARSER.add_argument("--since", metavar="WHEN", help="only runs that began since a date, 2026-03-01, or an age, 30d")
PARSER.add_argument("--limit", type=int, default=20, metavar="N", help="maximum number of runs (default: 20)")
PARSER.add_argument("--size", action="store_true", help="print the size of each run's folder")
PARSER.add_argument("--json", action="store_true", help="print a JSON array")


def run(arguments: list[str]) -> int:
    """Print a line per run. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if known.limit < 1:
        PARSER.error(f"--limit {known.limit}: expected 1 or more")

    try:
        age_s = parse_age(known.since or "")
        since = time.time() - age_s if age_s else datetime.fromisoformat(known.since or "1970-01-01").timestamp()
    except ValueError:
        PARSER.error(f"--since {known.since}: expected a date such as 2026-03-01, or an age such as 30d")

    from assayline.settings import load_settings

    settings = load_settings()

    def is_asked(run: dict[str, Any]) -> bool:
        words = [run[name] for name in ("run_id", "name", "model", "prompt_set", "purpose", "note")]
        return (
            known.state in (None, run["state"])
            and (known.model or "").lower() in run["model"].lower()
            and {*known.tag} <= {*run["tags"]}
            and (known.text or "").lower() in " ".join(filter(None, [*words, *run["tags"]])).lower()
            and datetime.fromisoformat(run["started_at"]).timestamp() >= since
        )

    runs = list_runs(settings, known.name, known.limit, is_asked)
    if known.size:
        from assayline.files import measure_folder

        for row in runs:
            row["size_bytes"] = measure_folder(settings.run_dir(row["run_id"]))
    if known.json:
        print(json.dumps(runs, indent=2))
        return 0
    if not runs:
        asked = known.state or known.model or known.tag or known.text or known.since
        print("No run matches." if asked else f"No runs in {settings.data_dir / 'runs'} yet.")
        return 0
    columns = [*COLUMNS, *([SIZE] if known.size else []), *([TAGS] if any(run["tags"] for run in runs) else [])]
    lines = [[column.header for column in columns], *([column.cell(run) for column in columns] for run in runs)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        print_text(line.rstrip())  # not folded, so that ids can be copied
    return 0


def list_runs(
    settings: "Settings", name: str | None, limit: int, is_asked: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the newest of the runs asked for as plain values. Raises SpecError for a name that no run has."""
    from assayline.errors import SpecError, StoreError
    from assayline.store.database import connect, read_rows
    from assayline.store.manifest import list_manifests

    runs_dir = settings.data_dir / "runs"
    manifests = list_manifests(runs_dir)
    named = [manifest for manifest in manifests if name in (None, manifest.name)]
    if name is not None and manifests and not named:
        raise SpecError(
            f"No run with the name {name!r} in {runs_dir}. hint: "
            f"{nearest(name, sorted({manifest.name for manifest in manifests}))}"
        )
    rows = (
        {
            "run_id": run.run_id,
            "name": run.name,
            "model": run.model,
            "prompt_set": run.prompt_set,
            "purpose": run.purpose,
            "state": name_run_state(run, runs_dir),
            "tags": run.tags,
            "note": run.note,
            "started_at": datetime.fromtimestamp(run.clock.started_wall_s, UTC).isoformat(timespec="seconds"),
        }
        for run in named
    )
    found = list(islice(filter(is_asked, rows), limit))
    ids = [run["run_id"] for run in found]
    query = """
        select
            run_id,
            max(value) filter (metric = 'accuracy') as accuracy,
            max(value) filter (metric = 'output_tokens_per_s') as output_tokens_per_s
        from run_metric
        where list_contains(?::varchar[], run_id)
        group by run_id
    """
    figures: dict[str, dict[str, Any]] = {}
    try:
        if settings.database_path.exists():
            with connect(settings.database_path, DATABASE_WAIT_S, read_only=True) as connection:
                figures = {row["run_id"]: row for row in read_rows(connection, query, ids)}
    except StoreError as error:
        print(f"warning: Accuracy and tokens/s are left out: {error}", file=sys.stderr)
    unknown = {"accuracy": None, "output_tokens_per_s": None}
    return [{**run, **figures.get(str(run["run_id"]), unknown)} for run in found]


def _show_age(started_at: str) -> str:
    age_s = time.time() - datetime.fromisoformat(started_at).timestamp()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= size:
            return f"{age_s // size:.0f} {unit}"
    return f"{max(age_s, 0):.0f} s"


TAGS = Column("tags", lambda run: " ".join(run["tags"]))
SIZE = Column("size", "size_bytes", show_bytes)
COLUMNS = (
    Column("id", "run_id"),
    Column("name", "name"),
    Column("model", lambda run: run["model"].rstrip("/").rsplit("/", 1)[-1]),
    Column("purpose", "purpose"),
    Column("state", "state"),
    Column("accuracy", "accuracy", show_share),
    Column("output tokens/s", "output_tokens_per_s", show_value),
    Column("age", lambda run: _show_age(run["started_at"])),
)
