"""score: a run's stored answers held against their targets again, by other scorers, without a GPU.

    assayline score RUN_ID | --stale [--scorer KIND | --scorer '{kind: KIND, ...}']... [--dry-run] [--show N]

No Prefect flow: it takes seconds, and what it writes is one transaction.
"""

import argparse
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, plain_console, print_table, print_text
from assayline.report.document import Column, tabulate
from assayline.words import DASH, show_number, show_range, show_value

if TYPE_CHECKING:
    from rich.console import Console

    from assayline.evaluation.rescore import Rescored
    from assayline.spec.criteria import ScorerPart
    from assayline.store.database import Row
    from assayline.store.scoring import WrongAnswer

EPILOG = """A scorer is a kind, or a YAML mapping with its fields, as in a spec (docs/guides/scoring.md):

  %(prog)s RUN_ID --scorer numeric
  %(prog)s RUN_ID --scorer '{kind: regex, pattern: "answer: (.*)", name: strict}' --show 5

Scores are stored under the scorer's name (its kind, if it has none), in place of earlier ones of that name. They belong
to the run from then on, and outlive the database: a rebuild makes them again. Scores by a scorer that a newer assayline
defines otherwise are compared with no others; --stale scores all runs that have such again.

Exit codes: 0 scored, 2 an unknown run, or an unknown scorer, or one that cannot score this run, 6 database or files."""


def run(arguments: list[str]) -> int:
    """Scores what the command line names. Returns the exit code."""
    parser = _make_parser()
    known = parser.parse_args(arguments)
    console = plain_console()
    if known.list:
        from assayline.spec.criteria import list_kinds

        print_table(tabulate("Scorers", KINDS, list_kinds().items()), console)
        return 0
    if (known.run_id is None) == (not known.stale):
        parser.error("give a RUN_ID, --stale or --list")
    if known.stale and known.scorer:
        parser.error("--stale scores by the scorers that the runs have: leave out --scorer")
    if known.show < 0:
        parser.error(f"--show {known.show}: expected 0 or more examples")

    from assayline.evaluation.rescore import list_stale_runs, rescore_run
    from assayline.runs.manifest import find_run, parse_scorer
    from assayline.settings import load_settings

    settings = load_settings()
    runs_dir = settings.data_dir / "runs"
    scorers = [parse_scorer(text) for text in known.scorer]
    for run_id in list_stale_runs(settings) if known.stale else [complete_run_id(known.run_id, settings)]:
        run_dir = find_run(runs_dir, run_id)
        force = known.force or known.stale  # it has scores: of what is answered
        _print_rescored(rescore_run(run_dir, settings, scorers, not known.dry_run, force, known.show), console)
    database = str(settings.database_path)
    print_text("Nothing was stored." if known.dry_run else f"Database: {database}", console)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("score", EPILOG)
    parser.add_argument("run_id", nargs="?", metavar="RUN_ID", help="id of a run: its folder's name in data/runs")
    parser.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="SCORER",
        help="how to score; may be given several times (default: all scorers that the run has, anew)",
    )
    parser.add_argument(
        "--stale", action="store_true", help="all runs whose scorers have changed since they were scored"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what it would say, and store nothing")
    parser.add_argument("--show", type=int, default=3, metavar="N", help="examples of wrong answers (default: 3)")
    parser.add_argument("--force", action="store_true", help="even if the run is not completed: what is answered")
    parser.add_argument("--list", action="store_true", help="the scorers that there are, and their fields")
    return parser


def _print_rescored(rescored: "Rescored", console: "Console") -> None:
    run = rescored.run
    print_text(f"\n{run.model} on {run.prompt_set}, run {run.run_id}, {run.state}", console)
    print_table(tabulate("Scores", SCORES, rescored.accuracies), console)
    for scorer, examples in rescored.wrong.items():
        for example in examples:
            _print_example(scorer, example, console)


def _show_interval(row: "Row") -> str:
    return show_range(show_value(row["mean_low"]), show_value(row["mean_high"])) or DASH


def _list_fields(kind: "tuple[str, type[ScorerPart]]") -> str:
    return "\n".join(name for name in kind[1].model_fields if name not in ("kind", "name"))


KINDS = (
    Column("kind", 0),
    Column("what it does", lambda kind: " ".join((kind[1].__doc__ or "").split())),
    Column("fields", _list_fields),
)
SCORES = (
    Column("scorer", "scorer"),
    Column("kind", "kind"),
    Column("mean", "mean", show_value),
    Column("95% CI", _show_interval, show_number),
    Column("without errors", "mean_without_errors", show_value),
    Column("right", "right_samples", show_value),
    Column("n", "samples", show_value),
    Column("prompts", "prompts", show_value),
)


def _print_example(scorer: str, wrong: "WrongAnswer", console: "Console") -> None:
    repeat = f", repeat {wrong.repeat_index}" if wrong.repeat_index else ""
    print_text(f"{scorer} {show_value(wrong.value)}, row {wrong.source_row}{repeat}: {wrong.explanation}", console)
    print_text(f"    target   {_in_a_line(wrong.target)}", console)
    if wrong.answer is not None:
        print_text(f"    answer   {_in_a_line(wrong.answer)}", console)


def _in_a_line(text: str | None, most: int = 200) -> str:
    """The beginning and the end: that is where answers are."""
    line = "–" if text is None else " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 3]} … {line[-2 * most // 3 :]}"
