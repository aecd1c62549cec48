"""export: write a run's requests and answers in the format of other tools, or the tables of runs as Parquet.

assayline export RUN_ID --format FORMAT [--output PATH] [--force]
assayline export RUN_ID... | --all --format tables [--output PATH] [--force]
"""

import argparse
import sys
from pathlib import Path

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

TABLES = "tables"
FORMATS = ("openai-batch", "lm-eval", TABLES)
COPY = "copy (from request where run_id = '…') to 'answers.parquet'"
REMOVED = {
    "csv": f"copy the rows with SQL, `{COPY}` (docs/guides/exports.md).",
    "jsonl": f"copy the rows with SQL, `{COPY}` (docs/guides/exports.md).",
    "parquet": f"copy the rows with SQL, `{COPY}` (docs/guides/exports.md).",
    "vllm-bench": "pass --format tables, or copy the table `run` with SQL (docs/guides/exports.md).",
}
"""Replacements of formats of earlier versions."""
EPILOG = """Formats (docs/guides/exports.md):
  openai-batch   output file and NAME.errors.jsonl next to it, as OpenAI and vLLM write them
  lm-eval        a folder with results and samples of lm-evaluation-harness
  tables         a folder with the tables of the database as Parquet, for any number of runs

Exporting an unfinished or failed run writes the answers that it has and prints a note.

Exit codes: 0 exported, 2 an unknown run, an unsuitable format, or an output that exists,
 6 the database cannot be read or the files cannot be written."""


def _check_format(name: str) -> str:
    if name in REMOVED:
        raise argparse.ArgumentTypeError(f"{name} was removed. hint: {REMOVED[name]}")
    return name


PARSER = make_parser("export", EPILOG)
PARSER.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="run id: the name of its folder in data/runs")
PARSER.add_argument("--all", action="store_true", help="export all runs in the database, as tables")
PARSER.add_argument("--format", required=True, choices=FORMATS, type=_check_format, help="output format")
PARSER.add_argument(
    "--output",
    type=Path,
    metavar="PATH",
    help="file or folder (default: exports/ in the run's folder, or in the data folder for several runs)",
)
PARSER.add_argument("--force", action="store_true", help="replace an existing export")


def run(arguments: list[str]) -> int:
    """Export the runs that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        PARSER.error("pass RUN_IDs or --all, not both")
    if known.format != TABLES and len(known.run_ids) != 1:
        PARSER.error(f"--format {known.format} exports one run; pass one RUN_ID, or --format {TABLES}")

    from assayline.export.make import export_run, export_tables
    from assayline.settings import load_settings

    settings = load_settings()
    run_ids = [complete_run_id(run_id, settings) for run_id in known.run_ids]
    if known.format == TABLES:
        exported = export_tables(settings, run_ids, known.output, known.force)
    else:
        exported = export_run(settings, run_ids[0], known.format, known.output, known.force)
    for path in exported.files:
        print(path)
    for sentence in exported.sentences:
        print(sentence, file=sys.stderr)
    return 0
