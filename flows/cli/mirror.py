"""mirror: copy missing files of runs to the mirror, for example after the mirror was unreachable.

assayline mirror RUN_ID... | --all
"""

from typing import TYPE_CHECKING

from assayline.errors import StoreError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

if TYPE_CHECKING:
    from assayline.settings import Settings
    from assayline.store.mirror import Mirror

EPILOG = """ASSAYLINE_MIRROR_URL sets the mirror (docs/concepts/resume.md). A run is also copied while it is in
progress. `assayline restore` downloads it.

Exit codes: 0 all runs copied, 2 an unknown run or invalid setting, 6 a file could not be read or copied."""


def run(arguments: list[str]) -> int:
    """Copy the runs that the command line names. Return the exit code."""
    parser = make_parser("mirror", EPILOG)
    parser.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="run id")
    parser.add_argument("--all", action="store_true", help="copy all runs in the data folder")
    known = parser.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        parser.error("pass RUN_IDs or --all, not both")

    from assayline.runs.locks import is_worked_on, name_holder
    from assayline.runs.manifest import find_run, list_manifests
    from assayline.settings import load_settings
    from assayline.store.mirror import RunCopy
    from assayline.words import count

    settings = load_settings()
    mirror = need_mirror(settings)
    runs_dir = settings.data_dir / "runs"
    run_ids = [complete_run_id(run_id, settings) for run_id in known.run_ids]
    for run_id in run_ids or [one.run_id for one in list_manifests(runs_dir)]:
        run_dir = find_run(runs_dir, run_id)
        if is_worked_on(run_dir):
            if known.all:
                continue
            raise StoreError(
                f"Run {run_id} is in progress and copied by {name_holder(run_dir)}. hint: wait for its end."
            )
        copy = RunCopy(mirror, run_dir)
        left = len(copy.list_left())
        copy.update()
        print(f"{run_id}: copied {count(left, 'file')}", flush=True)
    return 0


def need_mirror(settings: "Settings") -> "Mirror":
    """Open the mirror. Raises SpecError if ASSAYLINE_MIRROR_URL is not set."""
    from assayline.errors import SpecError
    from assayline.store.mirror import open_mirror

    mirror = open_mirror(settings)
    if mirror is None:
        raise SpecError(
            "ASSAYLINE_MIRROR_URL is not set. hint: set it to the mirror's URL, such as s3://BUCKET/PREFIX."
        )
    return mirror
