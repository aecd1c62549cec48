"""nightly: evaluate, hold the run against its baseline, and write the history and leaderboard that it belongs to.

One flow for a schedule, failed when a limit is broken.

Deployed by `prefect.yaml` as `nightly/nightly`. An automation on its failed runs notifies people
(docs/guides/nightly-runs.md).
"""

import dataclasses
from typing import Any, Literal

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from assayline.comparison.gate import GateFailedError, GateReport
from assayline.flows.evaluate import SpecParameter, as_spec, check_deployed_spec, evaluate
from assayline.flows.gate import judge
from assayline.flows.live.reporting import completed, describe_figures, publish_night, worse, write_leaderboard
from assayline.settings import Settings, load_settings


def name_night() -> str:
    """The run's name in the UI."""
    try:
        name = as_spec(flow_run.parameters["spec"]).name
        return f"{name} against {flow_run.parameters.get('baseline') or 'its baseline'}"
    except Exception:
        return "nightly"  # the flow itself says what is wrong with its spec


@flow(name="nightly", flow_run_name=name_night, persist_result=False)
def nightly(
    spec: SpecParameter, baseline: str | None = None, resume: Literal["never", "auto"] = "never"
) -> dict[str, Any]:
    """Evaluates, then fails if the run is worse than its baseline beyond the limits of its spec.

    Args:
        spec: the spec, the path of a YAML file with one, or {file, overrides} to set some of its fields.
        baseline: name of a pinned baseline, or id of a run (default: gate.baseline of the spec; with neither, nothing
            is judged, and the log says so).
        resume: never starts a new run each time, as each night is a measurement of its own; auto resumes an
            unfinished one.
    """
    check_deployed_spec(spec)
    wanted = as_spec(spec)
    settings = load_settings()
    result: dict[str, Any] = evaluate(wanted, resume)
    run_id, against = result["run_id"], baseline or wanted.gate.baseline
    headline = f"{describe_figures(result['metrics'])}; not judged"
    try:
        report = _judge(settings, run_id, against)
        headline = f"{describe_figures(result['metrics'])}{_say(report)}"
    finally:
        publish_night(settings, run_id, against, headline)
        write_leaderboard(wanted.prompts.set_name)
    if report and report.broken:
        return worse(headline, GateFailedError(report.sentence, report))
    return completed(headline, {"run_id": run_id, "gate": dataclasses.asdict(report) if report else None})


def _say(report: GateReport | None) -> str:
    if report is None:
        return "; not judged, as it has no baseline"
    return f". {report.sentence}" if report.broken else f"; within its limits against {report.baseline}"


def _judge(settings: Settings, run_id: str, baseline: str | None) -> GateReport | None:
    if baseline is None:
        get_run_logger().warning(
            "Nothing was judged, as there is no baseline. Pin one with `assayline baseline pin NAME %s`, and "
            "name it as `baseline` of the deployment, or as gate.baseline in the spec.",
            run_id,
        )
        return None
    return judge(settings, run_id, baseline, {}, str(flow_run.id))
