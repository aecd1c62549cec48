"""The command line of `gate`: limits as options, and the table at the end."""

import logging
import sys
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, parse_words

if TYPE_CHECKING:
    from assayline.comparison.gate import GateReport

EPILOG = """Override any field of the spec's gate: --max_accuracy_drop 0.02, --min_overlap 0.5,
--max_slowdown '{output_tokens_per_s: 0.1}'. Fields: docs/reference/spec.md, "gate".

Exit codes: 0 no limit fails, 1 a limit fails, 2 an unknown run, baseline or field, 6 database, 8 the
runs cannot be compared, 13 with --detailed-exit-code: no limit fails, and one is inconclusive, 15 with
--nightly: no limit fails, and one comparison alone would fail."""
PARSER = make_parser(
    "gate", EPILOG, "%(prog)s RUN_ID [--baseline NAME|RUN_ID] [--remeasure] [--nightly] [--FIELD VALUE ...]"
)
PARSER.add_argument(
    "--baseline",
    metavar="NAME|RUN_ID",
    help="pinned name or run id to compare with (default: gate.baseline of the run's spec)",
)
PARSER.add_argument(
    "--remeasure", action="store_true", help="run both again, interleaved in one session, and judge the new runs"
)
PARSER.add_argument(
    "--nightly", action="store_true", help="judge as one of 60 nights, with the evidence that a schedule needs"
)
PARSER.add_argument("--dry-run", action="store_true", help="judge without recording, in Prefect either")
PARSER.add_argument(
    "--detailed-exit-code", action="store_true", help="end with code 13, not 0, if a limit is inconclusive"
)


def run(arguments: list[str]) -> int:
    """Judge the run that the command line names and print the table of limits. Return the exit code."""
    known, rest = PARSER.parse_known_args(arguments)

    from assayline.comparison.gate import judge_run
    from assayline.settings import load_settings
    from assayline.spec.file import parse_value
    from assayline.stats.worse import NIGHTS
    from assayline.store.thread import DatabaseThread

    settings = load_settings()
    run_id, texts = parse_words(rest, vars(known))
    limits = {name: parse_value(f"gate.{name.removeprefix('gate.')}", text) for name, text in texts.items()}
    if run_id is None:
        PARSER.error("pass a RUN_ID")
    run_id = complete_run_id(run_id, settings)
    nights = NIGHTS if known.nightly else 1
    if known.remeasure and known.dry_run:
        PARSER.error("--remeasure runs and records; leave out --dry-run")
    if known.dry_run:
        how = (run_id, known.baseline, limits, nights)
        judged = DatabaseThread(settings).query(lambda opened: judge_run(opened, *how))
        return print_verdict(judged, known.detailed_exit_code)
    from assayline.flows.cli.terminal import open_front

    level = logging.INFO if known.remeasure else logging.CRITICAL  # the verdicts are printed at the end
    with open_front(settings, level) as call:
        asked = {"run_id": run_id, "baseline": known.baseline, "limits": limits}
        report = call("gate", **asked, is_remeasured=known.remeasure, is_nightly=known.nightly)
    return print_verdict(report, known.detailed_exit_code)


def print_verdict(report: "GateReport", is_detailed: bool = False) -> int:
    """Print the limits and the verdict. Return the exit code."""
    from assayline.comparison.gate import INCONCLUSIVE_EXIT_CODE, GateFailedError, SuspectError
    from assayline.flows.cli.tables import print_gate

    print_gate(report)
    if report.verdict in ("fail", "suspect"):
        print(f"{'error' if report.failed else 'warning'}: {report.headline}", file=sys.stderr)
        return GateFailedError.exit_code if report.failed else SuspectError.exit_code
    print(report.headline)
    return INCONCLUSIVE_EXIT_CODE if is_detailed and report.verdict == "inconclusive" else 0
