"""export: a run's requests and answers, in the format of somebody else's tools.

assayline export RUN_ID --format FORMAT [--output PATH] [--force]
"""

import sys
from pathlib import Path

from flows.cli.options import make_parser
from flows.cli.words import complete_run_id

FORMATS = ("openai-batch", "csv", "jsonl", "parquet", "lm-eval", "vllm-bench")
EPILOG = """Formats (docs/bring.md):
  openai-batch   output file and, beside it, NAME.errors.jsonl, as OpenAI and vLLM write them
  csv, jsonl     one row per request, with its metrics
  parquet        the same, a folder of files
  lm-eval        a folder with results and samples of lm-evaluation-harness
  vllm-bench     the result file of `vllm bench serve`

Of a run that has not finished, or failed, it exports what is answered, and says so.

Exit codes: 0 exported, 2 an unknown run, a format that cannot hold it, or a place that is taken,
 6 the database cannot be read or the files not written."""


def run(arguments: list[str]) -> int:
    """Exports what the command line names. Returns the exit code."""
    parser = make_parser("export", EPILOG)
    parser.add_argument("run_id", metavar="RUN_ID", help="id of a run: its folder's name in data/runs")
    parser.add_argument("--format", required=True, choices=FORMATS, help="one of these")
    parser.add_argument(
        "--output", type=Path, metavar="PATH", help="file, or folder (default: exports/ in the run's folder)"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    known = parser.parse_args(arguments)

    from assayline.export.make import export_run
    from assayline.settings import load_settings

    settings = load_settings()
    run_id = complete_run_id(known.run_id, settings)
    exported = export_run(settings, run_id, known.format, known.output, known.force)
    for path in exported.files:
        print(path)
    for sentence in exported.sentences:
        print(sentence, file=sys.stderr)
    return 0
