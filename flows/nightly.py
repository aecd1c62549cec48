"""nightly: evaluate a spec, compare the run with its baseline, and update its history and leaderboard.

One flow for a schedule. It fails if a limit fails, or, as “Judge not trusted”, if a judge among the scorers agrees too
little with the labels. A run that one comparison alone would fail is “Suspect”.

`prefect.yaml` deploys it as `nightly/nightly`. A Prefect automation on failed runs can send notifications
(docs/guides/nightly-runs.md).
"""

from typing import Any, Literal

from prefect import flow

from assayline.api import operations
from assayline.errors import JudgeNotTrustedError
from assayline.flows.evaluate import SpecParameter, check_deployed_spec, find_retried, name_by, open_front
from assayline.flows.live.reporting import end, end_judged
from assayline.flows.live.watch import CancelledInPrefect, rename_flow_run
from assayline.run.evaluation import RunResult
from assayline.spec.file import as_spec


def describe_night(parameters: dict[str, Any]) -> str:
    """Return the name of a night's spec and of its baseline."""
    spec = as_spec(parameters["spec"])
    baseline = parameters.get("baseline") or spec.gate.baseline
    return f"{spec.name} against {baseline}" if baseline else spec.name


@flow(name="nightly", flow_run_name=name_by(describe_night, "nightly"), persist_result=False)
def nightly(
    spec: SpecParameter,
    baseline: str | None = None,
    resume: Literal["never", "auto"] = "never",
    tags: list[str] = [],  # noqa: B006 - for the form
) -> RunResult:
    """Evaluate a spec, then fail if the run is worse than its baseline beyond the spec's limits.

    Args:
        spec: a spec, the path of a YAML file, or {file, overrides} to override fields of one.
        baseline: name of a pinned baseline, or id of a run (default: gate.baseline of the spec; without either, the
            run is not judged, and a log line reports it).
        resume: `never` starts a new run each night, as nightly runs are independent measurements, and a retry in
            Prefect resumes the night's own run; `auto` resumes any unfinished run of the spec.
        tags: tags of the run.
    """
    check_deployed_spec(spec)
    wanted = as_spec(spec)
    front = open_front()
    begun = find_retried(wanted.name, front.settings)
    try:
        found = operations.night(wanted, baseline, begun.run_id if begun else resume, tags=tags, front=front)
    except JudgeNotTrustedError as error:
        rename_flow_run(f"{wanted.name} · judge not trusted")
        return end(str(error), error)
    except CancelledInPrefect as error:
        error.end_flow_runs()
        raise
    report = found.gate
    verdict = "not judged" if report is None else "worse" if report.failed else report.verdict
    share = found.headline.partition(", ")[0].removesuffix(" correct")
    rename_flow_run(" · ".join([wanted.name, share, verdict]))
    return end(found.message, found) if report is None else end_judged(found.message, report, found)
