"""FlowFront: runs in a Prefect flow, with tasks, progress on the run's page and cancellation.

All log lines go to the run's page. The engine's are not printed, unless with ASSAYLINE_BAR=false.
"""

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any, cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, TerminationSignal
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled

from assayline.engines.pool import EnginePool
from assayline.flows.cli.process import Terminated
from assayline.flows.live.reporting import publish_page
from assayline.report.document import Document
from assayline.report.make import Written
from assayline.report.markdown import render_table
from assayline.report.measures import tabulate_metrics
from assayline.run.begin import RunPlan
from assayline.run.driver import FrontEnd
from assayline.run.evaluation import RunResult
from assayline.run.progress import RunStatus
from assayline.run.stages import say_page
from assayline.run.watch import AnyLogger, EngineFilter, RunReport
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.manifest import Purpose
from assayline.store.viewer import find_viewer
from assayline.tasks.evaluate import generate, prepare_prompts

LOOK_INTERVAL_S = 15.0
"""Seconds between two looks for a cancellation."""
END_WAIT_S = 5.0
"""Seconds that the end of a run waits for the API."""


class CancelledInPrefect(Abort, Terminated):
    """The flow run, or one that called it, was cancelled. Ends all of them, which `end_flow_runs` sets to Cancelled."""

    def __init__(self, flow_run_ids: set[str]) -> None:
        super().__init__("Stopped before its end by a cancellation in Prefect.")
        self.state: State[Any] = Cancelled(message=str(self))
        """The state that Prefect logs."""
        self._flow_run_ids = flow_run_ids

    def end_flow_runs(self) -> None:
        """Set the state of all flow runs; if the API does not answer, Prefect does so after some minutes."""
        with suppress(Exception), get_client(sync_client=True) as client:
            for one in self._flow_run_ids:
                client.set_flow_run_state(UUID(one), self.state, force=True)


class FlowReport(RunReport):
    """Sends the newest progress to the run's page, and looks for cancellations, in a thread: a slow or unreachable API
    delays nothing."""

    def __init__(self, log: AnyLogger) -> None:
        super().__init__(log, has_engine_lines=True)
        self.failure: str | None = None
        """Why the newest progress did not arrive."""
        self._newest: deque[tuple[float, str]] = deque(maxlen=1)
        """The progress that is not sent yet."""
        self._artifact: UUID | None = None
        self._task: contextvars.Context | None = None
        """That of a worker's task, whose page shows the progress, too."""
        self._cancelling: list[set[str]] = []
        self._is_closed = False
        self._has_news = threading.Event()
        run = contextvars.copy_context().run  # Prefect finds the current run in it
        self._thread = threading.Thread(target=run, args=[self._work], name="reports", daemon=True)
        self._thread.start()

    def enter_task(self) -> None:
        self._task = contextvars.copy_context()
        self._has_news.set()

    def show(self, status: RunStatus, expected: int | None, *, is_last: bool = False) -> None:
        """Report the progress. Raises CancelledInPrefect if two looks in a row found a cancellation."""
        super().show(status, expected, is_last=is_last)
        if len(self._cancelling) > 1 and not is_last:
            raise CancelledInPrefect(self._cancelling[0])

    def send_progress(self, percent: float, text: str) -> None:
        self._newest.append((percent, text))
        self._has_news.set()

    def close(self) -> None:
        """Wait up to END_WAIT_S for the last progress to arrive; log a warning if it did not."""
        self._is_closed = True
        self._has_news.set()
        self._thread.join(END_WAIT_S)
        if self._thread.is_alive():
            self.failure = self.failure or f"the API did not answer within {END_WAIT_S:.0f} s"
        if self.failure:
            self.warn_once(f"Failed to send progress to the run's page: {self.failure}")

    def _work(self) -> None:
        while self._newest or not self._is_closed:
            self._has_news.wait(LOOK_INTERVAL_S)
            self._has_news.clear()
            if self._newest and (self._task or self._is_closed):
                try:
                    self._update_artifact(*self._newest.pop())
                    self.failure = None
                except Exception as error:  # the API's client may raise anything; a report must not fail the run
                    self.failure = f"{type(error).__name__}: {error}"
            if not self._is_closed:
                with suppress(Exception):  # of an API that does not answer
                    self._look_for_cancellation()

    def _look_for_cancellation(self) -> None:
        """Read the states of the flow run and its callers. A worker stops doing so after an outage of the API."""
        ids = {str(flow_run.id), str(flow_run.parent_flow_run_id or flow_run.id), str(flow_run.root_flow_run_id)}
        with get_client(sync_client=True) as client:
            states = [client.read_flow_run(UUID(one)).state for one in ids]
        is_cancelling = any(state is not None and state.is_cancelling() for state in states)
        self._cancelling = [*self._cancelling, ids] if is_cancelling else []

    def _update_artifact(self, percent: float, text: str) -> None:
        if self._artifact is None:
            context = self._task or contextvars.copy_context()
            created = context.run(create_progress_artifact, progress=percent, key="progress", description=text)
            self._artifact = cast(UUID, created)
        else:
            update_progress_artifact(self._artifact, progress=percent, description=text)


class FlowFront(FrontEnd):
    """Runs whose work is tasks, and whose judges and cells are flow runs, which `complete_by` starts."""

    def __init__(self, settings: Settings, complete_by: Callable[..., RunResult]) -> None:
        super().__init__(settings, get_run_logger())
        self.is_deployed = deployment.id is not None
        self.flow_run_id = str(flow_run.root_flow_run_id)
        self._complete_by = complete_by
        self._is_reachable = True
        if settings.bar:
            hide_engine_lines()

    def submit(self, pool: Executor, work: Callable[[AnyLogger], Any], worker: str | None = None) -> Future[Any]:
        run = contextvars.copy_context().run  # Prefect finds the current flow run in it
        return pool.submit(run, generate, worker, work) if worker else pool.submit(run, prepare_prompts, work)

    @contextmanager
    def watch(self) -> Iterator[RunReport]:
        report = FlowReport(self.log)
        try:
            yield report
        finally:
            report.close()
            self._is_reachable = report.failure is None

    def complete(
        self, spec: EvalSpec, purpose: Purpose, label: str | None = None, engines: EnginePool | None = None
    ) -> RunResult:
        return self._complete_by(spec, purpose, label, engines)

    def begin(self, run_id: str) -> None:
        rename_flow_run(f"{flow_run.name} · {run_id[-4:]}")

    def publish(self, plan: RunPlan, result: RunResult, written: Written | None) -> None:
        """Attach the report to the flow run."""
        spec = plan.spec
        if not self._is_reachable:
            self.log.error("Run stored, but its page in Prefect lacks the metrics: the API does not answer.")
            return
        page = written.document if written else render_table(tabulate_metrics(result.metrics))
        if plan.purpose.kind == "night" and written:
            said = say_page(written.document, result.headline)
            publish_page("night", written.document.title, page, said)
            return
        viewer = find_viewer(self.settings.data_dir, result.run_id)
        figures = [result.message, *([f"[viewer]({viewer})"] if viewer else [])]
        publish_page("report", spec.name, page, ", ".join(figures))

    def show_page(self, kind: str, name: str, page: Document, headline: str) -> None:
        publish_page(kind, name, page, headline)

    def notify(self, message: str) -> None:
        """Leave the message to Prefect's automations (`assayline notify`)."""

    def explain(self, cause: BaseException) -> str:
        if isinstance(cause, CancelledInPrefect):
            return str(cause)
        if isinstance(cause, TerminationSignal) or type(cause) is Terminated:
            return "Stopped before its end by SIGTERM, for example a cancellation in Prefect."
        if isinstance(cause, KeyboardInterrupt):
            return super().explain(cause)
        reason = str(cause) or type(cause).__name__
        return f"Stopped before its end by Prefect ({reason}); the log of the flow run has the reason."


def rename_flow_run(name: str) -> None:
    """Rename the flow run, so that the lists in Prefect's UI distinguish runs of one spec."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), name=name)
    except Exception as error:  # a missing name must not fail the run
        get_run_logger().debug("Failed to rename the flow run: %s", error)


def hide_engine_lines() -> None:
    """Keep the lines of engines from the terminal. Idempotent."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        is_new = not any(isinstance(present, EngineFilter) for present in handler.filters)
        if is_new and isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(EngineFilter())
