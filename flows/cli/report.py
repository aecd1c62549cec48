"""report: what a run was, how good and how fast, and what changed against a baseline, as a page and as Markdown.

    assayline report RUN_ID [--baseline RUN_ID|NAME] [--out FOLDER] [--open]
    assayline report --benchmark BENCHMARK_ID [--out FOLDER] [--open]
    assayline report --history NAME [--baseline RUN_ID|NAME] [--out FOLDER] [--open]
    assayline report --leaderboard [NAME ...] [--out FOLDER] [--open]

Not a Prefect flow: it reads the database and writes two files. The flows write the same reports at the end of a run, of
a benchmark and of a nightly run.
"""

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, plain_console, print_table, print_text
from assayline.words import count

if TYPE_CHECKING:
    from rich.console import Console

    from assayline.report.board import BoardRows
    from assayline.report.history_rows import HistoryRows
    from assayline.report.make import Written
    from assayline.settings import Settings

NEWEST_RUNS = 14
"""In the terminal's table."""

EPILOG = """The page is one file that loads nothing, and can be sent or kept as it is.

A history is every run of one spec's name, model and prompt set: accuracy, speed and latency over time, with what
changed and whether a level has shifted (docs/guides/nightly-runs.md).

A leaderboard is the newest run of each model on each prompt set, held against each other prompt by prompt: of these
runs, specs, prompt sets or benchmarks, or of all runs (docs/guides/leaderboards.md).

Exit codes: 0 written, 2 an unknown or unfinished run, history, name or baseline, or a wrong setting,
 6 the database cannot be read or the folder not written."""


def run(arguments: list[str]) -> int:
    """Writes the report that the command line asks for, and prints where it is. Returns the exit code."""
    parser = make_parser(
        "report",
        EPILOG,
        "%(prog)s (RUN_ID | --benchmark BENCHMARK_ID | --history NAME | --leaderboard [NAME ...]) "
        "[--baseline RUN_ID|NAME] [--out FOLDER] [--open]",
    )
    parser.add_argument("run_id", metavar="RUN_ID", nargs="?", help="the run, as `assayline runs` lists them")
    parser.add_argument(
        "--benchmark", metavar="BENCHMARK_ID", help="the benchmark: configurations compared, or latency under load"
    )
    parser.add_argument(
        "--history", metavar="NAME", help="all runs of a spec, by its name, by the id of one of them, or by a config_id"
    )
    parser.add_argument(
        "--leaderboard",
        metavar="NAME",
        nargs="*",
        help="models held against each other: runs, names of specs, prompt sets or benchmarks; all without any",
    )
    parser.add_argument("--baseline", metavar="RUN_ID|NAME", help="the run or pinned baseline it is held against")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to (default: the run's or benchmark's own)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    known = parser.parse_args(arguments)
    if sum(one is not None for one in (known.run_id, known.benchmark, known.history, known.leaderboard)) != 1:
        parser.error("give a RUN_ID, or --benchmark BENCHMARK_ID, or --history NAME, or --leaderboard")
    if known.baseline and (known.benchmark or known.leaderboard is not None):
        parser.error("--baseline is for the report of a run or a history: nothing else is held against one")

    from assayline.settings import load_settings

    written = _write(known, load_settings())
    print(f"Report: {written.html}\nAs Markdown: {written.markdown}")
    if known.open and not webbrowser.open(written.html.absolute().as_uri()):
        print("There is no browser here that could be opened.", file=sys.stderr)
    return 0


def _write(known: argparse.Namespace, settings: "Settings") -> "Written":
    from assayline.report.make import make_benchmark_report, make_history_report, make_leaderboard, make_report

    if known.benchmark is not None:
        return make_benchmark_report(settings, known.benchmark, known.out)
    if known.leaderboard is not None:
        board, written = make_leaderboard(settings, known.leaderboard, known.out)
        print_board(board, plain_console())
        return written
    if known.history is None:
        return make_report(settings, complete_run_id(known.run_id, settings), known.baseline, known.out)
    rows, written = make_history_report(settings, known.history, known.baseline, known.out)
    print_history(rows, plain_console())
    return written


def print_history(rows: "HistoryRows", console: "Console") -> None:
    """What a reader must know, and the newest runs as a table."""
    from assayline.report.history import tabulate_nights, write_headline

    print_table(tabulate_nights(rows, NEWEST_RUNS), console)
    if (more := len(rows.runs) - NEWEST_RUNS) > 0:
        print_text(f"{count(more, 'earlier run is', 'earlier runs are')} in the report.", console)
    for sentence in write_headline(rows):
        print_text(sentence, console)


def print_board(rows: "BoardRows", console: "Console") -> None:
    """Models and tasks as tables, and who wins what, if anybody does."""
    from assayline.report.board import tabulate_board, tabulate_task, write_headline

    if len(rows.tasks) > 1:
        print_table(tabulate_board(rows), console)
    for task in rows.tasks:
        print_text(task.name, console)
        print_table(tabulate_task(task), console)
    for sentence in write_headline(rows):
        print_text(sentence, console)
