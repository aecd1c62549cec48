"""evaluate: run a model on a prompt set. Prompts → rendered requests → engines → completions and timings → DuckDB →
metrics.

    assayline evaluate examples/arithmetic.yaml [--prompts.limit 10] [--dry-run] [--fresh] [--resume RUN_ID]

Evaluating the same spec again resumes a run that was interrupted or killed. `prefect.yaml` deploys the same flow.
Prompts are prepared while the engines load. Only this process writes the run: answers go into part files, and part
files into the database.
"""

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.runtime import deployment, flow_run
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from assayline.errors import DatabaseLockedError, JudgeNotTrustedError, SpecError, StoreError
from assayline.evaluation.answers import resolve_runs
from assayline.evaluation.begin import Evaluation, RunResult, begin_evaluation
from assayline.evaluation.drive import drive_worker
from assayline.evaluation.judging import check_judges, find_unreported, list_judges, pick_judges
from assayline.evaluation.resume import AUTO, NEVER
from assayline.evaluation.run import read_result
from assayline.evaluation.worker import Worker
from assayline.flows.cli.tables import tabulate_metrics
from assayline.flows.judge import judge_answers
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import (
    completed,
    describe_figures,
    not_trusted,
    publish_page,
    publish_sources,
    report_run,
    try_report,
)
from assayline.flows.live.watch import CancelledInPrefect, RunReport, Screen, Watched, open_screen, wait_for_one
from assayline.report.make import Written, make_report
from assayline.report.markdown import render_table
from assayline.runs.manifest import Manifest, PromptCounts, list_manifests, read_manifest, write_manifest
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import MOST_WORKERS, EvalSpec
from assayline.spec.file import SpecFile, find_lost_template, load_spec, parse_spec
from assayline.store.thread import DatabaseThread
from assayline.tasks.evaluate import generate, prepare_prompts
from assayline.tasks.ray_cluster import Cluster, open_cluster

POLL_INTERVAL_S = 0.5
SpecParameter = EvalSpec | SpecFile | Annotated[str, Field(title="path")]
"""Types that the flows accept as a spec."""
Purpose = Literal["evaluate", "night", "suite", "benchmark"]
Resume = Annotated[Literal["auto", "never"], Field(title="choice")] | Annotated[str, Field(title="run id")]


def name_run() -> str:
    """Return the flow run's name for the UI: spec and model."""
    try:
        spec = as_spec(flow_run.parameters["spec"])
    except Exception:
        return "evaluate"  # the flow reports an invalid spec
    return f"{spec.name} · {spec.model.rstrip('/').rsplit('/', 1)[-1]}"


def as_spec(spec: SpecParameter | dict[str, Any]) -> EvalSpec:
    """Convert a flow's parameter to a spec. Raises SpecError."""
    if isinstance(spec, str):
        return load_spec(spec)
    if isinstance(spec, dict):
        spec = SpecFile.model_validate(spec) if "file" in spec else parse_spec(spec)
    return spec.load() if isinstance(spec, SpecFile) else spec


def check_deployed_spec(spec: SpecParameter) -> None:
    """Raise SpecError for a spec in prefect.yaml whose template `prefect deploy` has replaced."""
    if not isinstance(spec, EvalSpec):
        return
    template = find_lost_template(spec.model_dump(mode="json"), Path("prefect.yaml"))
    if template and deployment.id is not None:  # last, as this calls the API
        raise SpecError(
            f"The template {template!r} in prefect.yaml did not reach this run: Prefect replaces {{{{ }}}} there. "
            "hint: move the spec to its own file and set `spec: path.yaml`, or "
            "`spec: {file: path.yaml, overrides: {prompts.limit: 100}}`."
        )


def rename_flow_run(name: str) -> None:
    """Rename the flow run, so that the lists in Prefect's UI distinguish runs of one spec."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), name=name)
    except Exception as error:  # a missing name must not fail the run
        get_run_logger().debug("Failed to rename the flow run: %s", error)


def find_retried(name: str, settings: Settings) -> Manifest | None:
    """Return the newest run of this name that this flow run began before Prefect retried it; None without a retry."""
    asked = (name, str(flow_run.id), False)
    runs = list_manifests(settings.data_dir / "runs") if flow_run.run_count > 1 else []
    return next((run for run in runs if (run.name, run.flow_run_id, run.is_final) == asked), None)


def is_done(run: Manifest) -> bool:
    """Return True if nothing of the run is left to do."""
    return run.state == "completed" and not run.lacks_report


@flow(name="evaluate", flow_run_name=name_run, persist_result=False)
def evaluate(
    spec: SpecParameter, resume: Resume = AUTO, benchmark_id: str | None = None, purpose: Purpose = "evaluate"
) -> dict[str, Any]:
    """Evaluate a model on a prompt set and return the run's id and metrics.

    Args:
        spec: a spec, the path of a YAML file, or {file, overrides} to override fields of one.
        resume: `auto` resumes the newest unfinished run of this spec, if any; `never` starts a new run, unless
            Prefect retries the flow run; a run id resumes that run.
        benchmark_id: benchmark of a new run; set by the flow `benchmark`.
        purpose: what a new run is made for; set by the flows `nightly`, `suite` and `benchmark`.
    """
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    check_deployed_spec(spec)
    try:
        return _evaluate_spec(as_spec(spec), settings, resume, benchmark_id, purpose)
    except JudgeNotTrustedError as error:
        return not_trusted(error)


def _evaluate_spec(
    wanted: EvalSpec, settings: Settings, resume: str, benchmark_id: str | None, purpose: Purpose
) -> dict[str, Any]:
    """Complete a run of the spec and its judges. Raises AssaylineError."""
    wanted = resolve_runs(wanted, DatabaseThread(settings).run)
    if resume == NEVER and (begun := find_retried(wanted.name, settings)) and not is_done(begun):
        resume = begun.run_id
    is_deployed = deployment.id is not None
    if run_id := find_unreported(wanted, settings, resume, benchmark_id, is_deployed):
        get_run_logger().info("Run %s has all its answers; its judges and its report follow.", run_id)
        return _judge_and_report(run_id, wanted, settings)
    notes = check_judges(wanted, settings)
    evaluation = begin_evaluation(
        wanted, settings, resume, benchmark_id, is_deployed, str(flow_run.root_flow_run_id), purpose
    )
    evaluation.notes.extend(notes)
    return _evaluate(evaluation)


def _judge_and_report(run_id: str, spec: EvalSpec, settings: Settings) -> dict[str, Any]:
    """Complete the judges of a run that has all its answers, and write its report."""
    make, run_dir, doubt = partial(make_report, settings, run_id), settings.run_dir(run_id), None
    try:
        judge_answers(settings, run_id, list_judges(settings, run_id), evaluate)
    except JudgeNotTrustedError as error:
        doubt = error
    finally:
        written = try_report("report", run_id, make)
    manifest = read_manifest(run_dir)
    state = not_trusted(doubt) if doubt else _end(read_result(manifest, settings), written, spec)
    write_manifest(run_dir, dataclasses.replace(manifest, lacks_report=False))
    return state


def _end(result: RunResult, written: Written | None, spec: EvalSpec, is_reachable: bool = True) -> dict[str, Any]:
    """Attach the report to the flow run and return the state of a completed run."""
    headline = describe_figures(result.metrics, spec)
    if written:
        result = dataclasses.replace(result, report=str(written.html.absolute()))
    if is_reachable:
        page = written.document if written else render_table(tabulate_metrics(result))
        publish_page("report", spec.name, page, headline)
        publish_sources(result.run_id, spec)
    else:
        get_run_logger().error("Run stored, but its page in Prefect lacks the metrics: the API does not answer.")
    return completed(headline, dataclasses.asdict(result))


def _evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Complete a run that has begun, and write its report."""
    rename_flow_run(f"{flow_run.name} · {evaluation.run_id[-4:]}")
    for note in evaluation.notes:
        get_run_logger().warning(note)
    get_run_logger().info("Run %s started; part files and logs in %s", evaluation.run_id, evaluation.run_dir)
    try:
        counts, reachable = _generate_all(evaluation)
        result = evaluation.finish(counts, lacks_report=True)
        for note in result.notes:
            get_run_logger().warning(note)
        if judges := pick_judges(evaluation.spec.scorers):
            evaluation.lock.release()  # for scoring
            judge_answers(evaluation.settings, evaluation.run_id, judges, evaluate)
            result = dataclasses.replace(read_result(evaluation.manifest, evaluation.settings), notes=result.notes)
    except BaseException as error:
        _abandon(evaluation, error)
        if isinstance(error, CancelledInPrefect):
            error.end_flow_runs()
        if isinstance(error, Exception):
            report_run(evaluation)
        if evaluation.manifest.lacks_report and isinstance(error, JudgeNotTrustedError):
            evaluation.end()
        raise
    try:
        state = _end(result, report_run(evaluation), evaluation.spec, reachable)
        evaluation.end()
    finally:
        evaluation.lock.release()
    return state


def _generate_all(evaluation: Evaluation) -> tuple[PromptCounts, bool]:
    """Prepare and generate concurrently, and ingest results meanwhile. Any failure stops everything.

    Also return whether Prefect's API answered throughout.
    """
    if evaluation.is_answered:
        return evaluation.prepare(), True
    with ExitStack() as stack:
        screen = stack.enter_context(open_screen(evaluation.run_dir, evaluation.settings))
        cluster = stack.enter_context(
            open_cluster(evaluation.spec, evaluation.settings)
        )  # left last: workers end when this context ends
        runner: ThreadPoolTaskRunner[Any] = stack.enter_context(ThreadPoolTaskRunner(max_workers=MOST_WORKERS + 1))
        try:
            work = _Work(evaluation, runner, cluster)
            reachable = _watch(evaluation, work, screen)
            counts: PromptCounts = work.prepared.result()
            for future in work.generated:
                future.result()
        except BaseException:
            evaluation.stop()
            raise
    return counts, reachable


class _Work:
    """The tasks of a run: one to prepare prompts, and one per worker."""

    def __init__(self, evaluation: Evaluation, runner: ThreadPoolTaskRunner[Any], cluster: Cluster | None) -> None:
        self._evaluation = evaluation
        self._runner = runner
        self._cluster = cluster
        self.generated: list[PrefectFuture[Any]] = []
        self.watched: list[Watched] = []
        self.add_workers()
        self.prepared: PrefectFuture[PromptCounts] = runner.submit(prepare_prompts, {"evaluation": evaluation})
        self.preparing = Watched(self.prepared)

    def add_workers(self) -> None:
        """Start missing workers, up to the wanted number, which may grow with the cluster."""
        dispatcher = self._evaluation.dispatcher
        if self._cluster is not None:
            dispatcher.workers = self._cluster.count_workers()
        while len(self.generated) < dispatcher.workers:
            name = f"worker-{len(self.generated)}"
            launch = Worker if self._cluster is None else self._cluster.launch
            drive = partial(drive_worker, self._evaluation, name, launch=launch)
            parameters = {"worker": name, "drive": drive, "bar": self._evaluation.settings.bar}
            self.generated.append(self._runner.submit(generate, parameters))
            self.watched.append(Watched(self.generated[-1]))

    @property
    def tasks(self) -> list[Watched]:
        return [self.preparing, *self.watched]


def _watch(evaluation: Evaluation, work: _Work, screen: Screen | None) -> bool:
    """Show progress and ingest part files until all tasks have ended. A failed task stops the others.

    Return whether all progress reports arrived.
    """
    report = RunReport(get_run_logger())
    loaded_s = time.monotonic()

    def show(*, is_last: bool = False) -> None:
        expected = work.prepared.result().requests if work.preparing.has_completed else None
        standing = evaluation.dispatcher.look()
        report.show(standing, expected, is_last=is_last)
        if screen:
            screen.show(standing, expected)

    while any(not task.is_over for task in work.tasks):
        if any(task.has_failed for task in work.tasks):
            evaluation.stop()
        if not evaluation.dispatcher.is_stopped and not evaluation.dispatcher.is_over:
            work.add_workers()
        _try_to(show, report)
        report.raise_if_cancelled()
        if time.monotonic() - loaded_s >= evaluation.settings.load_interval_s:
            if obstacle := evaluation.try_load():
                if isinstance(obstacle, DatabaseLockedError):
                    reason, next_s = str(obstacle).partition(" hint: ")[0], evaluation.settings.load_interval_s
                    get_run_logger().info("%s Results are in part files; next try in %g s.", reason, next_s)
                else:
                    report.warn_once(f"{obstacle} Results are still written to part files.")
            loaded_s = time.monotonic()
        wait_for_one(work.tasks, POLL_INTERVAL_S)
    _try_to(partial(show, is_last=True), report)
    return report.close()


def _try_to(show: Callable[[], None], report: RunReport) -> None:
    """Show the run's progress. A failure is logged and does not stop the run."""
    try:
        show()
    except Exception as error:
        report.warn_once(f"Failed to show progress; the run continues: {type(error).__name__}: {error}")


def _abandon(evaluation: Evaluation, cause: BaseException) -> None:
    """Store the available results. A failure to store is logged and does not hide why the run ended."""
    state = "failed" if isinstance(cause, Exception) else "cancelled"
    message = str(cause) or type(cause).__name__
    if state == "cancelled" and not isinstance(cause, CancelledInPrefect):
        by = "Ctrl-C" if type(cause) is KeyboardInterrupt else "SIGTERM, for example a cancellation in Prefect"
        if not isinstance(cause, KeyboardInterrupt | TerminationSignal):
            by = f"Prefect ({message}); the log of the flow run has the reason"
        message = f"Stopped before its end by {by}."
    try:
        evaluation.abandon(state, message)
    except StoreError as error:
        get_run_logger().error(str(error))
