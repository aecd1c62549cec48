"""The end of a benchmark: what was measured, on its page in Prefect, in its report, and in the terminal."""

import json
from dataclasses import asdict
from typing import Any

from prefect import get_run_logger
from rich.console import Console

from assayline.benchmark.configurations import read_plan
from assayline.benchmark.plan import Configuration, Plan, benchmark_dir
from assayline.benchmark.result import Measured, read_measured
from assayline.errors import AssaylineError
from assayline.report.document import Document, tabulate
from assayline.report.make import HTML_NAME, Written, put_on_page
from assayline.report.sweep import POINTS, BenchmarkRows, label_points, read_benchmark_rows
from assayline.settings import Settings
from assayline.store.thread import DatabaseThread
from flows.cli.tables import print_benchmark
from flows.cli.words import plain_console, print_table, print_text
from tasks.publish import publish

POINT_HEADERS = (
    "load",
    "answered /s",
    "tokens /s",
    "first token p50",
    "first token p99",
    "end to end p50",
    "in flight",
    "note",
)


def conclude_benchmark(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Reads what was measured, and shows it. Returns it as the flow's result."""
    measured = _measure(plan, configurations, settings)
    report = _write_report(plan, settings)
    if report:
        _publish(json.loads(plan.spec_json)["name"], report.document)
    found = {"benchmark_id": plan.benchmark_id, "measured": [asdict(one) for one in measured]}
    return {**found, "report": str(report.html.absolute())} if report else found


def print_conclusion(benchmark_id: str, settings: Settings) -> None:
    """Tables at the end of a command."""
    plan, configurations = read_plan(benchmark_id, settings)
    console = plain_console()
    if plan.profile is None:
        print_benchmark(benchmark_id, _measure(plan, configurations, settings), console)
    else:
        rows = DatabaseThread(settings).run(lambda connection: read_benchmark_rows(connection, benchmark_id))
        print_points(rows, console)
    report = benchmark_dir(settings, benchmark_id) / HTML_NAME
    if report.exists():
        print_text(f"Report: {report}", console)


def print_points(rows: BenchmarkRows, console: Console) -> None:
    """The points of a sweep, in as many columns as a terminal has room for."""
    print_text(f"\nBenchmark {rows.benchmark_id}: latency under load", console)
    columns = [column for column in POINTS if column.header in POINT_HEADERS]
    print_table(tabulate("Points", columns, label_points(rows.points)), console)


def _measure(plan: Plan, configurations: list[Configuration], settings: Settings) -> list[Measured]:
    labels = {one.config_id: one.label for one in configurations}
    limits = {str(name): limit for name, limit in configurations[0].spec.gate.max_slowdown.items()}
    return DatabaseThread(settings).run(lambda connection: read_measured(connection, plan.benchmark_id, labels, limits))


def _write_report(plan: Plan, settings: Settings) -> Written | None:
    """The report, in the benchmark's folder. One that cannot be written is a warning, as the runs are stored."""
    from assayline.report.make import make_benchmark_report

    try:
        written = make_benchmark_report(settings, plan.benchmark_id)
    except (AssaylineError, OSError) as error:
        get_run_logger().warning(
            "The report was not written: %s `assayline report --benchmark %s` tries again.",
            error,
            plan.benchmark_id,
        )
        return None
    get_run_logger().info("Report: %s", written.html.absolute())
    return written


def _publish(name: str, document: Document) -> None:
    """The results are stored: an API that cannot take their picture does not fail the benchmark."""
    try:
        publish("benchmark", name, put_on_page(document), document.headline[0])
    except Exception as error:
        get_run_logger().error("The benchmark's page has no table: %s: %s", type(error).__name__, error)
