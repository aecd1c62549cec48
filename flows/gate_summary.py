"""A gate's limits in words: Markdown for its page in Prefect, and the table at the end of a command."""

from typing import Any

from rich.console import Console
from rich.table import Table

from assayline.gate_report import GateReport
from assayline.report.words import as_code, escape_markdown, show_value
from flows.summary import print_text

COLUMNS = ("limit on", "verdict", "candidate", "baseline", "limit", "unit")


def describe_gate(report: GateReport) -> str:
    """Markdown: every limit with its verdict, and what was found."""
    rows = "\n".join(
        f"| {' | '.join(escape_markdown(cell) for cell in _cells(check))} |"
        for check in ({name: getattr(check, name) for name in check.__slots__} for check in report.checks)
    )
    found = "\n".join(f"- {escape_markdown(check.words)}" for check in report.checks)
    return f"""# {"Broken" if report.broken else "Held"}

Run {as_code(report.candidate)} against {as_code(report.baseline)}.

| {" | ".join(COLUMNS)} |
|---|---|---:|---:|---:|---|
{rows}

{found}
"""


def print_gate(report: dict[str, Any], console: Console) -> None:
    """The table of limits, then what was found, a line each."""
    print_text(f"\nRun {report['candidate']} against {report['baseline']}", console)
    table = Table()
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("candidate", "baseline", "limit") else "left")
    for check in report["checks"]:
        table.add_row(*(cell.replace("[", "\\[") for cell in _cells(check)))
    console.print(table)
    for check in report["checks"]:
        print_text(f"{check['verdict']}: {check['words']}", console)


def _cells(check: dict[str, Any]) -> list[str]:
    numbers = [show_value(check[name]) for name in ("candidate", "baseline", "limit")]
    return [check["check"], check["verdict"], *numbers, check["unit"]]
