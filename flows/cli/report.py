"""report: write the results of a run, benchmark, history or leaderboard as an HTML page and as Markdown.

    assayline report RUN_ID [--baseline RUN_ID|NAME] [--out FOLDER] [--open]
    assayline report --benchmark BENCHMARK_ID [--out FOLDER] [--open]
    assayline report --history NAME [--baseline RUN_ID|NAME] [--out FOLDER] [--open]
    assayline report --leaderboard [NAME ...] [--out FOLDER] [--open]

No Prefect flow: it reads the database and writes two files. The flows write the same reports at the end of a run, a
benchmark and a nightly run.
"""

import sys
import webbrowser
from pathlib import Path
from typing import Any

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, print_page

PRINTED = {"leaderboard": ("board", "runs"), "history": ("runs",)}
"""Sections that are printed."""
NEWEST_RUNS = 14
"""Number of runs in the terminal's table."""

EPILOG = """With --out, the page is one self-contained file. Otherwise it loads the library of charts from the data
folder. Neither loads anything from other machines, nor names hosts or the folders of a path.

A history covers all runs with the same spec name, model and prompt set: accuracy, speed and latency over
time, changes of the configuration and level shifts (docs/guides/nightly-runs.md).

A leaderboard compares the newest run of each model on each prompt set, paired by prompt. Name runs,
specs, prompt sets or benchmarks to rank; the default is all runs (docs/guides/leaderboards.md).

Exit codes: 0 written, 2 an unknown or unfinished run, history, name or baseline, or an invalid setting,
 6 the database cannot be read or the folder cannot be written."""
PARSER = make_parser(
    "report",
    EPILOG,
    "%(prog)s (RUN_ID | --benchmark BENCHMARK_ID | --history NAME | --leaderboard [NAME ...]) "
    "[--baseline RUN_ID|NAME] [--out FOLDER] [--without-texts] [--open]",
)
PARSER.add_argument("run_id", metavar="RUN_ID", nargs="?", help="run id, as listed by `assayline list runs`")
PARSER.add_argument(
    "--benchmark", metavar="BENCHMARK_ID", help="compare the benchmark's configurations, or show latency under load"
)
PARSER.add_argument(
    "--history", metavar="NAME", help="all runs of a spec: spec name, run id of one of them, or config_id"
)
PARSER.add_argument(
    "--leaderboard",
    metavar="NAME",
    nargs="*",
    help="runs, specs, prompt sets or benchmarks to rank (default: all)",
)
PARSER.add_argument("--baseline", metavar="RUN_ID|NAME", help="run id or pinned name to compare with")
PARSER.add_argument("--out", type=Path, metavar="FOLDER", help="folder of a page to mail (default: the run's own)")
PARSER.add_argument("--without-texts", action="store_true", help="leave out prompts, answers, errors and the spec")
PARSER.add_argument("--open", action="store_true", help="open the page in a browser")


def run(arguments: list[str]) -> int:
    """Write the report that the command line asks for and print its path. Return the exit code."""
    known = PARSER.parse_args(arguments)
    names = {"run": known.run_id} | {kind: getattr(known, kind) for kind in ("benchmark", "history", "leaderboard")}
    given: list[tuple[Any, Any]] = [(kind, name) for kind, name in names.items() if name is not None]
    if len(given) != 1:
        PARSER.error("pass one of RUN_ID, --benchmark BENCHMARK_ID, --history NAME or --leaderboard")
    [(kind, name)] = given
    if known.baseline and kind in ("benchmark", "leaderboard"):
        PARSER.error("--baseline applies only to the report of a run or a history")

    from assayline.report.make import make_report
    from assayline.settings import load_settings

    settings = load_settings()
    if kind in ("run", "history"):
        name = complete_run_id(name, settings)
    written = make_report(settings, name, known.baseline, known.out, not known.without_texts, kind)
    if kind in PRINTED:
        newest = NEWEST_RUNS if kind == "history" else None
        print_page(written.document, *PRINTED[kind], newest=newest)
    print(f"Report: {written.html}\nMarkdown: {written.markdown}")
    if known.open and not webbrowser.open(written.html.absolute().as_uri()):
        print("warning: No browser found to open the page.", file=sys.stderr)
    return 0
