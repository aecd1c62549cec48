"""A benchmark in words: Markdown for its page in Prefect, and the tables at the end of a command."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from assayline.benchmark_result import SHOWN, Measured
from assayline.report.document import Table
from assayline.report.words import escape_markdown, show_value
from flows.summary import print_text

MEASURED = ("configuration", "metric", "repeats", "median", "lowest", "highest", "unit")
POINT_COLUMNS = (
    "load",
    "answered /s",
    "tokens /s",
    "first token p50",
    "first token p99",
    "end to end p50",
    "in flight",
    "note",
)
COMPARED = ("configuration", "metric", "change", "95 % interval", "p", "verdict")


def describe_benchmark(benchmark_id: str, measured: Sequence[Measured]) -> str:
    """Markdown: medians and ranges, then what differs from the first configuration."""
    return "\n\n".join(
        [
            f"# {escape_markdown(benchmark_id)}",
            "Median over the repeats, and their range.",
            _write_markdown(MEASURED, _list_medians(measured)),
            f"Compared with {escape_markdown(measured[0].label)}:",
            _write_markdown(COMPARED, _list_comparisons(measured)),
        ]
    )


def print_benchmark(benchmark_id: str, measured: Sequence[Measured], console: Console) -> None:
    """Medians and ranges, then what differs from the first configuration."""
    print_text(f"\nBenchmark {benchmark_id}: median over the repeats, and their range", console)
    _print_table(MEASURED, _list_medians(measured), console)
    if len(measured) > 1:
        print_text(
            f"Compared with {measured[0].label}; p is Holm's where a metric has a limit in gate.max_slowdown", console
        )
        _print_table(COMPARED, _list_comparisons(measured), console)


def print_points(benchmark_id: str, table: Table, console: Console) -> None:
    """The points of a sweep, in as many columns as a terminal has room for."""
    print_text(f"\nBenchmark {benchmark_id}: latency under load", console)
    shown = [index for index, column in enumerate(table.columns) if column in POINT_COLUMNS]
    rows = [[row[index] for index in shown] for row in table.rows]
    _print_table([table.columns[index] for index in shown], rows, console)


def _list_medians(measured: Sequence[Measured]) -> list[list[str]]:
    """One row per configuration and metric that it has a value of."""
    return [
        [one.label, metric, *_show_range(one.metrics[metric])]
        for metric in SHOWN
        for one in measured
        if metric in one.metrics and one.metrics[metric]["repeats"]
    ]


def _show_range(row: dict[str, Any]) -> list[str]:
    values = [show_value(row[name]) for name in ("median_value", "lowest_value", "highest_value")]
    return [str(row["repeats"]), *values, row["unit"]]


def _list_comparisons(measured: Sequence[Measured]) -> list[list[str]]:
    return [
        [one.label, metric, *_show_comparison(one.comparisons[metric])]
        for one in measured
        for metric in SHOWN
        if metric in one.comparisons
    ]


def _show_comparison(row: dict[str, Any]) -> list[str]:
    base = abs(row["baseline_median"])
    relative = [
        "–" if end is None or not base else f"{end / base:+.1%}" for end in (row["shift_low"], row["shift_high"])
    ]
    p_value = row["p_value"] if row["holm_p"] is None else row["holm_p"]
    return [
        "–" if row["relative_shift"] is None else f"{row['relative_shift']:+.1%}",
        "" if row["shift_low"] is None or not base else f"{relative[0]} to {relative[1]}",
        "" if p_value is None else f"{p_value:.2g}",
        row["verdict"].replace("_", " "),
    ]


def _write_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([escape_markdown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    grid = Grid()
    for name in columns:
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*(cell.replace("[", "\\[") for cell in row))
    console.print(grid)
