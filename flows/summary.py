"""The run in words: Markdown for its page in Prefect, and the table at the end of a command.

Names and folders are what a spec and a machine call theirs. Here they are text: no markup of the terminal's or of
Markdown, and quoted where a person is to paste them into a shell.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from assayline.evaluation import RunResult
from assayline.report.words import as_code, escape_markdown, show_value
from assayline.spec import EvalSpec

COLUMNS = ("metric", "value", "unit", "95 % interval", "n")


def describe_run(result: RunResult, spec: EvalSpec) -> str:
    """Markdown: what was run, the metrics, and the query to go on with."""
    rows = "\n".join(f"| {' | '.join(_cells(row))} |" for row in result.metrics)
    run_id = _quote_sql(result.run_id)
    return f"""# {escape_markdown(spec.name)}

{as_code(spec.model)} on {as_code(spec.prompts.set_name)}, run {as_code(result.run_id)}: \
{result.answered_requests} requests answered.

| {" | ".join(COLUMNS)} |
|---|---:|---|---|---:|
{rows}

Go on in {as_code(result.database)}:

```sql
from latency_percentile where run_id = {run_id};
from stg_requests where run_id = {run_id} limit 20;
```
"""


def print_result(result: RunResult, spec: EvalSpec, console: Console) -> None:
    """The metrics table, where the database is, and how to look further."""
    print_text(f"\n{spec.model} on {spec.prompts.set_name}, run {result.run_id}", console)
    table = Table()
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("value", "n") else "left")
    for row in result.metrics:
        table.add_row(*_cells(row))
    console.print(table)
    print_text(f"Database: {result.database}", console)
    if result.report:
        print_text(f"Report: {result.report}", console)
    print_text(f"Look further, in any DuckDB client or with:\n  {next_command(result)}", console)


def next_command(result: RunResult) -> str:
    """A line for a shell that shows the run's latencies, whatever the folders are called."""
    database, run_id = (json.dumps(text, ensure_ascii=False) for text in (result.database, result.run_id))
    query = f'.sql("from latency_percentile where run_id = ?", params=[{run_id}]).show()'
    code = f"import duckdb; duckdb.connect({database}, read_only=True){query}"
    return f"{shlex.quote(_python())} -c {shlex.quote(code)}"


def _python() -> str:
    """This interpreter as a person would type it here."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def print_text(text: str, console: Console) -> None:
    """Prints a line as it is."""
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _quote_sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _cells(row: dict[str, Any]) -> list[str]:
    interval = "" if row["low"] is None else f"{show_value(row['low'])} to {show_value(row['high'])}"
    n = "" if row["n"] is None else show_value(row["n"])
    return [row["metric"], show_value(row["value"]), row["unit"], interval, n]
