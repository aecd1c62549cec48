"""nightly: evaluate a spec, compare the run with its baseline, and update its history and leaderboard.

One flow for a schedule. It fails if a limit fails, or, as “Judge not trusted”, if a judge among the scorers agrees too
little with the labels. A run that one comparison alone would fail is “Suspect”.

`prefect.yaml` deploys it as `nightly/nightly`. A Prefect automation on failed runs can send notifications
(docs/guides/nightly-runs.md).
"""

import contextlib
import dataclasses
from typing import Any, Literal

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from assayline.comparison.baselines import resolve_baseline
from assayline.comparison.gate import NIGHTS, GateReport
from assayline.errors import JudgeNotTrustedError, StoreError
from assayline.evaluation.judging import pick_judges
from assayline.evaluation.run import read_result
from assayline.flows.cli.tables import describe_figures
from assayline.flows.evaluate import (
    SpecParameter,
    check_deployed_spec,
    complete,
    find_retried,
    is_done,
    name_by,
)
from assayline.flows.live.reporting import end, end_judged, not_trusted, publish_night, write_leaderboard
from assayline.flows.live.watch import rename_flow_run
from assayline.run.stages import gate_run
from assayline.settings import Settings, load_settings
from assayline.spec.file import as_spec
from assayline.store.thread import DatabaseThread


def describe_night(parameters: dict[str, Any]) -> str:
    """Return the name of a night's spec and of its baseline."""
    spec = as_spec(parameters["spec"])
    baseline = parameters.get("baseline") or spec.gate.baseline
    return f"{spec.name} against {baseline}" if baseline else spec.name


@flow(name="nightly", flow_run_name=name_by(describe_night, "nightly"), persist_result=False)
def nightly(
    spec: SpecParameter, baseline: str | None = None, resume: Literal["never", "auto"] = "never"
) -> dict[str, Any]:
    """Evaluate a spec, then fail if the run is worse than its baseline beyond the spec's limits.

    Args:
        spec: a spec, the path of a YAML file, or {file, overrides} to override fields of one.
        baseline: name of a pinned baseline, or id of a run (default: gate.baseline of the spec; without either, the
            run is not judged, and a log line reports it).
        resume: `never` starts a new run each night, as nightly runs are independent measurements, and a retry in
            Prefect resumes the night's own run; `auto` resumes any unfinished run of the spec.
    """
    check_deployed_spec(spec)
    wanted = as_spec(spec)
    settings = load_settings()
    against = baseline or wanted.gate.baseline
    _check_baseline(settings, against)
    begun = find_retried(wanted.name, settings)
    try:
        if begun and is_done(begun) and not pick_judges(wanted.scorers):
            result = dataclasses.asdict(read_result(begun, settings))
        else:
            chosen = begun.run_id if begun and not is_done(begun) else resume
            result = complete(wanted, resume=chosen, purpose="night")
    except JudgeNotTrustedError as error:
        rename_flow_run(f"{wanted.name} · judge not trusted")
        return not_trusted(error)
    run_id = result["run_id"]
    figures, report = describe_figures(result["metrics"], wanted), None
    headline = f"{figures}; not judged"
    try:
        report = _judge(settings, run_id, against)
        headline = f"{figures}{_say(report)}"
    finally:
        verdict = "not judged" if report is None else "worse" if report.failed else report.verdict
        rename_flow_run(" · ".join([wanted.name, figures.partition(", ")[0].removesuffix(" correct"), verdict]))
        publish_night(settings, run_id, against, headline)
        write_leaderboard(wanted.prompts.set_name)
    message = " ".join([headline.removesuffix(".") + ".", *result["notes"]]) if result["notes"] else headline
    if report is None:
        return end(message, {"run_id": run_id, "gate": None})
    return end_judged(message, report, {"run_id": run_id, "gate": dataclasses.asdict(report)})


def _check_baseline(settings: Settings, baseline: str | None) -> None:
    """Raise SpecError for an unknown baseline. A database that another program holds is left for the verdict."""
    if baseline is not None:
        with contextlib.suppress(StoreError):
            DatabaseThread(settings).run(lambda connection: resolve_baseline(connection, baseline), wait_s=5)


def _say(report: GateReport | None) -> str:
    if report is None:
        return "; not judged: no baseline"
    if any(check.verdict != "pass" for check in report.checks):
        return f". {report.sentence}"
    return f"; within its limits against {report.baseline}"


def _judge(settings: Settings, run_id: str, baseline: str | None) -> GateReport | None:
    if baseline is None:
        get_run_logger().warning(
            "Run not judged: no baseline. hint: pin one with `assayline baseline pin NAME %s` and set `baseline` in "
            "the deployment or gate.baseline in the spec.",
            run_id,
        )
        return None
    return gate_run(settings, get_run_logger(), run_id, baseline, {}, str(flow_run.id), NIGHTS)
