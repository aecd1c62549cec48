"""evaluate: prompts → rendered requests → engines → completions and timings → DuckDB → metrics.

    assayline evaluate examples/arithmetic.yaml [--prompts.limit 10] [--dry-run] [--fresh] [--resume RUN_ID]

A run that was interrupted or killed is resumed when the same spec is evaluated again. The same flow is deployed by
`prefect.yaml`. Prompts are prepared while the engines load. This process alone writes the run: part files as answers
come in, and the database from the part files.
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
from prefect.futures import PrefectFuture
from prefect.runtime import deployment, flow_run
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from assayline.errors import SpecError, StoreError
from assayline.evaluation.begin import Evaluation, begin_evaluation
from assayline.evaluation.drive import drive_worker
from assayline.evaluation.resume import AUTO
from assayline.evaluation.worker import Worker
from assayline.flows.cli.tables import tabulate_metrics
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import completed, describe_figures, publish_page, report_run
from assayline.flows.live.watch import RunReport, Screen, Watched, open_screen, wait_for_one
from assayline.report.markdown import render_table
from assayline.runs.manifest import PromptCounts
from assayline.settings import load_settings
from assayline.spec.evaluation import MOST_WORKERS, EvalSpec
from assayline.spec.file import SpecFile, find_lost_template, load_spec, parse_spec
from assayline.store.mirror import mirroring, open_mirror
from assayline.tasks.evaluate import generate, prepare_prompts
from assayline.tasks.ray_cluster import Cluster, open_cluster

POLL_INTERVAL_S = 0.5
SpecParameter = EvalSpec | SpecFile | Annotated[str, Field(title="path")]
"""What the flows take for a spec."""
Resume = Annotated[Literal["auto", "never"], Field(title="choice")] | Annotated[str, Field(title="run id")]


def name_run() -> str:
    """The run's name in the UI: spec and model."""
    try:
        spec = as_spec(flow_run.parameters["spec"])
    except Exception:
        return "evaluate"  # the flow itself says what is wrong with its spec
    return f"{spec.name} · {spec.model.rstrip('/').rsplit('/', 1)[-1]}"


def as_spec(spec: SpecParameter | dict[str, Any]) -> EvalSpec:
    """The spec that a flow's parameter means. Raises SpecError."""
    if isinstance(spec, str):
        return load_spec(spec)
    if isinstance(spec, dict):
        spec = SpecFile.model_validate(spec) if "file" in spec else parse_spec(spec)
    return spec.load() if isinstance(spec, SpecFile) else spec


def check_deployed_spec(spec: SpecParameter) -> None:
    """Refuses a spec of prefect.yaml whose template did not survive `prefect deploy`. Raises SpecError."""
    if not isinstance(spec, EvalSpec):
        return
    template = find_lost_template(spec.model_dump(mode="json"), Path("prefect.yaml"))
    if template and deployment.id is not None:  # last, as it asks the API
        raise SpecError(
            f"The template {template!r} in prefect.yaml did not reach this run: Prefect replaces {{{{ }}}} there. "
            "hint: put the spec into a file of its own and give `spec: path.yaml`, or "
            "`spec: {file: path.yaml, overrides: {prompts.limit: 100}}`."
        )


def show_run_id(run_id: str) -> None:
    """Puts the end of the run's id behind the flow run's name, so that two runs of a spec can be told apart."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), name=f"{flow_run.name} · {run_id[-4:]}")
    except Exception as error:  # a name is not worth a run
        get_run_logger().debug("The flow run keeps its name: %s", error)


@flow(name="evaluate", flow_run_name=name_run, persist_result=False)
def evaluate(spec: SpecParameter, resume: Resume = AUTO, benchmark_id: str | None = None) -> dict[str, Any]:
    """Evaluates a model on a prompt set and returns the run's id and metrics.

    Args:
        spec: the spec, the path of a YAML file with one, or {file, overrides} to set some of its fields.
        resume: auto resumes the newest unfinished run of this spec, if there is one; never starts a new run; the
            id of a run resumes that one.
        benchmark_id: the benchmark that a new run is part of; set by the flow `benchmark`.
    """
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    check_deployed_spec(spec)
    mirror = open_mirror(settings)
    evaluation = begin_evaluation(as_spec(spec), settings, resume, benchmark_id, deployment.id is not None)
    with mirroring(mirror, evaluation.run_dir, get_run_logger()):
        return _evaluate(evaluation)


def _evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Drives a run that has begun to its end and its report."""
    show_run_id(evaluation.run_id)
    for note in evaluation.notes:
        get_run_logger().warning(note)
    get_run_logger().info("Run %s, parts and logs in %s", evaluation.run_id, evaluation.run_dir)
    try:
        counts, reachable = _generate_all(evaluation)
        result = evaluation.finish(counts)
        for note in result.notes:
            get_run_logger().warning(note)
    except BaseException as error:
        _abandon(evaluation, error)
        if isinstance(error, Exception):
            report_run(evaluation)
        raise
    headline = describe_figures(result.metrics)
    if written := report_run(evaluation):
        result = dataclasses.replace(result, report=str(written.html.absolute()))
    if reachable:
        page = written.document if written else render_table(tabulate_metrics(result))
        publish_page("report", evaluation.spec.name, page, headline)
    else:
        get_run_logger().error("The run is complete and stored; its page has no metrics, as the API does not answer.")
    return completed(headline, dataclasses.asdict(result))


def _generate_all(evaluation: Evaluation) -> tuple[PromptCounts, bool]:
    """Prepares and generates side by side, loading results meanwhile. Stops everything if anything fails.

    Also returns whether Prefect's API answered to the end.
    """
    if evaluation.is_answered:
        return evaluation.prepare(), True
    with ExitStack() as stack:
        screen = stack.enter_context(open_screen(evaluation.run_dir, evaluation.settings))
        cluster = stack.enter_context(
            open_cluster(evaluation.spec, evaluation.settings)
        )  # left last: workers end by it
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
    """The tasks of a run: one that prepares, and one per worker."""

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
        """Starts workers until there are as many as there are to be; a cluster may have grown."""
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
    """Shows progress and loads parts until all tasks are over; a failed one stops the others.

    Returns whether all progress could be shown.
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
        if time.monotonic() - loaded_s >= evaluation.settings.load_interval_s:
            if obstacle := evaluation.try_load():
                report.warn_once(f"{obstacle} Results are still stored as part files.")
            loaded_s = time.monotonic()
        wait_for_one(work.tasks, POLL_INTERVAL_S)
    _try_to(partial(show, is_last=True), report)
    return report.close()


def _try_to(show: Callable[[], None], report: RunReport) -> None:
    """Shows how far the run is. What cannot be shown now stops no run: the next look tries again."""
    try:
        show()
    except Exception as error:
        report.warn_once(f"Progress is not shown, and the run continues: {type(error).__name__}: {error}")


def _abandon(evaluation: Evaluation, cause: BaseException) -> None:
    """Stores what there is. What cannot be stored is said, and does not hide why the run ended."""
    state = "failed" if isinstance(cause, Exception) else "cancelled"
    message = str(cause) or type(cause).__name__
    if state == "cancelled":
        signal = "Ctrl-C" if type(cause) is KeyboardInterrupt else "SIGTERM, as of a cancellation in Prefect"
        message = f"It was stopped before its end, by {signal}."
    try:
        evaluation.abandon(state, message)
    except StoreError as error:
        get_run_logger().error(str(error))
