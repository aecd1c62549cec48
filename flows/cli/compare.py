"""compare: print how two runs differ: scores paired by prompt, changed answers, speed and cost.

assayline compare RUN_ID BASELINE
"""

import textwrap
from functools import partial
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, print_table, print_text

if TYPE_CHECKING:
    from assayline.settings import Settings
    from assayline.store.database import Row

EPILOG = """BASELINE is any other run, or a pinned name. A change is RUN_ID minus BASELINE. No limit applies, and
no verdict is recorded: `assayline gate` judges a run by its limits. With --reread, the engine of RUN_ID first reads the
answers of BASELINE, as `assayline reread` does, which has more options.

Exit codes: 0 compared, 2 an unknown or unfinished run, 6 the database cannot be read; with --reread also those of
`assayline reread`, except 1 and 13."""
PARSER = make_parser("compare", EPILOG)
PARSER.add_argument("run_id", metavar="RUN_ID", help="run id, as listed by `assayline list runs`")
PARSER.add_argument("baseline", metavar="BASELINE", help="run id or pinned name to compare with")
PARSER.add_argument(
    "--reread",
    action="store_true",
    help="let the engine of RUN_ID read 30 answers of BASELINE, and compare probabilities",
)
FLIPS = (("prompt", "prompt"), ("target", "target"), ("run", "candidate_answer"), ("baseline", "baseline_answer"))


def run(arguments: list[str]) -> int:
    """Print the comparison of two runs. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.api import compare
    from assayline.comparison.autopsy import say_autopsies
    from assayline.comparison.gate import judge_speed
    from assayline.comparison.totals import compare_stated, is_stated
    from assayline.report.document import Column, tabulate
    from assayline.report.make import open_database
    from assayline.report.measures import CHANGES
    from assayline.report.run.comparison import SPEEDS, introduce, say_conditions, say_verdict, tabulate_scores
    from assayline.settings import load_settings
    from assayline.words import name_metric, show_value

    settings = load_settings()
    run_id, baseline = (complete_run_id(given, settings) for given in (known.run_id, known.baseline))

    found = compare(run_id, baseline, settings=settings)
    read = _reread(run_id, found.baseline["run_id"], settings) if known.reread else None
    found = compare(run_id, baseline, settings=settings) if read else found
    print_text(f"Run {run_id} compared with a baseline. {introduce(found)}")
    if (scores := tabulate_scores(found, is_judged=False)).cells:
        print_table(scores)
    if flips := [*found.worse, *found.better]:
        score = Column(
            "score", lambda row: f"{show_value(row['baseline_value'])} → {show_value(row['candidate_value'])}"
        )
        columns = [score, *(Column(header, partial(_shorten, key=key)) for header, key in FLIPS)]
        print_table(tabulate("Changed most", columns, flips))
        print_text(f"All changed answers: assayline view {run_id} {found.baseline['run_id']}")
    if is_stated(found.run["spec_json"], found.baseline["spec_json"]):
        sides = {"candidate": run_id, "baseline": found.baseline["run_id"]}
        values, tested, conclusion = open_database(settings).query(partial(compare_stated, **sides))
        name = Column("metric", lambda row: name_metric(row["metric"]) + f" ({row['detail']})" * bool(row["detail"]))
        stated = (name, Column("statistic", "statistic"), *CHANGES[1:])
        print_table(tabulate("Stated values", stated, values))
        for metric, one in tested.items():
            print_text(judge_speed(metric, one.limit, one).words)
        print_text(conclusion)
        return 0
    measured = [row for row in found.metrics if (row["candidate_value"], row["baseline_value"]) != (None, None)]
    if measured:  # an imported run may have no times
        print_table(tabulate("Speed and cost", SPEEDS, measured))
        print_text("Speed of one run each is not judged here; `assayline gate` compares repeats.")
    if words := say_conditions(*found.environments):
        print_text(words)
    for words in filter(None, (read, say_autopsies(found.autopsies))):
        print_text(words)
    print_text(say_verdict(found, is_judged=False))
    return 0


def _reread(run_id: str, baseline: str, settings: "Settings") -> str:
    """Let the engine of a run read answers of a baseline. Return what was found."""
    from assayline.flows.cli.evaluate import read_run_spec
    from assayline.flows.cli.terminal import open_front

    with open_front(settings) as call:
        report = call("reread", reference=baseline, spec=read_run_spec(settings, run_id, {}))
    return " ".join(check.words for check in report.checks)


def _shorten(row: "Row", key: str) -> str:
    return textwrap.shorten(row[key] or "", 80, placeholder="…")
