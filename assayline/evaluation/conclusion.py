"""How a run ended: completed, or failed and why, from what the database says of it."""

from dataclasses import replace

from assayline.clock import utc_now
from assayline.runs.manifest import Manifest
from assayline.store.ingest import Verdict

_ADVICE = (
    "What was answered is stored; see error_breakdown. An error row is an answer, so the run is not resumed: find the "
    "cause, then start a new one with --fresh."
)


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
            "The same command resumes the run and asks again for what is missing."
            if verdict.broken.get("missing_requests")
            else "Nothing is left to ask: start a new run with --fresh."
        )
        return (
            f"Run {run_id} does not add up: {verdict.broken}. Expected {requests} requests, each answered once. What "
            f"was answered is stored; see request_integrity and error_breakdown. {more}"
        )
    if "max_errors" in verdict.load_ends:
        return (
            f"Run {run_id} was stopped by its errors. {verdict.load_ends['max_errors']} {_count_unsent(verdict)} "
            f"{_count_kinds(verdict)} {_ADVICE}"
        )
    if verdict.unsent and not verdict.sent:
        why = " ".join(verdict.load_ends.values()) or "No event says why."
        return (
            f"Run {run_id} sent nothing: its load ended before the first of {requests} requests. {why} Change load so "
            "that at least one request is sent, then start a new run."
        )
    asked = requests - verdict.unsent
    if verdict.error_rows > max_error_fraction * asked:
        among = f"{asked} requests" if not verdict.unsent else f"{asked} requests that were not left unsent"
        return (
            f"Run {run_id} has {verdict.error_rows} error rows among {among}, more than the share of "
            f"{max_error_fraction:g} that max_error_fraction allows. {_count_kinds(verdict)} {_ADVICE}"
        )
    return None


def _count_kinds(verdict: Verdict) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in verdict.errors.items())
    return f"Errors by kind: {kinds}."


def _count_unsent(verdict: Verdict) -> str:
    return f"{verdict.unsent} requests were left unsent." if verdict.unsent else "Nothing was left unsent."
