"""tag: add tags and a note to a run, or remove them.

    assayline tag RUN_ID [+TAG ...] [-TAG ...] [--note TEXT]

No Prefect flow: it changes run.json in the run's folder, and the run's row in the database.
"""

import re

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, print_text

EPILOG = """+TAG adds a tag, and -TAG removes one. Without any, the command prints them. `assayline list runs --tag TAG`
lists runs of a tag, the viewer filters by it, and run.tags has it in SQL. A copy of the run's folder keeps them.

Exit codes: 0 changed or printed, 2 an unknown run or an invalid tag, 6 a run in progress, or one that cannot be
written."""
PARSER = make_parser("tag", EPILOG, "%(prog)s RUN_ID [+TAG ...] [-TAG ...] [--note TEXT]")
PARSER.add_argument("run_id", metavar="RUN_ID", help="run id, as listed by `assayline list runs`")
PARSER.add_argument("--note", metavar="TEXT", help="note that replaces the run's; '' removes it")


def run(arguments: list[str]) -> int:
    """Tag the run, and print its tags and its note. Return the exit code."""
    # Not by argparse, which would take -hot as -h.
    words = [one for one in arguments if re.match(r"\+.|-[^-]", one) and one != "-h"]
    known = PARSER.parse_args([one for one in arguments if one not in words])

    from assayline.run.tag import tag_run
    from assayline.settings import load_settings
    from assayline.store.manifest import find_run, read_manifest

    settings = load_settings()
    run_id = complete_run_id(known.run_id, settings)
    add, drop = ([word[1:] for word in words if word[0] == sign] for sign in "+-")
    if words or known.note is not None:
        found = tag_run(settings, run_id, add, drop, known.note)
    else:
        found = read_manifest(find_run(settings.data_dir / "runs", run_id))
    print_text(f"{run_id}: {', '.join(found.tags) or 'no tags'}")
    if found.note:
        print_text(f"Note: {found.note}")
    return 0
