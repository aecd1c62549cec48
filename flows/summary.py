"""The run in words: Markdown for its page in Prefect, and the table at the end of a command."""

from rich.console import Console
from rich.table import Table

from assayline.evaluation import RunResult
from assayline.spec import EvalSpec


def next_query(result: RunResult) -> str:
    """A query to go on with."""
    return f"from latency_percentile where run_id = '{result.run_id}'"


def describe_run(result: RunResult, spec: EvalSpec) -> str:
    """Markdown: what was run, the metrics, and the query to go on with."""
    rows = "\n".join(f"| {row['metric']} | {show_value(row)} | {row['unit']} |" for row in result.metrics)
    return f"""# {spec.name}

`{spec.model}` on `{spec.prompts.set_name}`, run `{result.run_id}`: {result.answered_requests} requests answered.

| metric | value | unit |
|---|---|---|
{rows}

Go on in `{result.database}`:

```sql
{next_query(result)};
from stg_requests where run_id = '{result.run_id}' limit 20;
```
"""


def show_value(row: dict[str, object]) -> str:
    """A value for people: undefined is a dash, numbers have four significant digits."""
    value = row["value"]
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,.0f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def print_result(result: RunResult, spec: EvalSpec, console: Console) -> None:
    """The metrics table, where the database is, and how to look further."""
    table = Table(title=f"{spec.model} on {spec.prompts.set_name}, run {result.run_id}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for row in result.metrics:
        table.add_row(str(row["metric"]), show_value(row), str(row["unit"] or ""))
    console.print(table)
    console.print(f"Database: {result.database}", highlight=False, soft_wrap=True)
    console.print(
        "Look further, in any DuckDB client or with:\n"
        f"  python -c \"import duckdb; duckdb.connect('{result.database}', read_only=True)"
        f'.sql(\\"{next_query(result)}\\").show()"',
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
