"""db export: write the tables of runs as Parquet files.

assayline db export RUN_ID... | --all [--output PATH] [--force] [--without-texts]
"""

from assayline.flows.cli.export import add_outputs, print_exported
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

EPILOG = """The folder has a file per table (docs/guides/exports.md). Runs may go on meanwhile.

Exit codes: 0 exported, 2 an unknown run, or an output that exists, 6 the database cannot be read or the
 files cannot be written."""
PARSER = make_parser("db export", EPILOG)
PARSER.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="run id, as listed by `assayline list runs`")
PARSER.add_argument("--all", action="store_true", help="export all runs in the database")
add_outputs(PARSER, "folder (default: exports/tables in the run's folder, or in the data folder for several runs)")


def run(arguments: list[str]) -> int:
    """Export the tables of the runs that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        PARSER.error("pass RUN_IDs or --all, not both")

    from assayline.export.make import export_tables
    from assayline.settings import load_settings

    settings = load_settings()
    run_ids = [complete_run_id(run_id, settings) for run_id in known.run_ids]
    return print_exported(export_tables(settings, run_ids, known.output, known.force, known.without_texts))
