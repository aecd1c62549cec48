"""rename: give an imported run the names by which it is compared.

assayline rename RUN_ID [--model NAME] [--name NAME] [--machine NAME]
"""

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

EPILOG = """Runs of one model on one task are compared, and are one row of a leaderboard. Files name a model as its
server or folder was called, so names of imported runs can be corrected. The id of the run stays.

Exit codes: 0 renamed, 2 an unknown run, or one that was not imported, 6 the database or the run's folder."""
PARSER = make_parser("rename", EPILOG)
PARSER.add_argument("run_id", metavar="RUN_ID", help="run id, as listed by `assayline list runs`")
PARSER.add_argument("--model", metavar="NAME", help="name of the model")
PARSER.add_argument("--name", metavar="NAME", help="name of the task or load")
PARSER.add_argument("--machine", metavar="NAME", help="machine that ran it")


def run(arguments: list[str]) -> int:
    """Rename the run. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if not (known.model or known.name or known.machine):
        PARSER.error("pass --model, --name or --machine")

    from assayline.imports.make import Names, rename_run
    from assayline.settings import load_settings

    settings = load_settings()
    names = Names(model=known.model, name=known.name, machine=known.machine)
    outcome = rename_run(settings, complete_run_id(known.run_id, settings), names)
    for note in outcome.notes or ["It has these names already."]:
        print(f"{outcome.run.run_id}: {note}")
    return 0
