"""Tables and lines that a command prints at its end.

Names and paths come from specs and machines. They are printed as plain text, without markup or terminal control
characters.
"""

from collections.abc import Sequence

from assayline.benchmark.campaign import campaign_dir, read_benchmark
from assayline.benchmark.configurations import LEAST_RUNS
from assayline.comparison.gate import GateReport
from assayline.flows.cli.words import print_page, print_table, print_text
from assayline.report.compared import tabulate_limits
from assayline.report.make import HTML_NAME
from assayline.report.measures import tabulate_metrics
from assayline.report.sweep import compose_benchmark, read_benchmark_rows
from assayline.run.evaluation import RunResult
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.database import Row
from assayline.store.thread import DatabaseThread
from assayline.store.viewer import find_viewer


def print_result(result: RunResult, spec: EvalSpec) -> None:
    """Print the table of metrics, the paths of database and report, and where to find the rest."""
    print_text(f"\n{spec.model_name} on {spec.prompts.set_name}, run {result.run_id}")
    print_table(tabulate_metrics(result.metrics))
    print_text(f"Database: {result.database}")
    for note in result.notes:
        print_text(note)
    if result.report:
        print_text(f"Report: {result.report}")
    if viewer := find_viewer(load_settings().data_dir, result.run_id):
        print_text(f"Viewer: {viewer}")
    print_text(f"SQL, in any DuckDB client: from metric_value where run_id = '{result.run_id}'")
    print_text(f"Answers: assayline view {result.run_id}")


def print_gate(report: GateReport) -> None:
    """Print the table of limits, then a line per limit."""
    print_text(f"\nRun {report.candidate} compared with baseline {report.baseline}")
    print_table(tabulate_limits("Limits", report.checks))
    for line in dict.fromkeys(f"{check.verdict}: {check.words}" for check in report.checks):
        print_text(line)


def print_conclusion(benchmark_id: str, settings: Settings) -> None:
    """Print the page of a benchmark at the end of a command."""
    plan = read_benchmark(benchmark_id, settings)
    rows = DatabaseThread(settings).run(lambda connection: read_benchmark_rows(connection, benchmark_id, plan))
    print_text(f"\nBenchmark {benchmark_id}")
    print_page(compose_benchmark(rows), *BENCHMARK_SECTIONS)
    if len(plan.cells) == 1 and plan.cells[0].repeats >= LEAST_RUNS and not rows.points:
        for sentence in say_doubts(rows.noise, plan.cells[0].spec):
            print_text(sentence)
    report = campaign_dir(settings, "benchmark", benchmark_id) / HTML_NAME
    if report.exists():
        print_text(f"Report: {report}")


BENCHMARK_SECTIONS = ("noise", "frontier", "speed", "repeats", "points")


def say_doubts(noise: Sequence[Row], spec: EvalSpec) -> list[str]:
    """Return why a measurement has no noise, or has one that does not apply to later runs."""
    if not noise:
        return [f"Noise is unknown: fewer than {LEAST_RUNS} runs count, or a newer benchmark has measured it."]
    if spec.is_longest_first and "longest answers first" not in noise[0]["environment"]:
        return [
            "Lengths of answers were unknown, so requests were sent as given. Later runs send the longest first, and "
            "this noise does not apply to them. hint: measure again."
        ]
    return []
