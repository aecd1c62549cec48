"""report: what a run was, how good and how fast, and what changed against a baseline, as a page and as Markdown.

    python -m flows.report RUN_ID [--baseline RUN_ID|NAME] [--out FOLDER] [--open]
    python -m flows.report --benchmark BENCHMARK_ID [--out FOLDER] [--open]

No Prefect flow: it reads the database and writes two files. `flows.evaluate` does the same at the end of a run, and
`flows.benchmark` at the end of a sweep.
"""

import sys
import webbrowser
from pathlib import Path

from flows.cli.options import make_parser
from flows.cli.process import collect_garbage

EPILOG = """The page is one file that loads nothing, and can be sent or kept as it is.

Exit codes: 0 written, 2 an unknown or unfinished run or baseline, or a wrong setting,
 6 the database cannot be read or the folder not written."""


def run(arguments: list[str]) -> int:
    """Writes the report that the command line asks for, and prints where it is. Returns the exit code."""
    parser = make_parser(
        "report",
        EPILOG,
        "%(prog)s (RUN_ID [--baseline RUN_ID|NAME] | --benchmark BENCHMARK_ID) [--out FOLDER] [--open]",
    )
    parser.add_argument("run_id", metavar="RUN_ID", nargs="?", help="the run, as `from runs` lists them")
    parser.add_argument(
        "--benchmark", metavar="BENCHMARK_ID", help="the benchmark: latency under load, if it has loads"
    )
    parser.add_argument("--baseline", metavar="RUN_ID|NAME", help="the run or pinned baseline it is held against")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to (default: the run's or benchmark's own)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    known = parser.parse_args(arguments)
    if (known.run_id is None) == (known.benchmark is None):
        parser.error("give a RUN_ID, or --benchmark BENCHMARK_ID")
    if known.benchmark and known.baseline:
        parser.error("--baseline is for the report of a run: a benchmark is held against none")

    from assayline.report.make import make_benchmark_report, make_report
    from assayline.settings import load_settings

    collect_garbage()
    written = (
        make_benchmark_report(load_settings(), known.benchmark, known.out)
        if known.benchmark
        else make_report(load_settings(), known.run_id, known.baseline, known.out)
    )
    print(f"Report: {written.html}\nAs Markdown: {written.markdown}")
    if known.open and not webbrowser.open(written.html.absolute().as_uri()):
        print("There is no browser here that could be opened.", file=sys.stderr)
    return 0
