"""A run in the terminal: a bar with what is left, speed, window and errors, and above it only what needs attention.

Prefect's log lines, and the engine's, still go to the run's page and to files. Where the output is no terminal there
is no bar, and all lines but the engine's are shown; with ASSAYLINE_BAR=false those are shown, too.
"""

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from assayline.evaluation.progress import Standing
from assayline.settings import Settings
from flows.cli.words import CONSOLE_LEVEL, has_bar, print_text
from flows.live.workers import count_workers
from tasks.terminal import console_handlers


class Screen:
    """The bar. Use as a context manager; log lines below WARNING stay off the terminal meanwhile."""

    def __init__(self, run_dir: Path, console: Console) -> None:
        self._run_dir = run_dir
        self._console = console
        self._handlers: list[tuple[PrefectConsoleHandler, Console, int]] = []
        self._level_before = os.environ.get(CONSOLE_LEVEL)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            # A narrow terminal cuts what has no min_width: the time left must be seen.
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
        self._task = self._bar.add_task("engine is loading", total=None, counts="")

    def __enter__(self) -> "Screen":
        for handler in console_handlers():
            self._handlers.append((handler, handler.console, handler.level))
            handler.console = self._console
            handler.setLevel(max(handler.level, logging.WARNING))
        os.environ[CONSOLE_LEVEL] = "WARNING"
        print_text(f"Run {self._run_dir.name}, parts and logs in {self._run_dir}", self._console)
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
        """Moves the bar. `expected` is how many requests there are; None while prompts are still read."""
        has_window = standing.window_requests is not None  # an open loop has none
        answering = standing.output_tokens_per_s is not None
        counts = [f"{standing.answered:,}{'' if expected is None else f'/{expected:,}'}"]
        if standing.output_tokens_per_s is not None:
            counts.append(f"{standing.output_tokens_per_s:,.0f} tokens/s")
        if has_window:
            counts.append(f"window {standing.window_requests:,}")
        if len(standing.workers) > 1:
            counts.append(count_workers(standing))
        counts.append(f"{standing.errors:,} errors" if standing.errors != 1 else "1 error")
        self._bar.update(
            self._task,
            description="answering" if answering else "engine is loading",
            completed=standing.answered,
            total=expected,
            counts=", ".join(counts) if standing.answered else "",
        )


def log_console() -> Console:
    """Where the bar is and, above it, log lines: they name people's things, which are no markup."""
    return Console(stderr=True, markup=False, emoji=False)


def open_screen(run_dir: Path, settings: Settings) -> AbstractContextManager[Screen | None]:
    """A screen where there is a terminal that can have one; otherwise None, in a context that does nothing."""
    return Screen(run_dir, log_console()) if has_bar(settings) else nullcontext()
