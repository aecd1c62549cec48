"""The run in words: Markdown for its page in Prefect, and the table at the end of a command."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from assayline.evaluation import RunResult
from assayline.spec import EvalSpec

COLUMNS = ("metric", "value", "unit", "95 % interval", "n")


def next_query(result: RunResult) -> str:
    """A query to go on with."""
    return f"from latency_percentile where run_id = '{result.run_id}'"


def describe_run(result: RunResult, spec: EvalSpec) -> str:
    """Markdown: what was run, the metrics, and the query to go on with."""
    rows = "\n".join(f"| {' | '.join(_cells(row))} |" for row in result.metrics)
    return f"""# {spec.name}

`{spec.model}` on `{spec.prompts.set_name}`, run `{result.run_id}`: {result.answered_requests} requests answered.

| {" | ".join(COLUMNS)} |
|---|---:|---|---|---:|
{rows}

Go on in `{result.database}`:

```sql
{next_query(result)};
from stg_requests where run_id = '{result.run_id}' limit 20;
```
"""


def print_result(result: RunResult, spec: EvalSpec, console: Console) -> None:
    """The metrics table, where the database is, and how to look further."""
    console.print(f"\n{spec.model} on {spec.prompts.set_name}, run {result.run_id}", highlight=False, soft_wrap=True)
    table = Table()
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("value", "n") else "left")
    for row in result.metrics:
        table.add_row(*_cells(row))
    console.print(table)
    console.print(f"Database: {result.database}", highlight=False, soft_wrap=True)
    console.print(
        "Look further, in any DuckDB client or with:\n"
        f"  {_python()} -c \"import duckdb; duckdb.connect('{result.database}', read_only=True)"
        f'.sql(\\"{next_query(result)}\\").show()"',
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def show_value(value: object) -> str:
    """A value for people: undefined is a dash, numbers have four significant digits."""
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _python() -> str:
    """This interpreter as a person would type it here."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _cells(row: dict[str, Any]) -> list[str]:
    interval = "" if row["low"] is None else f"{show_value(row['low'])} to {show_value(row['high'])}"
    n = "" if row["n"] is None else show_value(row["n"])
    return [row["metric"], show_value(row["value"]), row["unit"], interval, n]
