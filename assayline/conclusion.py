"""How a run ended: completed, or failed and why, from what the database says of it."""

from dataclasses import replace

from assayline.manifest import Manifest, utc_now
from assayline.store.integrity import Verdict


def conclude_run(run: Manifest, verdict: Verdict, max_error_fraction: float) -> Manifest:
    """The manifest of a run whose prompts are all prepared and whose parts are all loaded, at its end."""
    if run.prompts is None:
        raise ValueError(f"{run.run_id} was concluded before its prompts were counted")
    message = _describe_failure(run.run_id, run.prompts.requests, verdict, max_error_fraction)
    return replace(
        run,
        state="failed" if message else "completed",
        message=message,
        is_final=bool(message) and not verdict.broken.get("missing_requests"),
        finished_at=utc_now(),
    )


def _describe_failure(run_id: str, requests: int, verdict: Verdict, max_error_fraction: float) -> str | None:
    if verdict.broken:
        more = (
            "The same command goes on with the run and asks again for what is missing."
            if verdict.broken.get("missing_requests")
            else "Nothing is left to ask: start a new run with --fresh."
        )
        return (
            f"Run {run_id} does not add up: {verdict.broken}. Expected {requests} requests, each answered once. What "
            f"was answered is stored; see request_integrity and error_breakdown. {more}"
        )
    if verdict.error_rows > max_error_fraction * requests:
        kinds = ", ".join(f"{kind} {count}" for kind, count in verdict.errors.items())
        return (
            f"Run {run_id} has {verdict.error_rows} error rows among {requests} requests, more than the share of "
            f"{max_error_fraction:g} that max_error_fraction allows: {kinds}. What was answered is stored; see "
            "error_breakdown. An error row is an answer, so the run is not resumed: find the cause, then start a new "
            "one with --fresh."
        )
    return None
