"""What was run in words: the tables at the end of a command.

Names and folders are what a spec and a machine call theirs. Here they are text: no markup of the terminal's, no command
to the terminal, and quoted where a person is to paste them into a shell.
"""

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from assayline.benchmark.result import Measured
from assayline.comparison.gate import GateReport
from assayline.evaluation.run import RunResult
from assayline.flows.cli.words import print_table, print_text
from assayline.report.comparison import say_trades, tabulate_comparisons, tabulate_medians
from assayline.report.document import Column, Table, tabulate
from assayline.spec.evaluation import EvalSpec
from assayline.words import (
    show_known,
    show_value,
)

METRICS = (
    Column("metric", "metric"),
    Column("value", "value", show_value),
    Column("unit", "unit"),
    Column("95% CI", ("low", "high"), show_value),
    Column("n", "n", show_known),
)
LIMITS = (
    Column("limit on", "check"),
    Column("verdict", "verdict"),
    Column("candidate", "candidate", show_value),
    Column("baseline", "baseline", show_value),
    Column("limit", "limit", show_value),
    Column("unit", "unit"),
)


def print_result(result: RunResult, spec: EvalSpec, console: Console) -> None:
    """The metrics table, where the database is, and how to look further."""
    print_text(f"\n{spec.model} on {spec.prompts.set_name}, run {result.run_id}", console)
    print_table(tabulate_metrics(result), console)
    print_text(f"Database: {result.database}", console)
    for note in result.notes:
        print_text(note, console)
    if result.report:
        print_text(f"Report: {result.report}", console)
    print_text(f"Look further, in any DuckDB client or with:\n  {next_command(result)}", console)


def tabulate_metrics(result: RunResult) -> Table:
    return tabulate("Metrics of the run", METRICS, result.metrics)


TIMES = "select metric, statistic, value, low, high from metric_value where run_id = ? and unit = ?"


def next_command(result: RunResult) -> str:
    """A line for a shell that shows the run's times, whatever the folders are called."""
    database, run_id = (json.dumps(text, ensure_ascii=False) for text in (result.database, result.run_id))
    query = f'.sql("{TIMES}", params=[{run_id}, "s"]).show(max_rows=100)'
    code = f"import duckdb; duckdb.connect({database}, read_only=True){query}"
    return f"{shlex.quote(_python())} -c {shlex.quote(code)}"


def _python() -> str:
    """This interpreter as a person would type it here."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def print_gate(report: GateReport, console: Console) -> None:
    """The table of limits, then what was found, a line each."""
    print_text(f"\nRun {report.candidate} against {report.baseline}", console)
    print_table(tabulate("Limits", LIMITS, map(dataclasses.asdict, report.checks)), console)
    for check in report.checks:
        print_text(f"{check.verdict}: {check.words}", console)


def print_benchmark(benchmark_id: str, measured: Sequence[Measured], console: Console) -> None:
    """Medians and ranges, then what differs from the first configuration."""
    print_text(f"\nBenchmark {benchmark_id}: median over the repeats, and their range", console)
    print_table(tabulate_medians(measured), console)
    if len(measured) > 1:
        print_text(f"Against {measured[0].label}", console)
        print_table(tabulate_comparisons(measured), console)
        for line in say_trades(measured):
            print_text(line, console)
