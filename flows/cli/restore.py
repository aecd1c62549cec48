"""restore: download a run's folder from the mirror, to resume or rebuild the run on this machine.

assayline restore [RUN_ID] [--dry-run]
"""

from pathlib import Path
from typing import TYPE_CHECKING

from assayline.errors import SpecError, StoreError
from assayline.flows.cli.mirror import need_mirror
from assayline.flows.cli.options import make_parser

if TYPE_CHECKING:
    from assayline.store.mirror import Mirror, Stored

EPILOG = """ASSAYLINE_MIRROR_URL sets the mirror (docs/concepts/resume.md). The command downloads missing files, and
files whose copy in the mirror is newer and of another size. It never replaces an existing part file.

Make sure that no other machine is still working on the run.

Exit codes: 0 restored, 2 an unknown run or invalid setting, 6 a file could not be read or written."""


def run(arguments: list[str]) -> int:
    """Restore the run that the command line names, or list the runs in the mirror. Return the exit code."""
    parser = make_parser("restore", EPILOG)
    parser.add_argument(
        "run_id", nargs="?", metavar="RUN_ID", help="run id, its unique beginning, or `last` (default: list the runs)"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the files that would be downloaded")
    known = parser.parse_args(arguments)

    from assayline.runs.manifest import match_run_id
    from assayline.settings import load_settings
    from assayline.words import nearest

    settings = load_settings()
    mirror = need_mirror(settings)
    run_ids = mirror.list_runs()
    runs_dir = settings.data_dir / "runs"
    if known.run_id is None:
        for run_id in run_ids:
            print(f"{run_id}{'' if (runs_dir / run_id).exists() else '  not on this machine'}")
        if not run_ids:
            print(f"No runs in {mirror.url}.")
        return 0
    found = match_run_id(known.run_id, run_ids)
    if found is None:
        raise SpecError(
            f"No run {known.run_id!r} in the mirror {mirror.url} ({nearest(known.run_id, run_ids)}). "
            "hint: list the runs with `assayline restore`."
        )
    _restore(mirror, runs_dir / found, known.dry_run)
    return 0


def _restore(mirror: "Mirror", run_dir: Path, is_dry: bool) -> None:
    from assayline.runs.locks import is_worked_on, lock_run, name_holder
    from assayline.runs.manifest import MANIFEST_NAME
    from assayline.store.mirror import RunCopy
    from assayline.words import count

    stored = mirror.list_files(run_dir.name)
    if MANIFEST_NAME not in stored and not (run_dir / MANIFEST_NAME).exists():
        raise StoreError(
            f"Run {run_dir.name} has no {MANIFEST_NAME} in the mirror: its machine was lost before the first "
            "files were copied. hint: evaluate the spec again."
        )
    wanted = [name for name, one in sorted(stored.items()) if _is_wanted(run_dir / name, one)]
    if is_dry:
        for name in wanted:
            print(f"{stored[name].size:>12,} {name}")
    else:
        lock = None if is_worked_on(run_dir) else lock_run(run_dir)
        if lock is None:
            raise StoreError(
                f"Run {run_dir.name} is in use by {name_holder(run_dir)}. hint: wait for its end, or stop it."
            )
        try:
            RunCopy(mirror, run_dir).fetch(wanted)
        finally:
            lock.release()
    size = sum(stored[name].size for name in wanted)
    print(
        f"Run {run_dir.name}: {'would download' if is_dry else 'downloaded'} {count(len(wanted), 'file')} "
        f"({size:,} bytes), {len(stored) - len(wanted)} already here"
    )
    if not is_dry:
        print(_name_next(run_dir))


def _is_wanted(path: Path, stored: "Stored") -> bool:
    """Return True if a file is missing here or the mirror has a newer version."""
    try:
        here = path.stat()
    except FileNotFoundError:
        return True
    is_part = path.suffix == ".parquet" and path.parent.parent.name == "parts"
    return not is_part and here.st_size != stored.size and here.st_mtime < stored.copied_s


def _name_next(run_dir: Path) -> str:
    from assayline.runs.manifest import read_manifest

    run = read_manifest(run_dir)
    if run.state == "completed" or run.is_final:
        return f"The run is {run.state}. hint: load it into the database with `assayline rebuild {run.run_id}`."
    return f"The run is unfinished. hint: resume it with `assayline evaluate --resume {run.run_id}`."
