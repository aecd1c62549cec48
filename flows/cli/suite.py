"""The command line of `suite`: a dry run, the flow and the decision."""

from typing import TYPE_CHECKING

from assayline.errors import SpecError, StoreError
from assayline.flows.cli.options import add_dry_run, make_parser, parse_with_dry_run
from assayline.flows.cli.words import parse_words, print_table, print_text

if TYPE_CHECKING:
    from assayline.benchmark.campaign import Campaign
    from assayline.run.campaign import SuiteResult
    from assayline.settings import Settings

EPILOG = """SUITE is a YAML file with evaluations and models (docs/guides/suites.md). Rerun the command to go on with a
suite that was interrupted.

Exit codes: 0 GO, 1 NO-GO, 13 INCONCLUSIVE, 2 suite or spec, 3 prompts, 4 model, 6 database or files,
7 a run did not complete (the others are measured and judged)."""
PARSER = make_parser("suite", EPILOG, "%(prog)s SUITE [--fresh | --rejudge] [--nightly] [--dry-run [engine]]")
PARSER.add_argument("--fresh", action="store_true", help="start a new suite even if one is unfinished")
PARSER.add_argument(
    "--rejudge",
    action="store_true",
    help="judge the newest complete suite again by today's baselines and limits, without running anything",
)
PARSER.add_argument(
    "--nightly", action="store_true", help="decide as one of 60 nights, with the evidence that a schedule needs"
)
add_dry_run(PARSER, "check all specs and list the runs without running them")


def run(arguments: list[str]) -> int:
    """Run the suite that the command line names and print its decision. Return the exit code."""
    known, rest = parse_with_dry_run(PARSER, arguments)
    path, fields = parse_words(rest, vars(known))
    if path is None:
        PARSER.error("pass a SUITE")
    if known.rejudge and (known.fresh or known.dry_run):
        PARSER.error("--rejudge runs nothing; leave out --fresh and --dry-run")
    if fields:
        raise SpecError(f"Unknown option --{next(iter(fields))}. hint: set `overrides` of an evaluation in {path}.")

    from assayline.benchmark.suite import plan_suite
    from assayline.files import check_data_folder
    from assayline.settings import load_settings
    from assayline.spec.suite import load_suite

    settings = load_settings()
    check_data_folder(settings.data_dir)
    settings.pass_on_token()
    wanted = load_suite(path)
    resume = "rejudge" if known.rejudge else "never" if known.fresh else "auto"
    if known.dry_run:
        plan = plan_suite(wanted, settings, resume, is_nightly=known.nightly)
        print_cells(plan, settings, known.nightly, known.dry_run == "engine")
        return 0
    from assayline.benchmark.decision import NoGoError
    from assayline.comparison.gate import INCONCLUSIVE_EXIT_CODE
    from assayline.flows.cli.terminal import open_front

    try:
        with open_front(settings) as call:
            result = call("suite", suite=wanted, resume=resume, is_nightly=known.nightly)
        code = 0 if result.decision == "GO" else INCONCLUSIVE_EXIT_CODE
    except NoGoError as error:
        result, code = error.result, error.exit_code
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("The suite is undecided. hint: rerun the command to go on with it.")
        raise
    print_decision(result)
    return code


def print_decision(result: "SuiteResult") -> None:
    """Print the table of evaluations, the report's path and, last, the decision."""
    from assayline.report.suite import tabulate_evaluations

    print_text(f"\nSuite {result.suite_id}")
    print_table(tabulate_evaluations(result.evaluations))
    for row in result.evaluations:
        if row.get("obstacle"):
            print_text(f"{row['evaluation']} · {row['model']} is not judged: {row['obstacle']}")
    print_text(result.risk)
    print_text(f"Report: {result.report}")
    print_text(result.headline)


def print_cells(plan: "Campaign", settings: "Settings", is_nightly: bool, asks_vllm: bool) -> None:
    """Print the runs of a suite, and the suite that would go on."""
    from assayline.benchmark.campaign import campaign_dir, count_done
    from assayline.benchmark.decision import check_repeats, foresee_reaches
    from assayline.flows.cli.dry_run import check_runs, count_baseline
    from assayline.store.thread import DatabaseThread
    from assayline.words import count

    cells = plan.cells
    check_repeats([cell for cell in cells if not cell.is_baseline], is_nightly=is_nightly)
    done, total = count_done(plan, settings), len(plan.order)
    known = f" of suite {plan.campaign_id}" if campaign_dir(settings, "suite", plan.campaign_id).exists() else ""
    print_text(f"Suite {plan.name}: {total - done.total()} of {count(total, 'run')}{known} left:")
    for cell in cells:
        tier = f"{cell.tier}, weight {cell.weight:g}" if cell.tier == "supporting" else cell.tier
        against = f"against {cell.baseline}" if cell.baseline else "without a baseline"
        against += ", which is measured again in turn" if cell.measures else ""
        runs = f"{done[cell.key]} of {count(cell.repeats, 'run')} done"
        print_text(f"  {cell.label}: {tier}, {against}, {runs}")
    database = DatabaseThread(settings)
    prompts: dict[str | None, int] = {}
    lost: list[str] = []
    for name in dict.fromkeys(cell.baseline for cell in cells if cell.baseline):
        try:
            prompts[name] = count_baseline(name, database)
        except (SpecError, StoreError):
            lost.append(name)
    for line in foresee_reaches(cells, prompts):
        print_text(line)
    if lost:
        print_text(
            f"Not pinned, so their evaluations would be inconclusive: {', '.join(lost)}. hint: pin completed runs with "
            "`assayline baseline pin NAME RUN_ID`.",
        )
    for note in check_runs([(cell.label, cell.spec) for cell in cells], settings, asks_vllm):
        print_text(note)
    print_text("Dry run: nothing was run or stored.")
