"""Progress of a run, its slow workers and its engines' troubles, as log lines."""

import logging
import re
import time
from collections.abc import Callable

from assayline.records import EngineEvent
from assayline.run.progress import ALIVE, LOST, OPENING, RunStatus
from assayline.words import count

AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]
REPORT_INTERVAL_S = 15.0
"""Seconds between two reports of progress."""
ENGINE_MARK = "vLLM: "
"""Prefix of an engine's line in the log."""
VLLM_LINE = re.compile(r"^(?:\([^)]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] ")
TROUBLE = frozenset({"failed", "reduced", "isolated", "restored"})
"""Events of an engine that are logged as warnings."""


class RunReport:
    """Logs the progress of a run, its slow workers and its engines' troubles.

    `draw` is called with each progress and the number of requests, None while prompts are still being read.
    """

    def __init__(
        self,
        log: AnyLogger,
        draw: Callable[[RunStatus, int | None], None] | None = None,
        *,
        has_engine_lines: bool = False,
    ) -> None:
        """`has_engine_lines`: log what an engine prints at its own level, not as DEBUG."""
        self.log = log
        self._has_engine_lines = has_engine_lines
        self._draw = draw
        self._started_s = time.monotonic()
        self._shown_s = float("-inf")
        self._said = ""
        self._slow: set[str] = set()
        self._warned: set[str] = set()
        self._troubled: set[str] = set()

    def enter_task(self) -> None:
        """Note that the task of a worker, which calls this, has begun."""

    def show(self, status: RunStatus, expected: int | None, *, is_last: bool = False) -> None:
        """Report the progress, at most once per interval and only if it has changed."""
        if self._draw is not None:
            self._draw(status, expected)
        now = time.monotonic()
        self._warn_of_slow_workers(status)
        if now - self._shown_s < REPORT_INTERVAL_S if not is_last else expected is None:
            return
        share = min(status.answered / expected, 1.0) if expected else 0.0
        of = "" if expected is None else f" of {expected}"
        text = f"{status.answered}{of} requests done"
        start = status.describe_start()
        shown = "; ".join(filter(None, [text, start]))
        if shown == self._said:
            return
        self._said, self._shown_s = shown, now
        self.send_progress(100 * share, shown)
        percent = f" ({100 * share:.0f}%)" if expected else ", prompts are still being read"
        engine = f"; engine: {start}" if start else ""
        if status.answered or expected or start:
            self.log.info("%s%s, after %.0f s%s", text, percent, now - self._started_s, engine)

    def hear(self, worker: str, log: AnyLogger, event: EngineEvent) -> None:
        """Log a failure, reduction or rebuild of an engine. Called in the worker's driving thread."""
        words = (event.message or "").partition("\n")[0].removeprefix("The engine failed: ")
        if event.event in TROUBLE:
            self._troubled.add(worker)
            log.warning("Engine %d %s: %s", event.engine_generation, event.event, words)
        elif event.event == "opened" and worker in self._troubled:
            log.info("Engine %d %s %s", event.engine_generation, event.event, words)

    def hear_engine(self, log: AnyLogger, line: str) -> None:
        """Log a line that an engine printed: at its own level without vLLM's prefix, or as DEBUG."""
        match = VLLM_LINE.match(line) if self._has_engine_lines else None
        if match:
            log.log(logging.getLevelNamesMapping()[match["level"]], ENGINE_MARK + line[match.end() :])
        else:
            log.debug(line)

    def warn_once(self, text: str) -> None:
        """Log a warning the first time it occurs."""
        if text not in self._warned:
            self._warned.add(text)
            self.log.warning(text)

    def send_progress(self, percent: float, text: str) -> None:
        """Show the progress elsewhere, too."""

    def _warn_of_slow_workers(self, status: RunStatus) -> None:
        for worker in status.workers:
            if worker.is_slow and worker.worker not in self._slow:
                self._slow.add(worker.worker)
                self.log.warning(
                    "%s on %s is slow: %.0f output tokens/s, less than half of the others' median",
                    worker.worker,
                    worker.device,
                    worker.output_tokens_per_s,
                )


def count_workers(status: RunStatus) -> str:
    """Format the number of workers by state: `7 workers (1 opening, 1 lost, 1 slow)`."""
    counts = {state: status.count(state) for state in (OPENING, LOST)}
    counts["slow"] = sum(worker.is_slow for worker in status.workers)
    troubles = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    return count(status.count(ALIVE), "worker") + (f" ({troubles})" if troubles else "")


class EngineFilter(logging.Filter):
    """Drops the lines of engines below ERROR. They are in the engine's log file, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not record.getMessage().startswith(ENGINE_MARK)
