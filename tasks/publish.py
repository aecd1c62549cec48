"""What a person sees on the run's page: progress, the metrics table, and where to go on."""

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE


@task(name="publish-metrics", cache_policy=NO_CACHE, persist_result=False)
def publish_metrics(run_id: str, metrics: list[dict[str, Any]], summary: str) -> None:
    """Attaches the metrics table and a summary to the flow run."""
    create_table_artifact(key="metrics", table=metrics, description=f"Metrics of run {run_id}")
    create_markdown_artifact(key="summary", markdown=summary, description=f"Summary of run {run_id}")
