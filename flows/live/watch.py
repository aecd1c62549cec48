"""Progress of a run: a bar in the terminal, a table of workers in Prefect, and the states of its tasks.

The bar shows requests done, throughput, max concurrency and errors; only warnings and errors are printed above it.
All log lines, of Prefect and of the engine, go to the run's page and to files. If stderr is not a terminal, all lines
but the engine's are printed instead of a bar; ASSAYLINE_BAR=false prints the engine's lines too.

Task states come from the task runner and not from Prefect's API. So an unreachable server does not hide that a task
has ended, and a run sends fewer API requests.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.futures import PrefectFuture
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.runtime import flow_run
from prefect.states import Cancelled
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from assayline.evaluation.progress import ALIVE, LOST, OPENING, Standing, WorkerStanding
from assayline.flows.cli.process import Terminated
from assayline.flows.cli.words import CONSOLE_LEVEL, has_bar, print_text
from assayline.settings import Settings
from assayline.tasks.artifacts import AnyLogger, Reports
from assayline.tasks.evaluate import console_handlers
from assayline.words import count

REPORT_INTERVAL_S = 15.0
"""Seconds between two reports of progress, two tables of workers, and two looks for a cancellation."""
PROGRESS = "progress"


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


class RunReport:
    """Reports progress and workers. A slow or unreachable API delays nothing; `close` reports the failure."""

    def __init__(self, log: AnyLogger) -> None:
        self._log = log
        self._started_s = time.monotonic()
        self._shown_s = self._table_s = float("-inf")
        self._looked_s = self._started_s
        self._said = ""
        self._artifact: UUID | None = None
        self._cancelling: list[set[str]] = []
        self._reports = Reports()
        self._warned: set[str] = set()
        self._slow: set[str] = set()

    def show(self, standing: Standing, expected: int | None, *, is_last: bool = False) -> None:
        """Update log, progress and table, at most once per interval; log and progress only if they have changed.

        `expected`: number of requests; None while prompts are still being read.
        """
        now = time.monotonic()
        if now - self._looked_s >= REPORT_INTERVAL_S:
            self._looked_s = now
            self._reports.send("cancellation", self._look_for_cancellation)
        if len(standing.workers) > 1:
            self._show_workers(standing, now, is_last)
        if now - self._shown_s < REPORT_INTERVAL_S if not is_last else expected is None:
            return
        share = min(standing.answered / expected, 1.0) if expected else 0.0
        of = "" if expected is None else f" of {expected}"
        text = f"{standing.answered}{of} requests done"
        start = standing.describe_start()
        shown = "; ".join(filter(None, [text, start]))
        if shown == self._said:
            return
        self._said, self._shown_s = shown, now
        self._reports.send(PROGRESS, lambda: self._update_artifact(100 * share, shown))
        percent = f" ({100 * share:.0f}%)" if expected else ", prompts are still being read"
        engine = f"; engine: {start}" if start else ""
        self._log.info("%s%s, after %.0f s%s", text, percent, now - self._started_s, engine)

    def raise_if_cancelled(self) -> None:
        """Raise CancelledInPrefect if two looks in a row found a cancellation, which no worker has carried out."""
        if len(self._cancelling) > 1:
            raise CancelledInPrefect(self._cancelling[0])

    def _look_for_cancellation(self) -> None:
        """Read the states of the flow run and its callers. A worker stops doing so after an outage of the API."""
        ids = {str(flow_run.id), str(flow_run.parent_flow_run_id or flow_run.id), str(flow_run.root_flow_run_id)}
        with get_client(sync_client=True) as client:
            states = [client.read_flow_run(UUID(one)).state for one in ids]
        is_cancelling = any(state is not None and state.is_cancelling() for state in states)
        self._cancelling = [*self._cancelling, ids] if is_cancelling else []

    def warn_once(self, text: str) -> None:
        """Log a warning the first time it occurs."""
        if text not in self._warned:
            self._warned.add(text)
            self._log.warning(text)

    def close(self) -> bool:
        """Wait up to END_WAIT_S for the last reports. Return whether progress arrived; log a warning if not."""
        self._reports.close()
        reason = self._reports.failures.get(PROGRESS)
        if reason is not None:
            self.warn_once(f"Failed to send progress to the run's page: {reason}")
        return reason is None

    def _update_artifact(self, percent: float, text: str) -> None:
        if self._artifact is None:
            created = create_progress_artifact(progress=percent, key="progress", description=text)
            self._artifact = cast(UUID, created)
        else:
            update_progress_artifact(self._artifact, progress=percent, description=text)

    def _show_workers(self, standing: Standing, now: float, is_last: bool) -> None:
        for worker in standing.workers:
            if worker.is_slow and worker.worker not in self._slow:
                self._slow.add(worker.worker)
                self._log.warning(
                    "%s on %s is slow: %.0f output tokens/s, less than half of the others' median",
                    worker.worker,
                    worker.device,
                    worker.output_tokens_per_s,
                )
        if is_last or now - self._table_s >= REPORT_INTERVAL_S:
            self._table_s = now
            rate = standing.output_tokens_per_s
            line = count_workers(standing) + ("" if rate is None else f", {rate:,.0f} tokens/s")
            rows = [_row_of(worker) for worker in standing.workers]
            self._reports.send_table("workers", rows, line)


def count_workers(standing: Standing) -> str:
    """Format the number of workers by state: `7 workers (1 opening, 1 lost, 1 slow)`."""
    counts = {state: standing.count(state) for state in (OPENING, LOST)}
    counts["slow"] = sum(worker.is_slow for worker in standing.workers)
    troubles = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    return count(standing.count(ALIVE), "worker") + (f" ({troubles})" if troubles else "")


def _row_of(worker: WorkerStanding) -> dict[str, Any]:
    rate = worker.output_tokens_per_s
    return {
        "worker": worker.worker,
        "device": worker.device,
        "state": worker.state + (f": {worker.phase}" if worker.phase else "") + (", slow" if worker.is_slow else ""),
        "answered": worker.answered,
        "tokens/s": "" if rate is None else f"{rate:,.0f}",
    }


class Watched:
    """A submitted task and its state."""

    def __init__(self, future: PrefectFuture[Any]) -> None:
        self._future = future
        self.ended = threading.Event()
        future.add_done_callback(lambda _: self.ended.set())

    @property
    def is_over(self) -> bool:
        """Return True if the task has ended, successfully or not."""
        return self.ended.is_set()

    @property
    def has_completed(self) -> bool:
        """Return True if the task has completed."""
        return self.is_over and self._is_completed()

    @property
    def has_failed(self) -> bool:
        """Return True if the task has failed."""
        return self.is_over and not self._is_completed()

    def _is_completed(self) -> bool:
        try:
            self._future.wait()  # takes the final state from the runner, so that `state` does not call the API
        except Exception:
            return False  # there is no final state; `result` raises the reason
        return self._future.state.is_completed()


def wait_for_one(tasks: Sequence[Watched], timeout_s: float) -> None:
    """Wait until the first running task has ended, or until the timeout in seconds."""
    running = [task for task in tasks if not task.is_over]
    if running:
        running[0].ended.wait(timeout_s)


class Screen:
    """The progress bar. A context manager; inside it, log lines below WARNING are not printed."""

    def __init__(self, run_dir: Path, console: Console) -> None:
        self._run_dir = run_dir
        self._console = console
        self._handlers: list[tuple[PrefectConsoleHandler, Console, int]] = []
        self._level_before = os.environ.get(CONSOLE_LEVEL)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            # A narrow terminal truncates columns without min_width; keep the remaining time visible.
            TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("left", table_column=Column(no_wrap=True, min_width=4)),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeElapsedColumn(),
            BarColumn(bar_width=None),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("loading engine", total=None, counts="")

    def __enter__(self) -> "Screen":
        for handler in console_handlers():
            self._handlers.append((handler, handler.console, handler.level))
            handler.console = self._console
            handler.setLevel(max(handler.level, logging.WARNING))
        os.environ[CONSOLE_LEVEL] = "WARNING"
        print_text(f"Run {self._run_dir.name} started; part files and logs in {self._run_dir}", self._console)
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        for handler, console, level in self._handlers:
            handler.console = console
            handler.setLevel(level)
        if self._level_before is None:
            os.environ.pop(CONSOLE_LEVEL, None)
        else:
            os.environ[CONSOLE_LEVEL] = self._level_before

    def show(self, standing: Standing, expected: int | None) -> None:
        """Update the bar. `expected`: number of requests; None while prompts are still being read."""
        has_window = standing.window_requests is not None  # None for an open loop
        answering = standing.output_tokens_per_s is not None
        counts = [
            f"{standing.answered:,}{'' if expected is None else f'/{expected:,}'}",
            f"{standing.errors:,} errors"
            if standing.errors != 1
            else "1 error",  # early, as narrow terminals cut the end
        ]
        if standing.output_tokens_per_s is not None:
            counts.append(f"{standing.output_tokens_per_s:,.0f} tokens/s")
        if has_window:
            counts.append(f"max concurrency {standing.window_requests:,}")
        if len(standing.workers) > 1:
            counts.append(count_workers(standing))
        self._bar.update(
            self._task,
            description="generating" if answering else standing.describe_start() or "loading engine",
            completed=standing.answered,
            total=expected,
            counts=", ".join(counts) if standing.answered else "",
        )


def log_console() -> Console:
    """Return the console of the bar and the log lines above it, without markup."""
    return Console(stderr=True, markup=False, emoji=False)


def open_screen(run_dir: Path, settings: Settings) -> AbstractContextManager[Screen | None]:
    """Open a Screen if stderr is an interactive terminal; otherwise yield None."""
    return Screen(run_dir, log_console()) if has_bar(settings) else nullcontext()
