"""Tables and lines that a command prints at its end.

Names and paths come from specs and machines. They are printed as plain text, without markup or terminal control
characters.
"""

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from assayline.benchmark.campaign import campaign_dir, read_benchmark
from assayline.benchmark.configurations import LEAST_RUNS
from assayline.comparison.gate import GateReport
from assayline.evaluation.run import RunResult
from assayline.flows.cli.words import plain_console, print_table, print_text
from assayline.report.comparison import show_label, tabulate_comparisons, tabulate_medians, tabulate_quality
from assayline.report.document import Column, Table, tabulate
from assayline.report.make import HTML_NAME
from assayline.report.noise import NoiseRows, read_noise, say_noise, tabulate_noise
from assayline.report.sweep import POINTS, BenchmarkRows, compose_benchmark, label_points, read_benchmark_rows
from assayline.runs.viewer import find_viewer
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.thread import DatabaseThread
from assayline.words import (
    name_metric,
    show_known,
    show_limit,
    show_metric,
    show_number,
    show_range,
)

METRICS = (
    Column("metric", "metric"),
    Column("value", lambda row: show_metric(row["value"], row["unit"]), show_number),
    Column("95% CI", lambda row: _show_range(row["low"], row["high"], row["unit"]), show_number),
    Column("n", "n", show_known),
)
LIMITS = (
    Column("limit on", lambda row: name_metric(row["check"])),
    Column("verdict", "verdict"),
    Column("run", lambda row: show_metric(row["candidate"], row["unit"]), show_number),
    Column("baseline", lambda row: show_metric(row["baseline"], row["unit"]), show_number),
    Column("limit", lambda row: show_limit(row["check"], row["limit"], row["unit"], row["baseline"]), show_number),
)


def _show_range(low: float | None, high: float | None, unit: str | None) -> str:
    return show_range(show_metric(low, unit), show_metric(high, unit))


def print_result(result: RunResult, spec: EvalSpec, console: Console) -> None:
    """Print the table of metrics, the paths of database and report, and where to find the rest."""
    print_text(f"\n{spec.model_name} on {spec.prompts.set_name}, run {result.run_id}", console)
    print_table(tabulate_metrics(result), console)
    print_text(f"Database: {result.database}", console)
    for note in result.notes:
        print_text(note, console)
    if result.report:
        print_text(f"Report: {result.report}", console)
    if viewer := find_viewer(load_settings().data_dir, result.run_id):
        print_text(f"Viewer: {viewer}", console)
    print_text(f"SQL, in any DuckDB client: from metric_value where run_id = '{result.run_id}'", console)
    print_text(f"Answers: assayline view {result.run_id}", console)


def tabulate_metrics(result: RunResult) -> Table:
    return tabulate("Metrics of the run", METRICS, result.metrics)


def print_gate(report: GateReport, console: Console) -> None:
    """Print the table of limits, then a line per limit."""
    print_text(f"\nRun {report.candidate} compared with baseline {report.baseline}", console)
    print_table(tabulate("Limits", LIMITS, map(dataclasses.asdict, report.checks)), console)
    for line in dict.fromkeys(f"{check.verdict}: {check.words}" for check in report.checks):
        print_text(line, console)


def print_benchmark(rows: BenchmarkRows, headline: Sequence[str], console: Console) -> None:
    """Print quality and cost, medians, the comparisons, and the headline of the page."""
    if len(rows.frontier) > 1 and any(row["recovery"] is not None or row["obstacle"] for row in rows.frontier):
        print_table(tabulate_quality(rows.frontier, is_short=True), console)
    if rows.measured:
        print_text(f"\nBenchmark {rows.benchmark_id}: median and range over the repeats", console)
        print_table(tabulate_medians(rows.measured), console)
    if any(row["verdict"] != "too_few" for one in rows.measured for row in one.comparisons.values()):
        print_text("Compared with the best, or the baseline", console)
        print_table(tabulate_comparisons(rows.measured, is_short=True), console)
    for row in rows.frontier:
        if row["obstacle"]:
            print_text(f"{show_label(row['configuration'])} is not measured: {row['obstacle']}", console)
    for sentence in headline:
        print_text(sentence, console)


def print_noise(noise: NoiseRows, spec: EvalSpec, console: Console) -> None:
    """Print how much equal runs differ."""
    if noise.metrics:
        print_table(tabulate_noise(noise), console)
    for sentence in say_noise(noise):
        print_text(sentence, console)
    if spec.is_longest_first and noise.metrics and "longest answers first" not in noise.metrics[0]["environment"]:
        print_text(
            "Lengths of answers were unknown, so requests were sent as given. Later runs send the longest first, and "
            "this noise does not apply to them. hint: measure again.",
            console,
        )


POINT_HEADERS = (
    "load",
    "answered (req/s)",
    "output tokens/s",
    "TTFT p50",
    "TTFT p99",
    "E2E p50",
    "in flight",
    "note",
)


def print_conclusion(benchmark_id: str, settings: Settings) -> None:
    """Print the tables at the end of a command."""
    plan = read_benchmark(benchmark_id, settings)
    console = plain_console()
    rows = DatabaseThread(settings).run(lambda connection: read_benchmark_rows(connection, benchmark_id, plan))
    if plan.profile is None:
        print_benchmark(rows, [] if rows.noise else compose_benchmark(rows).headline, console)
        if len(plan.cells) == 1 and plan.cells[0].repeats >= LEAST_RUNS:
            noise = rows.noise or DatabaseThread(settings).run(lambda connection: read_noise(connection, benchmark_id))
            print_noise(noise, plan.cells[0].spec, console)
    else:
        print_points(rows, console)
    report = campaign_dir(settings, "benchmark", benchmark_id) / HTML_NAME
    if report.exists():
        print_text(f"Report: {report}", console)


def print_points(rows: BenchmarkRows, console: Console) -> None:
    """Print the points of a sweep, with the columns that fit a terminal."""
    print_text(f"\nBenchmark {rows.benchmark_id}: latency under load", console)
    columns = [column for column in POINTS if column.header in POINT_HEADERS]
    print_table(tabulate("Points", columns, label_points(rows.points)), console)
    if rows.search:
        print_text(rows.search, console)
