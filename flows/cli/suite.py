"""The command line of `suite`: a dry run, the flow and the decision."""

import os
from typing import TYPE_CHECKING, Any, Literal

from assayline.errors import SpecError, StoreError
from assayline.flows.cli.options import add_dry_run, make_parser, parse_with_dry_run
from assayline.flows.cli.process import find_prefect_api, prefect_api
from assayline.flows.cli.words import parse_words, plain_console, print_table, print_text

if TYPE_CHECKING:
    from rich.console import Console

    from assayline.benchmark.suite import Cell
    from assayline.settings import Settings
    from assayline.spec.suite import SuiteSpec

EPILOG = """SUITE is a YAML file with evaluations and models (docs/guides/suites.md). Rerun the command to go on with a
suite that was interrupted.

Exit codes: 0 GO, 1 NO-GO, 13 INCONCLUSIVE, 2 suite or spec, 3 prompts, 4 model, 6 database or files,
7 a run did not complete (the others are measured and judged)."""
PARSER = make_parser("suite", EPILOG, "%(prog)s SUITE [--fresh | --rejudge] [--dry-run [engine]]")
PARSER.add_argument("--fresh", action="store_true", help="start a new suite even if one is unfinished")
PARSER.add_argument(
    "--rejudge",
    action="store_true",
    help="judge the newest complete suite again by today's baselines and limits, without running anything",
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

    from assayline.benchmark.suite import list_cells
    from assayline.files import check_data_folder
    from assayline.settings import load_settings
    from assayline.spec.suite import load_suite

    settings = load_settings()
    check_data_folder(settings.data_dir)
    settings.pass_on_token()
    wanted = load_suite(path)
    if known.dry_run:
        print_cells(wanted, list_cells(wanted), settings, known.fresh, known.dry_run == "engine")
        return 0
    from assayline.benchmark.decision import NoGoError
    from assayline.comparison.gate import INCONCLUSIVE_EXIT_CODE

    try:
        result = _decide(wanted, "rejudge" if known.rejudge else "never" if known.fresh else "auto", settings)
        code = 0 if result["decision"] == "GO" else INCONCLUSIVE_EXIT_CODE
    except NoGoError as error:
        result, code = error.result, error.exit_code
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("The suite is undecided. hint: rerun the command to go on with it.")
        raise
    print_decision(result, plain_console())
    return code


def _decide(wanted: "SuiteSpec", resume: "Literal['auto', 'never', 'rejudge']", settings: "Settings") -> dict[str, Any]:
    if find_prefect_api(os.environ) is None:
        from assayline.flows.cli.terminal import open_terminal
        from assayline.run.campaign import run_suite

        with open_terminal(settings) as front:
            return run_suite(wanted, front, resume)
    with prefect_api():
        from assayline.flows.suite import suite

        return suite(wanted, resume)


def print_decision(result: dict[str, Any], console: "Console") -> None:
    """Print the table of evaluations, the report's path and, last, the decision."""
    from assayline.report.suite import tabulate_evaluations

    print_text(f"\nSuite {result['suite_id']}", console)
    print_table(tabulate_evaluations(result["evaluations"], is_short=True), console)
    for row in result["evaluations"]:
        if row.get("obstacle"):
            print_text(f"{row['evaluation']} · {row['model']} is not judged: {row['obstacle']}", console)
    print_text(result["risk"], console)
    print_text(f"Report: {result['report']}", console)
    print_text(result["headline"], console)


def print_cells(wanted: "SuiteSpec", cells: "list[Cell]", settings: "Settings", fresh: bool, asks_vllm: bool) -> None:
    """Print the runs of a suite, and the suite that would go on."""
    from assayline.benchmark.decision import check_repeats, foresee_reaches
    from assayline.benchmark.suite import find_undecided
    from assayline.flows.cli.dry_run import check_runs, count_baseline
    from assayline.store.thread import DatabaseThread
    from assayline.words import count

    console = plain_console()
    check_repeats(cells)
    plan = None if fresh else find_undecided(cells, settings)
    done = {key: len(runs) for key, runs in plan.runs.items()} if plan else {}
    total, left = sum(cell.repeats for cell in cells), sum(cell.repeats - done.get(cell.key, 0) for cell in cells)
    known = f" of suite {plan.suite_id}" if plan else ""
    print_text(f"Suite {wanted.name}: {left} of {count(total, 'run')}{known} left:", console)
    for cell in cells:
        tier = f"{cell.tier}, weight {cell.weight:g}" if cell.tier == "supporting" else cell.tier
        against = f"against {cell.baseline}" if cell.baseline else "without a baseline"
        against += ", which is measured again in turn" if cell.measures else ""
        runs = f"{done.get(cell.key, 0)} of {count(cell.repeats, 'run')} done"
        print_text(f"  {cell.label}: {tier}, {against}, {runs}", console)
    database = DatabaseThread(settings)
    prompts: dict[str | None, int] = {}
    lost: list[str] = []
    for name in dict.fromkeys(cell.baseline for cell in cells if cell.baseline):
        try:
            prompts[name] = count_baseline(name, database)
        except (SpecError, StoreError):
            lost.append(name)
    for line in foresee_reaches(cells, prompts):
        print_text(line, console)
    if lost:
        print_text(
            f"Not pinned, so their evaluations would be inconclusive: {', '.join(lost)}. hint: pin completed runs with "
            "`assayline baseline pin NAME RUN_ID`.",
            console,
        )
    for note in check_runs([(cell.label, cell.spec) for cell in cells], settings, asks_vllm):
        print_text(note, console)
    print_text("Dry run: nothing was run or stored.", console)
