"""nightly: evaluate, hold the run against its baseline, and write the history and leaderboard that it belongs to.

One flow for a schedule, failed when a limit is broken.

Deployed by `prefect.yaml` as `nightly/nightly`. An automation on its failed runs tells people (docs/comparison.md).
"""

from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from assayline.comparison.gate import GateFailedError
from assayline.evaluation.resume import NEVER
from assayline.spec.evaluation import EvalSpec
from flows.evaluate import SpecParameter, as_spec, check_deployed_spec, evaluate
from flows.gate import gate
from flows.live.history import write_history
from flows.live.leaderboard import write_leaderboard
from flows.live.states import completed, describe_figures, worse


def name_night() -> str:
    """The run's name in the UI."""
    try:
        name = as_spec(flow_run.parameters["spec"]).name
        return f"{name} against {flow_run.parameters.get('baseline') or 'its baseline'}"
    except Exception:
        return "nightly"  # the flow itself says what is wrong with its spec


@flow(name="nightly", flow_run_name=name_night, persist_result=False)
def nightly(spec: SpecParameter, baseline: str | None = None, resume: str = NEVER) -> dict[str, Any]:
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
    result: dict[str, Any] = evaluate(wanted, resume)
    figures = describe_figures(result["metrics"])
    try:
        judged = _judge(wanted, result["run_id"], baseline)
    except GateFailedError as error:
        return worse(f"{figures}. {error}", error)
    finally:
        write_history(result["run_id"], baseline)
        write_leaderboard(wanted.prompts.set_name)
    verdict = judged["gate"]
    how = "not judged, as it has no baseline" if verdict is None else f"within its limits against {verdict['baseline']}"
    return completed(f"{figures}; {how}", judged)


def _judge(wanted: EvalSpec, run_id: str, baseline: str | None) -> dict[str, Any]:
    if baseline is None and wanted.gate.baseline is None:
        get_run_logger().warning(
            "Nothing was judged, as there is no baseline. Pin one with `assayline baseline pin NAME %s`, and "
            "name it as `baseline` of the deployment, or as gate.baseline in the spec.",
            run_id,
        )
        return {"run_id": run_id, "gate": None}
    return {"run_id": run_id, "gate": gate(run_id, baseline)}
