"""db rebuild: recreate a run's rows in the database from its folder, after the database is lost, damaged or outdated.

    assayline db rebuild RUN_ID... | --all [--into PATH] [--set-aside]

It does not use Prefect, so that repair works when Prefect does not.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.errors import DatabaseUnusableError, SpecError, StoreError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

if TYPE_CHECKING:
    from assayline.run.rebuild import Rebuilt
    from assayline.settings import Settings

RUNS_AT_ONCE = 50
EPILOG = """A run's folder data/runs/RUN_ID holds run.json, spec.json and the part files. The database can always be
rebuilt from these folders (docs/concepts/resume.md).

Exit codes: 0 all runs loaded, 2 an unknown run or invalid setting, 6 a file could not be read or written."""
PARSER = make_parser("db rebuild", EPILOG)
PARSER.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="run id: the name of its folder in data/runs")
PARSER.add_argument("--all", action="store_true", help="rebuild all runs in the data folder")
PARSER.add_argument("--into", type=Path, metavar="PATH", help="database file (default: the configured one)")
PARSER.add_argument(
    "--set-aside",
    action="store_true",
    help="rename a damaged or incompatible database or part file and load the rest; nothing is deleted",
)


def run(arguments: list[str]) -> int:
    """Rebuild the runs that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        PARSER.error("pass RUN_IDs or --all, not both")

    from assayline.settings import load_settings

    settings = load_settings()
    folders = _find_folders(settings, known.run_ids)
    database = known.into or settings.database_path
    code = _rebuild_all(folders, database, settings.database_wait_s, known.set_aside)
    _complete(settings, database, [folder.name for folder in folders])
    return code


def _find_folders(settings: "Settings", run_ids: list[str]) -> list[Path]:
    from assayline.store.manifest import find_run

    runs_dir = settings.data_dir / "runs"
    if run_ids:
        return [find_run(runs_dir, complete_run_id(run_id, settings)) for run_id in run_ids]
    folders = sorted(path for path in runs_dir.glob("*") if path.is_dir())
    if not folders:
        raise SpecError(f"No runs in {runs_dir}. hint: set ASSAYLINE_DATA_DIR to the folder that has them.")
    return folders


def _rebuild_all(folders: list[Path], database: Path, wait_s: float, set_aside: bool) -> int:
    """Rebuild runs, many in a transaction. If one of them cannot be loaded, each half of them is tried alone."""
    from assayline.run.rebuild import rebuild_runs, set_database_aside

    code = 0
    waiting = [folders[start : start + RUNS_AT_ONCE] for start in range(0, len(folders), RUNS_AT_ONCE)]
    while waiting:
        some = waiting.pop(0)
        try:
            for rebuilt in rebuild_runs(some, database, wait_s, set_aside):
                print(describe_rebuilt(rebuilt))
        except DatabaseUnusableError:
            if not set_aside:
                raise
            aside = set_database_aside(database)
            print(f"{database} is unusable; renamed to {aside.name}. hint: load the other runs too with --all.")
            return _rebuild_all(folders, database, wait_s, set_aside)  # start over
        except StoreError as error:
            if middle := len(some) // 2:
                waiting[:0] = [some[:middle], some[middle:]]
                continue
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code
    print(f"Database: {database}")
    return code


def _complete(settings: "Settings", database: Path, run_ids: list[str]) -> None:
    """Restore baselines, and compute the metrics of many runs at once, which takes a fraction of the time."""
    from assayline.comparison.baselines import restore_pins
    from assayline.store.database import connect
    from assayline.store.metrics import ensure_metrics
    from assayline.store.runs import find_ghosts, mark_interrupted

    with connect(database, settings.database_wait_s) as connection:
        mark_interrupted(connection, settings.data_dir / "runs")
        restored, left = restore_pins(connection, settings.data_dir)
        ensure_metrics(connection, run_ids)
        ghosts = find_ghosts(connection, settings.data_dir / "runs")
    for pin in restored:
        print(f"Restored baseline {pin.baseline}: run {pin.run_id}.")
    for run_id in ghosts:
        print(f"Run {run_id} has rows and no folder. hint: `assayline delete {run_id} --yes` deletes the rows.")
    for pin in left:
        print(f"Not restored: baseline {pin.baseline} as run {pin.run_id}, because another run has that name now.")


def describe_rebuilt(rebuilt: "Rebuilt") -> str:
    """Return a line about a rebuilt run, followed by a line per finding."""
    run = rebuilt.manifest
    rows = ", ".join(f"{count} {table}" for table, count in rebuilt.rows.items()) or "no prompts prepared yet"
    lines = [f"Run {run.run_id}, {run.state}: {rows}"]
    lines += [f"  Renamed a damaged part file to {aside}." for aside in rebuilt.set_aside]
    lines += [f"  Rewrote {part} from its rows in the database." for part in rebuilt.rescued]
    if run.state != "completed" and not run.is_final:
        missing = f"{rebuilt.missing} requests have no answer. " if rebuilt.missing else ""
        lines.append(f"  {missing}hint: resume it with `assayline evaluate --resume {run.run_id}`.")
    return "\n".join(lines)
