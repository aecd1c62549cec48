"""States in which flow runs end: what people read first on Prefect's pages and in its notifications."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from prefect.states import Completed, Failed

from assayline.comparison.gate import GateFailedError
from assayline.words import show_rate, show_share

WORSE = "Worse"
"""Name of the state of a run that breaks its baseline's limits, which is no failure of the run itself."""


def completed(message: str, result: dict[str, Any]) -> dict[str, Any]:
    """A flow's return value: its state has a message, and its caller gets `result`."""
    return cast(dict[str, Any], Completed(message=message, data=result))


def worse(message: str, error: GateFailedError) -> dict[str, Any]:
    """A flow's return value: it fails with the state Worse, and `error` is raised at its caller."""
    return cast(dict[str, Any], Failed(name=WORSE, message=message, data=error))


def describe_figures(metrics: Iterable[Mapping[str, Any]]) -> str:
    """The headline of a run: `98.1% correct, 2,786 tokens/s, 2 of 155 requests are errors`."""
    by_source = {str(row["source"]): row for row in metrics}
    parts = []
    if (accuracy := by_source.get("run_summary.accuracy")) and accuracy["value"] is not None:
        parts.append(f"{show_share(accuracy['value'])} correct")
    if (tokens := by_source.get("run_summary.output_tokens_per_s")) and tokens["value"] is not None:
        parts.append(show_rate(tokens["value"], "tokens"))
    if (errors := by_source.get("run_summary.error_requests")) and errors["value"]:
        parts.append(f"{errors['value']:,.0f} of {errors['n']:,.0f} requests are errors")
    return ", ".join(parts)
