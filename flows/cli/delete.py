"""delete: delete runs, benchmarks and suites: their folders, and their rows in the database.

    assayline delete ID... | --older-than AGE [--yes]

No Prefect flow: it deletes folders and rows.
"""

import time

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, parse_age, print_text

EPILOG = """ID is that of a run, of a benchmark or suite, which goes with all its runs, or `last`. A run goes with the
runs of its judges. Baselines are kept, as are runs whose answers another run reads and those that a process works on.

Without --yes nothing is deleted: the command prints what it would delete. This cannot be undone.

Exit codes: 0 deleted or printed, 2 an unknown ID, or one that is kept, 6 a folder or the database cannot be written."""
PARSER = make_parser("delete", EPILOG)
PARSER.add_argument("ids", nargs="*", metavar="ID", help="id of a run, the beginning of one, or of a campaign")
PARSER.add_argument("--older-than", metavar="AGE", help="all that began earlier: 90d (days), 12w (weeks), 48h (hours)")
PARSER.add_argument("--yes", action="store_true", help="delete them")


def run(arguments: list[str]) -> int:
    """Delete what the command line names, or print it. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if bool(known.ids) == bool(known.older_than):
        PARSER.error("pass IDs, or --older-than AGE")
    if (age_s := parse_age(known.older_than or "0h")) is None:
        PARSER.error(f"--older-than {known.older_than}: expected a number with h, d or w, such as 90d")

    from assayline.errors import SpecError
    from assayline.run.delete import delete, plan_deletions
    from assayline.settings import load_settings
    from assayline.words import count, show_bytes

    settings = load_settings()
    before_s = time.time() - age_s if known.older_than else None
    found = plan_deletions(settings, [complete_run_id(one, settings) for one in known.ids], before_s)
    kept = [one for one in found if one.obstacle]
    if known.ids and kept:
        raise SpecError(f"{kept[0].kind.capitalize()} {kept[0].name} is kept: {kept[0].obstacle}.")
    for one in kept:
        print_text(f"Kept: {one.kind} {one.name}; {one.obstacle}.")
    going = [one for one in found if not one.obstacle]
    for one in going:
        whole = f", {count(len(one.run_ids), 'run')}" if len(one.run_ids) != 1 or one.kind != "run" else ""
        print_text(f"{one.kind} {one.name}: {show_bytes(one.size_bytes)}{whole}")
    runs = len({run_id for one in going for run_id in one.run_ids})
    total = f"{count(runs, 'run')}, {show_bytes(sum(one.size_bytes for one in going))}"
    if not going:
        print_text("Nothing to delete.")
    elif known.yes:
        delete(settings, going)
        print_text(f"Deleted {total}.")
    else:
        print_text(f"Nothing is deleted yet. hint: --yes deletes {total}.")
    return 0
