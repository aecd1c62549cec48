"""list runs: list runs, newest first.

    assayline list runs [NAME] [--limit N] [--size] [--json]

No Prefect flow: it reads the folders of the runs, and accuracy and speed from the database.
"""

import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import plain_console, print_text
from assayline.report.document import Column
from assayline.words import nearest, show_bytes, show_share, show_value

if TYPE_CHECKING:
    from assayline.settings import Settings

EPILOG = """Commands accept a unique prefix of a RUN_ID, and `last` for the newest run.

An `interrupted` run was killed, and Ctrl-C leaves a `cancelled` one: rerun the command to resume it
(docs/concepts/resume.md). While another process holds the database, accuracy and tokens/s are left out.

Exit codes: 0 listed, 2 no run of this name, or an invalid setting."""
DATABASE_WAIT_S = 1.0
PARSER = make_parser("list runs", EPILOG)
PARSER.add_argument("name", nargs="?", metavar="NAME", help="spec name (default: all runs)")
PARSER.add_argument("--limit", type=int, default=20, metavar="N", help="maximum number of runs (default: 20)")
PARSER.add_argument("--size", action="store_true", help="print the size of each run's folder")
PARSER.add_argument("--json", action="store_true", help="print a JSON array")


def run(arguments: list[str]) -> int:
    """Print a line per run. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if known.limit < 1:
        PARSER.error(f"--limit {known.limit}: expected 1 or more")

    from assayline.settings import load_settings

    settings = load_settings()
    runs = list_runs(settings, known.name, known.limit)
    if known.size:
        from assayline.files import measure_folder

        for row in runs:
            row["size_bytes"] = measure_folder(settings.run_dir(row["run_id"]))
    if known.json:
        print(json.dumps(runs, indent=2))
        return 0
    if not runs:
        print(f"No runs in {settings.data_dir / 'runs'} yet.")
        return 0
    columns = [*COLUMNS, SIZE] if known.size else COLUMNS
    lines = [[column.header for column in columns], *([column.cell(run) for column in columns] for run in runs)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        print_text(line.rstrip(), plain_console())  # not folded, so that ids can be copied
    return 0


def list_runs(settings: "Settings", name: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest runs as plain values. Raises SpecError for a name that no run has."""
    from assayline.errors import SpecError, StoreError
    from assayline.store.database import connect, read_rows
    from assayline.store.locks import is_worked_on
    from assayline.store.manifest import list_manifests

    runs_dir = settings.data_dir / "runs"
    manifests = list_manifests(runs_dir)
    found = [manifest for manifest in manifests if name in (None, manifest.name)][:limit]
    if name is not None and manifests and not found:
        raise SpecError(
            f"No run with the name {name!r} in {runs_dir}. hint: "
            f"{nearest(name, sorted({manifest.name for manifest in manifests}))}"
        )
    ids = [manifest.run_id for manifest in found]
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
    return [
        {
            "run_id": run.run_id,
            "name": run.name,
            "model": run.model,
            "purpose": run.purpose,
            "state": "interrupted" if run.state == "running" and not is_worked_on(runs_dir / run.run_id) else run.state,
            "accuracy": figures.get(run.run_id, {}).get("accuracy"),
            "output_tokens_per_s": figures.get(run.run_id, {}).get("output_tokens_per_s"),
            "started_at": datetime.fromtimestamp(run.clock.started_wall_s, UTC).isoformat(timespec="seconds"),
        }
        for run in found
    ]


def _show_age(started_at: str) -> str:
    age_s = time.time() - datetime.fromisoformat(started_at).timestamp()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= size:
            return f"{age_s // size:.0f} {unit}"
    return f"{max(age_s, 0):.0f} s"


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
