"""suite: run several evaluations with one or more models, and decide by all of them: GO, NO-GO or INCONCLUSIVE.

    assayline suite release.yaml [--fresh] [--dry-run]

Each run is a separate run of the flow `evaluate`, judged against its baseline like a gate. Runs are sequential; runs
that need the same engine share it. An interrupted suite goes on where it stopped. `prefect.yaml` deploys it as
`suite/suite`.
"""

import contextlib
import dataclasses
from functools import partial
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from assayline.benchmark.configurations import can_share_engine
from assayline.benchmark.decision import Decision, Judged, NoGoError, decide
from assayline.benchmark.suite import (
    Cell,
    SuitePlan,
    begin_suite,
    find_undecided,
    list_cells,
    suite_dir,
    write_suite,
)
from assayline.comparison.gate import NIGHTS
from assayline.comparison.queries import read_accuracy
from assayline.engines.parking import park_engines
from assayline.errors import (
    AssaylineError,
    RunFailedError,
    StoreError,
)
from assayline.evaluation.resume import AUTO, NEVER
from assayline.flows.evaluate import evaluate
from assayline.flows.gate import judge
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import completed, publish_page, worse
from assayline.report.make import Written, make_report, make_suite_report
from assayline.report.suite import list_evaluations
from assayline.run.stages import try_report
from assayline.runs.locks import lock_run, name_holder
from assayline.settings import Settings, load_settings
from assayline.spec.suite import SuiteSpec, load_suite
from assayline.store.thread import DatabaseThread

SuiteParameter = SuiteSpec | Annotated[str, Field(title="path")]


def as_suite(suite: SuiteParameter) -> SuiteSpec:
    """Convert the flow's parameter to a suite. Raises SpecError."""
    return load_suite(suite) if isinstance(suite, str) else suite


def name_suite() -> str:
    """Return the flow run's name for the UI."""
    try:
        return f"suite {as_suite(flow_run.parameters['suite']).name}"
    except Exception:
        return "suite"  # the flow reports an invalid suite


@flow(name="suite", flow_run_name=name_suite, persist_result=False)
def suite(
    suite: SuiteParameter, resume: Literal["auto", "never"] = "auto", *, is_nightly: bool = False
) -> dict[str, Any]:
    """Run the evaluations of a suite and decide. NO-GO fails.

    Args:
        suite: a suite, or the path of a YAML file.
        resume: `auto` goes on with the newest suite of the same specs that was interrupted; `never` starts a new one.
        is_nightly: a schedule starts it every night, so that chance has many opportunities: ask for more evidence.
    """
    settings = load_settings()
    settings.pass_on_token()
    if not settings.tracebacks:
        speak_in_sentences()
    wanted = as_suite(suite)
    cells = list_cells(wanted)
    undecided = None if resume == NEVER else find_undecided(cells, settings)
    plan = undecided or begin_suite(wanted, cells)
    folder = suite_dir(settings, plan.suite_id)
    lock = lock_run(folder)
    if lock is None:
        raise StoreError(f"Suite {plan.suite_id} is in use by {name_holder(folder)}. hint: wait for its end.")
    try:
        with park_engines() if all(can_share_engine(cell.spec) for cell in cells) else contextlib.nullcontext():
            failed = run_cells(plan, cells, settings, AUTO if undecided else NEVER)
        nights = NIGHTS if is_nightly else 1
        decision = decide([_judge(cell, plan, failed, settings, nights) for cell in cells], is_nightly=is_nightly)
        written = make_suite_report(settings, plan, decision)
        if not failed:
            write_suite(dataclasses.replace(plan, decision=decision.word), settings)
    finally:
        lock.release()
    publish_page("suite", plan.name, written.document, decision.headline)
    if failed:
        raise RunFailedError(
            f"Suite {plan.suite_id} is {decision.word}, and runs did not complete. {' '.join(failed.values())} "
            f"Report: {written.html.absolute()}. hint: run the suite again to retry them."
        )
    return _end(plan, decision, written)


def run_cells(plan: SuitePlan, cells: list[Cell], settings: Settings, resume: str) -> dict[str, str]:
    """Do the remaining runs, and store each in the plan. Return the reasons of failures by cell.

    `resume` is that of `evaluate`: a new suite has new runs only.
    """
    log = get_run_logger()
    failed: dict[str, str] = {}
    left = [cell for cell in cells for _ in range(cell.repeats - len(plan.runs.get(cell.key, [])))]
    total = sum(cell.repeats for cell in cells)
    log.info("Suite %s: %d of %d runs to do", plan.suite_id, len(left), total)
    write_suite(plan, settings)
    for number, cell in enumerate(left, total - len(left) + 1):
        if cell.key in failed:
            continue
        log.info("Run %d of %d: %s", number, total, cell.label)
        named = evaluate.with_options(flow_run_name=f"{cell.label} · {number} of {total}")
        try:
            result: dict[str, Any] = named(cell.spec, resume, purpose="suite")
        except AssaylineError as error:  # for example a prompt file that is missing
            failed[cell.key] = f"{cell.label}: {error}"
            log.error("%s failed: %s", cell.label, error)
            continue
        plan.runs.setdefault(cell.key, []).append(result["run_id"])
        write_suite(plan, settings)
    return failed


def _judge(cell: Cell, plan: SuitePlan, failed: dict[str, str], settings: Settings, nights: int) -> Judged:
    """Judge the newest run of a cell. A cell that cannot be judged has the reason instead of a report."""
    runs = plan.runs.get(cell.key, [])
    run_id = runs[-1] if runs else None
    if cell.key in failed or run_id is None:
        return Judged(cell, run_id, None, failed.get(cell.key, "It has no run."))
    mean = DatabaseThread(settings).run(lambda connection: read_accuracy(connection, run_id))
    if cell.baseline is None:
        why = f"It has no baseline. hint: pin a run, such as `assayline baseline pin NAME {run_id}`, and set baseline."
        return Judged(cell, run_id, None, why, mean)
    try:
        report = judge(settings, run_id, cell.baseline, {}, str(flow_run.id), nights)
    except AssaylineError as error:
        return Judged(cell, run_id, None, f"{error} The run is {run_id}.", mean)
    try_report(get_run_logger(), "report", run_id, partial(make_report, settings, run_id), cell.baseline)
    return Judged(cell, run_id, report, mean_score=mean)


def _end(plan: SuitePlan, decision: Decision, written: Written) -> dict[str, Any]:
    """Return the state of a decided suite: NO-GO fails."""
    result = {
        "suite_id": plan.suite_id,
        "decision": decision.word,
        "headline": decision.headline,
        "risk": decision.risk,
        "evaluations": list_evaluations(decision),
        "report": str(written.html.absolute()),
    }
    if decision.verdict == "fail":
        return worse(decision.headline, NoGoError(decision.headline, result))
    return completed(decision.headline, result, decision.verdict)
