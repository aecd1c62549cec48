"""score: score a run's stored answers again or by other scorers, without a GPU.

    assayline score RUN_ID | --stale [--scorer KIND | --scorer '{kind: KIND, ...}']... [--dry-run] [--show N]
    assayline score RUN_ID --judge SPEC... [--model MODEL]

It takes seconds and writes one transaction, except for judges, whose runs are like those of `evaluate`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, print_table, print_text
from assayline.report.document import Column, tabulate
from assayline.words import DASH, show_number, show_range, show_share, show_value

if TYPE_CHECKING:
    from assayline.run.rescore import Rescored
    from assayline.spec.part import ScorerPart
    from assayline.store.database import Row

EPILOG = """A scorer is a kind, or a YAML mapping with its fields, as in a spec (docs/guides/scoring.md):

  %(prog)s RUN_ID --scorer numeric
  %(prog)s RUN_ID --judge @helpfulness --model Qwen/Qwen3-8B
  %(prog)s RUN_ID --scorer '{kind: regex, pattern: "answer: (.*)", name: strict}' --show 5

A judge is another model that reads the answers, in a run of its own (docs/guides/judges.md).

Scores are stored under the scorer's name (default: its kind) and replace earlier scores of that name. They become part
of the run's folder, so `assayline db rebuild` restores them. After an update that changes a scorer's definition, its
old scores are not compared with new ones; --stale scores all affected runs again.

Exit codes: 0 scored, 2 an unknown run, an unknown or unsuitable scorer, 6 database or files; with --judge also those of
`assayline evaluate`."""
PARSER = make_parser("score", EPILOG)
PARSER.add_argument("run_id", nargs="?", metavar="RUN_ID", help="run id: the name of its folder in data/runs")
PARSER.add_argument(
    "--scorer",
    action="append",
    default=[],
    metavar="SCORER",
    help="scorer; repeatable (default: all scorers of the run)",
)
PARSER.add_argument(
    "--judge",
    action="append",
    default=[],
    metavar="SPEC",
    help="file of a judge's spec, or @NAME of a rubric; repeated: a panel of judges",
)
PARSER.add_argument("--model", metavar="MODEL", help="the judge's model (default: that of its spec)")
PARSER.add_argument(
    "--stale", action="store_true", help="score all runs whose scorers have changed since they were scored"
)
PARSER.add_argument("--dry-run", action="store_true", help="print the scores, or check a judge; store nothing")
PARSER.add_argument("--show", type=int, default=3, metavar="N", help="wrong answers to print (default: 3)")
PARSER.add_argument("--force", action="store_true", help="score an incomplete run")
PARSER.add_argument("--list", action="store_true", help="list scorers and their fields")


def run(arguments: list[str]) -> int:
    """Score the runs that the command line names. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if known.list:
        from assayline.spec.criteria import list_kinds

        print_table(tabulate("Scorers", KINDS, list_kinds().items()))
        return 0
    if (known.run_id is None) == (not known.stale):
        PARSER.error("pass a RUN_ID, --stale or --list")
    if known.stale and known.scorer:
        PARSER.error("--stale uses the scorers of the runs: leave out --scorer")
    if known.judge and (known.scorer or known.stale):
        PARSER.error("--judge cannot be combined with --scorer or --stale")
    if known.model and not known.judge:
        PARSER.error("--model is the model of --judge")
    if known.show < 0:
        PARSER.error(f"--show {known.show}: expected 0 or more examples")

    from assayline.run.rescore import list_stale_runs, rescore_run
    from assayline.settings import load_settings
    from assayline.store.manifest import find_run, parse_scorer
    from assayline.store.metrics import ensure_metrics
    from assayline.store.thread import DatabaseThread

    settings = load_settings()
    runs_dir = settings.data_dir / "runs"
    if known.judge:
        return _judge(complete_run_id(known.run_id, settings), known.judge, known.model, known.dry_run)
    scorers = [parse_scorer(text) for text in known.scorer]
    run_ids = list_stale_runs(settings) if known.stale else [complete_run_id(known.run_id, settings)]
    for run_id in run_ids:
        run_dir = find_run(runs_dir, run_id)
        force = known.force or known.stale  # a run with scores may be incomplete
        _print_rescored(rescore_run(run_dir, settings, scorers, not known.dry_run, force, known.show))
    if not known.dry_run:
        DatabaseThread(settings).run(lambda connection: ensure_metrics(connection, run_ids))
    database = str(settings.database_path)
    print_text("Dry run: nothing was stored." if known.dry_run else f"Database: {database}")
    return 0


def _judge(run_id: str, specs: list[str], model: str | None, is_dry: bool) -> int:
    from pydantic import ValidationError

    from assayline.errors import SpecError
    from assayline.flows.cli.terminal import open_front
    from assayline.run.rescore import rescore_run
    from assayline.settings import load_settings
    from assayline.spec.judges import JudgeScorer
    from assayline.store.manifest import find_run, read_manifest

    settings = load_settings()
    run_dir = find_run(settings.data_dir / "runs", run_id)
    name = "+".join(Path(spec).stem.removeprefix("@") for spec in specs)
    try:
        scorer = JudgeScorer.model_validate({"kind": "judge", "name": name, "spec": specs, "model": model})
    except ValidationError as error:
        raise SpecError(f"--judge: {error.errors()[0]['msg'].removeprefix('Value error, ')}.") from None
    if is_dry:
        from assayline.flows.cli.dry_run import describe_run
        from assayline.run.judging import plan_judge
        from assayline.store.manifest import NEVER

        for number in range(len(scorer.spec)):
            planned = plan_judge(scorer, number, run_id, read_manifest(run_dir).name)
            for line in describe_run(planned, settings, NEVER):
                print_text(line)
        return 0
    with open_front(settings) as call:
        call("judge", run_id=run_id, scorers=[scorer])
    _print_rescored(rescore_run(run_dir, settings, [scorer], keep=False))
    print_text(f"Database: {settings.database_path}")
    return 0


def _print_rescored(rescored: "Rescored") -> None:
    run = rescored.run
    print_text(f"\n{run.model} on {run.prompt_set}, run {run.run_id}, {run.state}")
    print_table(tabulate("Scores", SCORES, rescored.accuracies))
    for note in rescored.notes:
        print_text(note)
    for scorer, examples in rescored.wrong.items():
        for example in examples:
            _print_example(scorer, example)


def _show_interval(row: "Row") -> str:
    return show_range(show_share(row["mean_low"]), show_share(row["mean_high"])) or DASH


def _list_fields(kind: "tuple[str, type[ScorerPart]]") -> str:
    return "\n".join(name for name in kind[1].model_fields if name not in ("kind", "name"))


KINDS = (
    Column("kind", 0),
    Column("description", lambda kind: " ".join((kind[1].__doc__ or "").split())),
    Column("fields", _list_fields),
)
SCORES = (
    Column("scorer", "scorer"),
    Column("kind", "kind"),
    Column("mean", "mean", show_share),
    Column("95% CI", _show_interval, show_number),
    Column("mean excl. errors", "mean_without_errors", show_share),
    Column("right", "right_samples", show_value),
    Column("n", "samples", show_value),
    Column("prompts", "prompts", show_value),
)


def _print_example(scorer: str, wrong: dict[str, Any]) -> None:
    repeat = f", repeat {wrong['repeat_index']}" if wrong["repeat_index"] else ""
    reason = f": {wrong['explanation']}" if wrong["explanation"] else ""
    print_text(f"{scorer} {show_value(wrong['value'])}, row {wrong['source_row']}{repeat}{reason}")
    print_text(f"    target   {_in_a_line(wrong['target'])}")
    if wrong["answer"] is not None:
        print_text(f"    answer   {_in_a_line(wrong['answer'])}")


def _in_a_line(text: str | None, most: int = 200) -> str:
    """Shorten a text to one line: its beginning and its end, where answers usually are."""
    line = "–" if text is None else " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 3]} … {line[-2 * most // 3 :]}"
