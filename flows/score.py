"""score: a run's stored answers held against their targets again, by other scorers, without a GPU.

    python -m flows.score RUN_ID [--scorer KIND | --scorer '{kind: KIND, ...}']... [--dry-run] [--show N]

No Prefect flow: it takes seconds, and what it writes is one transaction.
"""

import argparse
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assayline.errors import AssaylineError
from assayline.manifest import find_run
from assayline.report.words import show_value
from assayline.rescore import Rescored, rescore_run
from assayline.run_scorers import parse_scorer
from assayline.scorer_spec import list_kinds
from assayline.settings import load_settings
from assayline.store.wrong_answers import WrongAnswer
from flows.summary import print_text

EPILOG = """A scorer is a kind, or a YAML mapping with its fields, as in a spec (docs/evaluation.md):

  python -m flows.score RUN_ID --scorer numeric
  python -m flows.score RUN_ID --scorer '{kind: regex, pattern: "answer: (.*)", name: strict}' --show 5

Scores are stored under the scorer's name (its kind, if it has none), in place of earlier ones of that name. They belong
to the run from then on, and outlive the database: a rebuild makes them again.

Exit codes: 0 scored, 2 an unknown run, or a scorer that is none or cannot score this run, 6 database or files."""


def main(arguments: list[str] | None = None) -> int:
    """Scores what the command line names. Returns the exit code."""
    parser = _make_parser()
    known = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    if known.list:
        _print_kinds(console)
        return 0
    if known.run_id is None:
        parser.error("give a RUN_ID, or --list")
    if known.show < 0:
        parser.error(f"--show {known.show}: expected 0 or more examples")
    try:
        settings = load_settings()
        run_dir = find_run(settings.data_dir / "runs", known.run_id)
        scorers = [parse_scorer(text) for text in known.scorer]
        rescored = rescore_run(run_dir, settings, scorers, not known.dry_run, known.force, known.show)
    except AssaylineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    _print_rescored(rescored, console)
    database = str(settings.database_path)
    print_text("Nothing was stored." if known.dry_run else f"Database: {database}", console)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.score",
        description="Score a finished run's stored answers again. Nothing is generated.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_id", nargs="?", metavar="RUN_ID", help="id of a run: its folder's name in data/runs")
    parser.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="SCORER",
        help="how to score; may be given several times (default: all scorers that the run has, anew)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what it would say, and store nothing")
    parser.add_argument("--show", type=int, default=3, metavar="N", help="examples of wrong answers (default: 3)")
    parser.add_argument("--force", action="store_true", help="even if the run is not completed: what is answered")
    parser.add_argument("--list", action="store_true", help="the scorers that there are, and their fields")
    return parser


def _print_kinds(console: Console) -> None:
    table = Table("kind", "what it does", "fields")
    for kind, part in list_kinds().items():
        fields = [name for name in part.model_fields if name not in ("kind", "name")]
        table.add_row(kind, escape(" ".join((part.__doc__ or "").split())), "\n".join(fields))
    console.print(table)


def _print_rescored(rescored: Rescored, console: Console) -> None:
    run = rescored.run
    print_text(f"\n{run.model} on {run.prompt_set}, run {run.run_id}, {run.state}", console)
    table = Table("scorer", "kind")
    for name in ("mean", "95 % interval", "right", "n", "prompts"):
        table.add_column(name, justify="right")
    for row in rescored.accuracies:
        known = row["mean_low"] is not None
        interval = f"{show_value(row['mean_low'])} to {show_value(row['mean_high'])}" if known else "–"
        numbers = [show_value(row[name]) for name in ("right_samples", "samples", "prompts")]
        table.add_row(escape(row["scorer"]), row["kind"], show_value(row["mean"]), interval, *numbers)
    console.print(table)
    for scorer, examples in rescored.wrong.items():
        for example in examples:
            _print_example(scorer, example, console)


def _print_example(scorer: str, wrong: WrongAnswer, console: Console) -> None:
    repeat = f", repeat {wrong.repeat_index}" if wrong.repeat_index else ""
    print_text(f"{scorer} {show_value(wrong.value)}, row {wrong.source_row}{repeat}: {wrong.explanation}", console)
    print_text(f"    target   {_in_a_line(wrong.target)}", console)
    if wrong.answer is not None:
        print_text(f"    answer   {_in_a_line(wrong.answer)}", console)


def _in_a_line(text: str | None, most: int = 200) -> str:
    """The beginning and the end: that is where answers are."""
    line = "–" if text is None else " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 3]} … {line[-2 * most // 3 :]}"


if __name__ == "__main__":
    sys.exit(main())
