"""export: a run's requests and answers in the format of other tools, or the tables of runs as Parquet.

assayline export RUN_ID --format FORMAT [--output PATH] [--force]
assayline export RUN_ID... | --all --format tables [--output PATH] [--force]
"""

import sys
from pathlib import Path

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id

FORMATS = ("openai-batch", "csv", "jsonl", "parquet", "lm-eval", "vllm-bench")
TABLES = "tables"
EPILOG = """Formats (docs/guides/exports.md):
  openai-batch   output file and, beside it, NAME.errors.jsonl, as OpenAI and vLLM write them
  csv, jsonl     one row per request, with its metrics
  parquet        the same, a folder of files
  lm-eval        a folder with results and samples of lm-evaluation-harness
  vllm-bench     the result file of `vllm bench serve`
  tables         a folder with the ten tables of the database as Parquet, of any number of runs

Of a run that has not finished, or failed, it exports what is answered, and says so.

Exit codes: 0 exported, 2 an unknown run, a format that cannot hold it, or a place that is taken,
 6 the database cannot be read or the files not written."""


def run(arguments: list[str]) -> int:
    """Exports what the command line names. Returns the exit code."""
    parser = make_parser("export", EPILOG)
    parser.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="id of a run: its folder's name in data/runs")
    parser.add_argument("--all", action="store_true", help="every run of the database, as tables")
    parser.add_argument("--format", required=True, choices=(*FORMATS, TABLES), help="one of these")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="file, or folder (default: exports/ in the run's folder; of several runs, in the data folder)",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    known = parser.parse_args(arguments)
    if bool(known.run_ids) == known.all:
        parser.error("give RUN_IDs, or --all")
    if known.format != TABLES and len(known.run_ids) != 1:
        parser.error(f"--format {known.format} is of one run; give one RUN_ID, or --format {TABLES}")

    from assayline.export.make import export_run
    from assayline.export.tables import export_tables
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
