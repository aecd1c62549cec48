"""reread: let an engine read the stored answers of another one, and compare their probabilities.

assayline reread REFERENCE SPEC
"""

import json
import logging
from typing import TYPE_CHECKING

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id, parse_words, print_text

if TYPE_CHECKING:
    from assayline.settings import Settings
    from assayline.spec.evaluation import EvalSpec
    from assayline.store.database import Row

EPILOG = """REFERENCE is a completed run or a pinned name. SPEC names the engine that reads its answers: model,
engine and chat count, its prompts and scorers do not. Override any field: --engine.args.dtype bfloat16.

The reference's engine reads its own answers first, twice, which shows how much an engine differs from itself
(docs/guides/rereading.md).

Exit codes: 0 not shown beyond the limit, 1 shown beyond it, 2 an unknown run, spec or field, 4 model, 5 engine or
device, 6 database or files, 7 run, 8 the engines have different tokens or prompts, 13 with --detailed-exit-code:
inconclusive."""
PARSER = make_parser("reread", EPILOG, "%(prog)s REFERENCE SPEC [--prompts N] [--max-kl NATS] [--FIELD VALUE ...]")
PARSER.add_argument("reference", metavar="REFERENCE", help="run id or pinned name whose answers are read")
PARSER.add_argument("--prompts", type=int, default=30, metavar="N", help="answers to read, one a prompt (default: 30)")
PARSER.add_argument(
    "--max-kl",
    type=float,
    metavar="NATS",
    help="limit of the divergence per token, for a planned change of precision, such as 0.005 (default: three times "
    "what the reference's engine differs from itself)",
)
PARSER.add_argument("--fresh", action="store_true", help="repeat the readings by the reference's engine, too")
PARSER.add_argument("--dry-run", action="store_true", help="check tokens and prompts, and print what would be read")
PARSER.add_argument("--json", action="store_true", help="print a JSON object, for programs")
PARSER.add_argument(
    "--detailed-exit-code", action="store_true", help="end with code 13, not 0, if the result is inconclusive"
)


def run(arguments: list[str]) -> int:
    """Reread the run that the command line names and print the verdict. Return the exit code."""
    known, rest = PARSER.parse_known_args(arguments)

    from assayline.flows.cli.gate import print_verdict
    from assayline.settings import load_settings
    from assayline.spec.file import load_spec
    from assayline.store.manifest import AUTO, NEVER

    settings = load_settings()
    path, overrides = parse_words(rest, vars(known))
    if path is None:
        PARSER.error("pass a SPEC: the engine that reads")
    if known.prompts < 1 or (known.max_kl is not None and not known.max_kl > 0):
        PARSER.error("--prompts and --max-kl: expected a number above 0")
    spec, reference = load_spec(path, overrides), complete_run_id(known.reference, settings)
    if known.dry_run:
        _print_plan(reference, spec, known.prompts, settings)
        return 0
    from assayline.comparison.gate import INCONCLUSIVE_EXIT_CODE, GateFailedError
    from assayline.flows.cli.terminal import open_front

    with open_front(settings, logging.WARNING if known.json else logging.INFO) as call:
        asked = {"prompts": known.prompts, "max_kl": known.max_kl, "resume": NEVER if known.fresh else AUTO}
        report = call("reread", reference=reference, spec=spec, **asked)
    if not known.json:
        return print_verdict(report, known.detailed_exit_code)
    [check] = report.checks
    found = {"run_id": report.candidate, "reference": report.baseline, "verdict": check.verdict, "words": check.words}
    found["metrics"] = _read_metrics(report.candidate, settings)
    print(json.dumps(found, ensure_ascii=False, indent=2))
    open_code = INCONCLUSIVE_EXIT_CODE if known.detailed_exit_code else 0
    return {"fail": GateFailedError.exit_code, "inconclusive": open_code}.get(check.verdict, 0)


def _read_metrics(run_id: str, settings: "Settings") -> list["Row"]:
    from assayline.report.make import open_database
    from assayline.store.database import read_rows

    query = """
        select metric, statistic, value, low, high, n, unit from metric_values where run_id = ? and source = '95_reread'
    """
    return open_database(settings).run(lambda connection: read_rows(connection, query, run_id))


def _print_plan(reference: str, spec: "EvalSpec", prompts: int, settings: "Settings") -> None:
    from assayline.run.driver import FrontEnd
    from assayline.run.reread import check_same_prompts, find_reading, find_reference, plan_reading
    from assayline.store.thread import DatabaseThread
    from assayline.words import count

    front = FrontEnd(settings)
    settings.pass_on_token()
    known = DatabaseThread(settings).run(lambda connection: find_reference(connection, reference, prompts))
    check_same_prompts(known, spec)
    tokens = sum(len(row["output_token_ids"]) for row in known.answers)
    print_text(f"reference {known.run_id}: {count(len(known.answers), 'answer')}, {tokens:,} tokens")
    reads: list[str] = []
    for what in ("itself", "itself, in other batches"):
        found = find_reading(plan_reading(known, known.spec, reads, prompts), known, front)
        print_text(f"reading   {what}: {f'stored as run {found}' if found else 'to do'}")
        reads += [found or "RUN"]
    print_text(f"reading   by {spec.model_name}, {spec.engine.backend}, {json.dumps(spec.engine.args)}: to do")
    print_text("Dry run: nothing was read or stored.")
