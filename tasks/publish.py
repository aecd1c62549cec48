"""What a person sees on the run's page: progress, the metrics table, and what to look at next."""

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

COLUMNS = ("metric", "value", "unit", "low", "high", "n", "source")
"""Of the metrics table, in the order in which the page has room for them."""


def _round(value: Any) -> Any:
    """A number with six significant digits."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


@task(name="publish-metrics", cache_policy=NO_CACHE, persist_result=False)
def publish_metrics(run_id: str, metrics: list[dict[str, Any]], summary: str, report: str | None = None) -> None:
    """Attaches the metrics table, a summary and the report, if there is one, to the flow run.

    The report as text, and not as a link: no browser follows one from a server's page to a file.
    """
    table = [{name: _round(row[name]) for name in COLUMNS} for row in metrics]
    create_table_artifact(key="metrics", table=table, description=f"Metrics of run {run_id}")
    create_markdown_artifact(key="summary", markdown=summary, description=f"Summary of run {run_id}")
    if report is not None:
        create_markdown_artifact(key="report", markdown=report, description=f"Report of run {run_id}")


@task(name="publish-gate", cache_policy=NO_CACHE, persist_result=False)
def publish_gate(run_id: str, summary: str) -> None:
    """Attaches the limits and what became of them to the flow run."""
    create_markdown_artifact(key="gate", markdown=summary, description=f"Limits of run {run_id}")


@task(name="publish-benchmark", cache_policy=NO_CACHE, persist_result=False)
def publish_benchmark(benchmark_id: str, summary: str) -> None:
    """Attaches medians, ranges and comparisons to the flow run."""
    create_markdown_artifact(key="benchmark", markdown=summary, description=f"Benchmark {benchmark_id}")


@task(name="publish-history", cache_policy=NO_CACHE, persist_result=False)
def publish_history(name: str, summary: str) -> None:
    """Attaches the history that a night belongs to to the flow run."""
    create_markdown_artifact(key="history", markdown=summary, description=f"History of {name}")


@task(name="publish-leaderboard", cache_policy=NO_CACHE, persist_result=False)
def publish_leaderboard(prompt_set: str, summary: str) -> None:
    """Attaches the leaderboard of a night's prompt set to the flow run."""
    create_markdown_artifact(key="leaderboard", markdown=summary, description=f"Leaderboard of {prompt_set}")
