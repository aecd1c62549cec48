"""A worker in a process of its own on this machine: `assayline worker`, started, heard and, if it is killed, replaced.

It is the same command that people start on other machines. So a worker that dies takes nothing with it: its lease is
given back at once, and its place is taken by a new one, which answers what it had claimed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from assayline.errors import (
    AssaylineError,
    EngineError,
    ModelError,
    PromptError,
    RunFailedError,
    SpecError,
    StoreError,
)
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.worker import WorkerReport
from assayline.records import EngineEvent
from assayline.runs.leases import bury

MOST_REPLACEMENTS = 3
"""Workers that may be killed in one place: what kills more of them will kill the next one, too."""

ERRORS: dict[int, type[AssaylineError]] = {
    error.exit_code: error for error in (SpecError, PromptError, ModelError, EngineError, StoreError, RunFailedError)
}


def run_apart(
    order: WorkOrder,
    log: Callable[[str], None],
    on_engine_log: Callable[[str], None],
    on_event: Callable[[EngineEvent], None],
    warn: Callable[[str], None],
) -> WorkerReport:
    """`run_worker`, in a process. Raises what that raises, and EngineError for a process that is killed too often."""
    name: str | None = order.worker
    for _ in range(MOST_REPLACEMENTS + 1):
        listener = _Listener(log, on_engine_log, on_event)
        code = _run_once(order, name, listener)
        if code == 0 and listener.report is not None:
            return listener.report
        if code >= 0:
            raise ERRORS.get(code, EngineError)(listener.error or f"{order.worker} ended with exit code {code}.")
        gone = listener.worker or order.worker
        bury(order.run_dir, gone)
        name = None
        warn(f"The process of {gone} was killed ({_name_signal(-code)}). What it had written is kept.")
    raise EngineError(
        f"{MOST_REPLACEMENTS + 1} processes in the place of {order.worker} were killed, the last one by "
        f"{_name_signal(-code)}. What they had written is kept: the same command resumes the run."
    )


class _Listener:
    """Takes a worker's lines."""

    def __init__(
        self,
        log: Callable[[str], None],
        on_engine_log: Callable[[str], None],
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self._takers: dict[str, Callable[[Any], None]] = {
            "log": log,
            "engine": on_engine_log,
            "event": lambda data: on_event(EngineEvent(**data)),
            "worker": lambda name: setattr(self, "worker", name),
            "error": lambda words: setattr(self, "error", words),
            "report": lambda data: setattr(self, "report", WorkerReport(**data)),
        }
        self.worker: str | None = None
        self.error: str | None = None
        self.report: WorkerReport | None = None

    def hear(self, line: str) -> None:
        """One line; a process that is killed may leave half of one."""
        with contextlib.suppress(json.JSONDecodeError):
            for kind, what in json.loads(line).items():
                self._takers[kind](what)


def _run_once(order: WorkOrder, name: str | None, listener: _Listener) -> int:
    """The exit code of one process: negative for a signal."""
    named = ["--name", name] if name else []
    command = [sys.executable, "-m", "flows", "worker", str(order.run_dir), "--alone", "--parent", *named]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=_environment(order)
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            listener.hear(line)
        return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _environment(order: WorkOrder) -> dict[str, str]:
    """This process's, with the folders of the run's settings, which a test or a caller may have given another way."""
    given = order.settings.model_dump(mode="json", exclude_none=True, exclude={"hf_token"})
    return {**os.environ, **{f"ASSAYLINE_{name.upper()}": str(value) for name, value in given.items()}}


def _name_signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
