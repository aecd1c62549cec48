"""The driver: complete a run of a spec, from its first prompt to its report. Python, the command line and a Prefect
flow call `evaluate` with a front end each.

    begin ─► drive: prepare, dispatch, exchange, write, ingest ─► finish: score, measure ─► judge, gate, report, publish
"""

import dataclasses
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from assayline.comparison.gate import GateReport
from assayline.engines.pool import EnginePool
from assayline.errors import DatabaseLockedError, JudgeNotTrustedError, StoreError
from assayline.report.document import Document
from assayline.report.make import Written
from assayline.run.begin import Evaluation, RunPlan, begin_run, plan_run
from assayline.run.drive import LOG, drive_worker
from assayline.run.evaluation import RunResult, read_result
from assayline.run.judging import check_judges, find_judge_run, find_unreported, list_judges
from assayline.run.ray_cluster import open_cluster
from assayline.run.resume import describe_way_on
from assayline.run.stages import add_history, describe_result, gate_run, judge_answers, report_run
from assayline.run.tag import tag_run
from assayline.run.watch import AnyLogger, RunReport
from assayline.run.worker import Exchanger, Worker, WorkOrder
from assayline.settings import Settings
from assayline.spec.conflicts import list_unused
from assayline.spec.evaluation import MOST_WORKERS, EvalSpec
from assayline.spec.judges import JudgeScorer
from assayline.stats.worse import NIGHTS
from assayline.store.locks import RunLock
from assayline.store.manifest import Manifest, PromptCounts, Purpose, read_manifest, write_manifest
from assayline.store.thread import DatabaseThread
from assayline.words import count

POLL_INTERVAL_S = 0.5
NOTIFY_TIMEOUT_S = 10.0
T = TypeVar("T")


class FrontEnd:
    """Differences between runs from Python, on the command line and in a Prefect flow. This one is Python's."""

    is_deployed = False
    """Whether a deployed flow starts the runs."""
    flow_run_id: str | None = None
    """Id in Prefect of the outermost flow run."""

    def __init__(self, settings: Settings, log: AnyLogger = LOG) -> None:
        self.settings = settings
        self.log = log

    def submit(self, pool: Executor, work: Callable[[AnyLogger], T], worker: str | None = None) -> Future[T]:
        """Start to drive a worker or, without one, to prepare the prompts. `work` takes the logger of its thread."""
        return pool.submit(work, LOG.getChild(worker) if worker else LOG)

    def watch(self) -> AbstractContextManager[RunReport]:
        """Return a context in which the run's progress is reported."""
        return nullcontext(RunReport(self.log))

    def complete(
        self, spec: EvalSpec, purpose: Purpose, label: str | None = None, engines: EnginePool | None = None
    ) -> RunResult:
        """Complete a run that belongs to another one, such as a judge's, with this name."""
        return evaluate(spec, self, purpose, engines)

    def begin(self, run_id: str) -> None:
        """Show the id of the run that begins."""

    def publish(self, plan: RunPlan, result: RunResult, written: Written | None) -> None:
        """Show the result of a completed run."""

    def show_page(self, kind: str, name: str, page: Document, headline: str) -> None:
        """Show the report of several runs."""

    def notify(self, message: str) -> None:
        """Send a message of a night that went wrong, if a webhook is set. A failure to send is logged."""
        if self.settings.webhook is None:
            return
        url, body = self.settings.webhook.get_secret_value(), json.dumps({"text": message}).encode()
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=NOTIFY_TIMEOUT_S).close()
        except (OSError, ValueError) as error:  # the URL is a secret
            self.log.error("Failed to send a message to ASSAYLINE_WEBHOOK: %s", type(error).__name__)

    @contextmanager
    def notifying(self, what: str) -> Iterator[None]:
        """Send a message if the work inside the context fails."""
        try:
            yield
        except Exception as error:
            self.notify(f"{what}: {error}")
            raise

    def explain(self, cause: BaseException) -> str:
        """Return why a run was cancelled."""
        by = "Ctrl-C" if type(cause) is KeyboardInterrupt else "SIGTERM"
        return f"Stopped before its end by {by}."


def evaluate(spec: EvalSpec, front: FrontEnd, purpose: Purpose, engines: EnginePool | None = None) -> RunResult:
    """Complete a run of the spec, and the stages after its last answer. A judge's run is not repeated if there is one.

    The run takes its engine from `engines` and leaves it there; its judges open engines of their own.
    Raises AssaylineError; JudgeNotTrustedError if the run is complete and a judge agrees too little with the labels.
    """
    settings = front.settings
    plan = plan_run(spec, settings, purpose, is_deployed=front.is_deployed, flow_run_id=front.flow_run_id)
    if purpose.kind == "judge" and (judged := find_judge_run(plan, settings)):
        return read_result(judged, settings)
    lock: RunLock | None = None
    notes: Sequence[str] = ()
    if run_id := find_unreported(plan, settings):
        if purpose.tags:
            tag_run(settings, run_id, purpose.tags)
        front.log.info("Run %s has all its answers; its judges and its report follow.", run_id)
    else:
        run_id, lock, notes = _answer(plan, front, engines)
    return _complete_stages(run_id, plan, front, engines, lock, notes)


def _answer(plan: RunPlan, front: FrontEnd, engines: EnginePool | None) -> tuple[str, RunLock, list[str]]:
    """Begin or resume a run and get its answers. Return its id, its lock, and remarks on its end."""
    notes = check_judges(plan)
    evaluation = begin_run(plan, front.settings)
    front.begin(evaluation.run_id)
    for note in [*evaluation.notes, *list_unused(plan.spec), *notes]:
        front.log.warning(note)
    front.log.info("Run %s started; part files and logs in %s", evaluation.run_id, evaluation.run_dir)
    try:
        counts = drive(evaluation, front, engines)
        result = evaluation.finish(counts, lacks_report=True)
    except BaseException as error:
        _abandon(evaluation, error, front)
        way_on = describe_way_on(evaluation.run_dir, evaluation.manifest, error, plan.purpose.resume)
        if way_on and plan.purpose.kind == "evaluate":
            error.add_note(way_on)
        if isinstance(error, Exception):
            report_run(front.settings, front.log, evaluation.run_id, plan.spec.gate.baseline)
        raise
    for note in result.notes:
        front.log.warning(note)
    return evaluation.run_id, evaluation.lock, result.notes


def _complete_stages(
    run_id: str,
    plan: RunPlan,
    front: FrontEnd,
    engines: EnginePool | None,
    lock: RunLock | None = None,
    notes: Sequence[str] = (),
) -> RunResult:
    """Complete a run that has all its answers: judge, gate, report, publish.

    The report is written even if a judge or the gate failed. A run without judges or a baseline skips these.
    `notes`: remarks for the user on its end, if it has just ended.
    """
    settings, purpose = front.settings, plan.purpose
    failure: Exception | None = None
    gate: GateReport | None = None

    def complete(judge: EvalSpec) -> RunResult:
        if engines and judge.engine.needs_device:
            engines.clear()
        return front.complete(judge, Purpose(kind="judge"))

    judges = list_judges(settings, run_id)
    try:
        if lock and judges:
            lock.release()  # for scoring
        try:
            judge_answers(settings, front.log, run_id, judges, complete)
        except Exception as error:
            failure = error
        is_missing = failure is not None and not isinstance(failure, JudgeNotTrustedError)
        manifest = _record_missing(settings, run_id, str(failure) if is_missing else None)
        is_judged = failure is None
        if purpose.kind == "night" and purpose.baseline and is_judged:
            try:
                gate = gate_run(settings, front.log, run_id, purpose.baseline, {}, front.flow_run_id, NIGHTS)
            except Exception as error:
                failure = error
        written = None
        if purpose.has_page or failure:
            written = report_run(settings, front.log, run_id, purpose.baseline or plan.spec.gate.baseline)
        if failure and is_missing:
            raise failure
        if purpose.kind == "night" and written:
            written = add_history(settings, front.log, run_id, purpose.baseline, written)
        result = read_result(manifest, settings)
        for note in result.notes:
            front.log.warning(note)
        report = str(written.html.absolute()) if written else None
        result = dataclasses.replace(result, report=report, notes=[*notes, *result.notes], gate=gate)
        result = dataclasses.replace(result, headline=describe_result(result, purpose))
        if is_judged:
            front.publish(plan, result, written)
        write_manifest(settings.run_dir(run_id), dataclasses.replace(manifest, lacks_report=False))
    finally:
        if lock:
            lock.release()
    if failure:
        raise failure
    return result


def _record_missing(settings: Settings, run_id: str, message: str | None) -> Manifest:
    """Record why a completed run lacks scores of judges; None if it has them. Return the manifest."""
    manifest = read_manifest(settings.run_dir(run_id))
    if manifest.message != message:
        manifest = dataclasses.replace(manifest, message=message)
        write_manifest(settings.run_dir(run_id), manifest)
        update = "update raw.runs set message = ? where run_id = ?"
        DatabaseThread(settings).run(lambda connection: connection.execute(update, [message, run_id]))
    return manifest


def judge(run_id: str, scorers: Sequence[JudgeScorer], front: FrontEnd) -> dict[str, int]:
    """Add judges to the scorers of a complete run, and write its report. Return the number of scores by judge.

    Raises JudgeNotTrustedError, with all scores stored.
    """
    settings = front.settings
    try:
        complete = partial(front.complete, purpose=Purpose(kind="judge"))
        rescored = judge_answers(settings, front.log, run_id, scorers, complete, are_new=True)
    finally:
        report_run(settings, front.log, run_id)
    return {row["scorer"]: row["samples"] for one in rescored for row in one.accuracies}


def drive(evaluation: Evaluation, front: FrontEnd, engines: EnginePool | None = None) -> PromptCounts:
    """Prepare and generate concurrently, and ingest part files meanwhile. Any failure stops everything."""
    if evaluation.is_answered:
        return evaluation.prepare()
    dispatcher = evaluation.dispatcher
    with ExitStack() as stack:
        report = stack.enter_context(front.watch())
        cluster = stack.enter_context(open_cluster(evaluation.spec, evaluation.settings))
        pool = stack.enter_context(ThreadPoolExecutor(MOST_WORKERS + 1))  # left first: workers end before the cluster
        launch = partial(Worker, pool=engines) if cluster is None else cluster.launch
        loaded_s = time.monotonic()
        try:
            work: list[Future[Any]] = [front.submit(pool, partial(_prepare, evaluation))]
            while True:
                if len(work) == 1 or not (dispatcher.is_stopped or dispatcher.is_over):
                    if cluster is not None:
                        dispatcher.workers = cluster.count_workers()
                    while len(work) <= dispatcher.workers:
                        name = f"worker-{len(work) - 1}"
                        job = partial(_generate, evaluation, name, launch, report)
                        work.append(front.submit(pool, job, name))
                if not (left := [future for future in work if not future.done()]):
                    break
                if any(future.done() and future.exception() for future in work):
                    evaluation.stop()
                _show(evaluation, work[0], report)
                if time.monotonic() - loaded_s >= evaluation.settings.load_interval_s:
                    _load(evaluation, report)
                    loaded_s = time.monotonic()
                wait(left, POLL_INTERVAL_S, FIRST_COMPLETED)
            _show(evaluation, work[0], report, is_last=True)
            counts: PromptCounts
            counts, *_ = [future.result() for future in work]
        except BaseException:
            evaluation.stop()
            raise
    return counts


def _prepare(evaluation: Evaluation, log: AnyLogger) -> PromptCounts:
    """Write every shard and log the counts."""
    counts = evaluation.prepare(log.warning)
    log.info("Prepared %s, %s", count(counts.prompt_rows, "prompt"), count(counts.requests, "request"))
    if counts.expected_requests:
        expected = count(counts.expected_requests, "request")
        log.info("Sending longest expected outputs first: estimates for %s", expected)
    if counts.duplicate_prompts:
        log.warning(
            "%d of %s are duplicates (same messages and target); all are sent",
            counts.duplicate_prompts,
            count(counts.prompt_rows, "prompt"),
        )
    if counts.failed_requests:
        log.warning("%d requests are error rows and are not sent; see the table request", counts.failed_requests)
    for name, cut in counts.cut_prompts.items():
        log.warning(
            "%d prompts of task %s were truncated on the left to fit the context. hint: raise "
            "engine.args.max_model_len.",
            cut,
            name,
        )
    return counts


def _generate(
    evaluation: Evaluation,
    name: str,
    launch: Callable[[WorkOrder], Exchanger],
    report: RunReport,
    log: AnyLogger,
) -> int:
    """Drive a worker to its end, and return its number of answers."""
    report.enter_task()
    return drive_worker(evaluation, name, log, report, launch)


def _load(evaluation: Evaluation, report: RunReport) -> None:
    obstacle = evaluation.try_load()
    if isinstance(obstacle, DatabaseLockedError):
        reason, next_s = str(obstacle).partition(" hint: ")[0], evaluation.settings.load_interval_s
        report.log.info("%s Results are in part files; next try in %g s.", reason, next_s)
    elif obstacle:
        report.warn_once(f"{obstacle} Results are still written to part files.")


def _show(evaluation: Evaluation, prepared: Future[PromptCounts], report: RunReport, *, is_last: bool = False) -> None:
    """Show the run's progress. A failure is logged and does not stop the run."""
    try:
        expected = prepared.result().requests if prepared.done() and not prepared.exception() else None
        report.show(evaluation.dispatcher.snapshot(), expected, is_last=is_last)
    except Exception as error:
        report.warn_once(f"Failed to show progress; the run continues: {type(error).__name__}: {error}")


def _abandon(evaluation: Evaluation, cause: BaseException, front: FrontEnd) -> None:
    """Store the available results. A failure to store is logged and does not hide why the run ended."""
    is_failure = isinstance(cause, Exception)
    message = str(cause) or type(cause).__name__ if is_failure else front.explain(cause)
    try:
        evaluation.abandon("failed" if is_failure else "cancelled", message)
    except StoreError as error:
        front.log.error(str(error))
