"""rebuild: a run's rows in the database made anew from its folder, for when the database is lost, damaged or old.

    assayline rebuild RUN_ID... | --all [--into PATH] [--set-aside]

No Prefect flow, and on purpose without Prefect: repair must work when Prefect does not.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.errors import DatabaseUnusableError, SpecError, StoreError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

if TYPE_CHECKING:
    from assayline.evaluation.rebuild import Rebuilt
    from assayline.settings import Settings

EPILOG = """What a run is, is its folder data/runs/RUN_ID: run.json, spec.json and the part files. The database can
always be made again from it (docs/concepts/resume.md).

Exit codes: 0 all of it was loaded, 2 an unknown run or setting, 6 something could not be read or written."""


def run(arguments: list[str]) -> int:
    """Rebuilds what the command line names. Returns the exit code."""
    parser = make_parser("rebuild", EPILOG)
    parser.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="id of a run: its folder's name in data/runs")
    parser.add_argument("--all", action="store_true", help="every run of the data folder")
    parser.add_argument("--into", type=Path, metavar="PATH", help="another database file (default: the usual one)")
    parser.add_argument(
        "--set-aside",
        action="store_true",
        help="rename what is damaged or of another version, database or part, and load the rest; nothing is deleted",
    )
    known = parser.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        parser.error("give RUN_IDs, or --all")

    from assayline.settings import load_settings

    settings = load_settings()
    folders = _find_folders(settings, known.run_ids)
    database = known.into or settings.database_path
    code = _rebuild_all(folders, database, settings.database_wait_s, known.set_aside)
    _restore_baselines(settings, database)
    return code


def _find_folders(settings: "Settings", run_ids: list[str]) -> list[Path]:
    from assayline.runs.manifest import find_run

    runs_dir = settings.data_dir / "runs"
    if run_ids:
        return [find_run(runs_dir, complete_run_id(run_id, settings)) for run_id in run_ids]
    folders = sorted(path for path in runs_dir.glob("*") if path.is_dir())
    if not folders:
        raise SpecError(f"There are no runs in {runs_dir}. Set ASSAYLINE_DATA_DIR to the folder that has them.")
    return folders


def _rebuild_all(folders: list[Path], database: Path, wait_s: float, set_aside: bool) -> int:
    """One run after another; one that cannot be loaded does not keep the others from it."""
    from assayline.evaluation.rebuild import prepare_database, rebuild_run, set_database_aside

    if aside := prepare_database(database, wait_s, set_aside):
        _say_aside(database, aside)
    code = 0
    for folder in folders:
        try:
            print(describe_rebuilt(rebuild_run(folder, database, wait_s, set_aside)))
        except DatabaseUnusableError:
            if not set_aside or aside:
                raise
            _say_aside(database, set_database_aside(database))  # the damage showed only now: all over again
            return _rebuild_all(folders, database, wait_s, set_aside=True)
        except StoreError as error:
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code
    print(f"Database: {database}")
    return code


def _restore_baselines(settings: "Settings", database: Path) -> None:
    from assayline.comparison.baselines import restore_pins
    from assayline.store.database import connect

    with connect(database, settings.database_wait_s) as connection:
        for pin in restore_pins(connection, settings.data_dir):
            print(f"Baseline {pin.baseline} is pinned again: run {pin.run_id}.")


def describe_rebuilt(rebuilt: "Rebuilt") -> str:
    """What became of one run, in a line and one more for everything that was found."""
    run = rebuilt.manifest
    rows = ", ".join(f"{count} {table}" for table, count in rebuilt.rows.items()) or "nothing was prepared yet"
    lines = [f"Run {run.run_id}, {run.state}: {rows}"]
    lines += [f"  {aside} is damaged, and was renamed to this name." for aside in rebuilt.set_aside]
    lines += [f"  {part} was written anew: the database still had its rows." for part in rebuilt.rescued]
    if run.state != "completed" and not run.is_final:
        missing = f"{rebuilt.missing} requests have no answer. " if rebuilt.missing else ""
        lines.append(f"  {missing}`assayline evaluate --resume {run.run_id}` resumes it.")
    return "\n".join(lines)


def _say_aside(database: Path, aside: Path) -> None:
    print(f"{database} is unusable and was renamed to {aside.name}. Runs not named here: --all loads them too.")
