"""A run in the terminal: a progress bar, and log lines above it.

The bar shows requests done, throughput, max concurrency and errors, and only warnings and errors are printed above it.
If stderr is not a terminal, all log lines but the engine's are printed; ASSAYLINE_BAR=false prints those too.
"""

import contextlib
import importlib
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from assayline.comparison.gate import GateFailedError
from assayline.errors import AssaylineError
from assayline.flows.cli.process import find_prefect_api, prefect_api
from assayline.flows.cli.words import has_bar, print_text
from assayline.run.drive import LOG
from assayline.run.driver import FrontEnd
from assayline.run.progress import RunStatus
from assayline.run.watch import EngineFilter, RunReport, count_workers
from assayline.settings import Settings
from assayline.words import SPACE

LINE = "%(asctime)s.%(msecs)03d | %(levelname)-7s | %(name)s - %(message)s"


class LineHandler(logging.Handler):
    """Prints log lines literally, above the bar if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.console = log_console()
        self.setFormatter(logging.Formatter(LINE, "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        print_text(self.format(record).replace(SPACE, " "), self.console)


class Terminal(FrontEnd):
    """The command line's front end: threads, log lines and a bar."""

    def __init__(self, settings: Settings, handler: LineHandler) -> None:
        super().__init__(settings)
        self._handler = handler

    @contextlib.contextmanager
    def watch(self) -> Iterator[RunReport]:
        if not has_bar(self.settings):
            yield RunReport(self.log, has_engine_lines=True)
            return
        bar, level = Bar(self._handler.console), self._handler.level
        self._handler.setLevel(logging.WARNING)
        try:
            with bar.progress:
                yield RunReport(self.log, bar.show, has_engine_lines=True)
        finally:
            self._handler.setLevel(level)


@contextlib.contextmanager
def open_terminal(settings: Settings, level: int = logging.INFO) -> Iterator[Terminal]:
    """Print the log inside the context, from this level on. ASSAYLINE_TRACEBACKS prints an error's traceback."""
    handler, before = LineHandler(), LOG.level
    if settings.bar:
        handler.addFilter(EngineFilter())
    LOG.addHandler(handler)
    LOG.setLevel(level)
    try:
        yield Terminal(settings, handler)
    except AssaylineError as error:
        if settings.tracebacks:
            traceback.print_exception(error)
        raise
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(before)


Call = Callable[..., Any]
"""Does what a command asks: an operation's name, and its arguments."""


@contextlib.contextmanager
def open_front(settings: Settings, level: int = logging.INFO, *, is_flow: bool = False) -> Iterator[Call]:
    """Decide whether a command's work is a flow run, and yield the function that does it.

    It is if Prefect's API is configured, or if `is_flow`, on a temporary server if need be. Flows and operations
    have the same names and arguments. If a flow fails a gate, the gate's report is returned. The log is printed from
    this level on.
    """
    if is_flow or find_prefect_api(os.environ):
        if level > logging.INFO:
            os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", logging.getLevelName(level))
        with prefect_api():
            yield _call_flow
        return
    from assayline.api import operations

    with open_terminal(settings, level) as front:
        yield lambda name, **asked: getattr(operations, name)(front=front, **asked)


def _call_flow(name: str, **asked: Any) -> Any:
    module, flow = {"evaluate": ("evaluate", "complete_asked"), "night": ("nightly", "nightly")}.get(name, (name, name))
    try:
        return getattr(importlib.import_module(f"assayline.flows.{module}"), flow)(**asked)
    except GateFailedError as failure:
        return failure.report


class ShareColumn(TimeRemainingColumn):
    """The share that is done and the time left, as far as they are known."""

    def render(self, task: Task) -> Text:
        left = "" if task.time_remaining is None else f"{super().render(task)} left"
        return Text("" if task.total is None else f"{task.percentage:3.0f}% {left}")


class Bar:
    """The progress bar."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            # A narrow terminal truncates columns without min_width; keep the remaining time visible.
            ShareColumn(table_column=Column(no_wrap=True, min_width=17)),
            TextColumn("{task.fields[counts]}", markup=False),
            TextColumn("after"),
            TimeElapsedColumn(),
            BarColumn(bar_width=None),
            console=console,
            transient=True,
            expand=True,
        )
        self.task = self.progress.add_task("loading engine", total=None, counts="")

    def show(self, status: RunStatus, expected: int | None) -> None:
        """Update the bar. `expected`: number of requests; None while prompts are still being read."""
        has_window = status.window_requests is not None  # None for an open loop
        is_over = expected is not None and status.answered >= expected
        phase = "generating" if status.output_tokens_per_s is not None else status.describe_start() or "loading engine"
        counts = [
            f"{status.answered:,}{'' if expected is None else f'/{expected:,}'}",
            f"{status.errors:,} errors" if status.errors != 1 else "1 error",  # early, as narrow terminals cut the end
        ]
        if status.output_tokens_per_s and not is_over:  # 0 in a second in which no answer ended
            counts.append(f"{status.output_tokens_per_s:,.0f} tokens/s")
        if has_window:
            counts.append(f"max concurrency {status.window_requests:,}")
        if len(status.workers) > 1:
            counts.append(count_workers(status))
        self.progress.update(
            self.task,
            description="closing engine" if is_over else phase,
            completed=status.answered,
            total=expected,
            counts=", ".join(counts) if status.answered else "",
        )


def log_console() -> Console:
    """Return the console of the bar and the log lines above it, without markup."""
    return Console(stderr=True, markup=False, emoji=False)
