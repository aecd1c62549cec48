"""export: write a run's requests and answers in the format of other tools.

assayline export RUN_ID --format FORMAT [--output PATH] [--force] [--without-texts]
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

if TYPE_CHECKING:
    from assayline.export.rows import Exported

FORMATS = ("openai-batch", "lm-eval", "eee", "hf", "mlflow")
COPY = "copy (from request where run_id = '…') to 'answers.parquet'"
EPILOG = """Formats (docs/guides/exports.md):
  openai-batch   output file and NAME.errors.jsonl next to it, as OpenAI and vLLM write them
  lm-eval        a folder with results and samples of lm-evaluation-harness
  eee            a folder with a log of every_eval_ever 0.3 and its samples
  hf             a result for the model card of a model on the hub, .eval_results/TASK.yaml
  mlflow         a run on the tracking server that MLFLOW_TRACKING_URI names

`assayline db export` writes the tables of the database as Parquet files.

Exporting an unfinished or failed run writes the answers that it has and prints a note.

Exit codes: 0 exported, 2 an unknown run, an unsuitable format, or an output that exists,
 6 the database cannot be read or the files cannot be written."""


def add_outputs(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options of every export."""
    parser.add_argument("--output", type=Path, metavar="PATH", help=default)
    parser.add_argument("--force", action="store_true", help="replace an existing export")
    parser.add_argument("--without-texts", action="store_true", help="replace prompts and answers by their digests")


def print_exported(exported: "Exported") -> int:
    """Print the files, and notes to stderr. Return the exit code."""
    for path in exported.files:
        print(path)
    for sentence in exported.sentences:
        print(sentence, file=sys.stderr)
    return 0


PARSER = make_parser("export", EPILOG)
PARSER.add_argument("run_id", metavar="RUN_ID", help="run id, as listed by `assayline list runs`")
PARSER.add_argument("--format", required=True, choices=FORMATS, help="output format")
add_outputs(PARSER, "file or folder (default: exports/ in the run's folder)")


def run(arguments: list[str]) -> int:
    """Export the run that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.export.make import export_run
    from assayline.settings import load_settings

    if known.format == "mlflow" and (known.output or known.force):
        PARSER.error("--format mlflow takes neither --output nor --force; MLFLOW_TRACKING_URI names the server")
    settings = load_settings()
    run_id = complete_run_id(known.run_id, settings)
    exported = export_run(settings, run_id, known.format, known.output, known.force, known.without_texts)
    return print_exported(exported)
