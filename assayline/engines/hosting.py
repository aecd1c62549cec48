"""An engine host as its worker sees it: start, send, receive, read the log, kill.

The host's output goes to a file, one per engine generation, so that a death can be explained afterwards; its lines are
relayed while it lives. `kill` ends the whole process group and waits until it is gone: process exit is the one
dependable way to get a GPU's memory back.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from assayline.errors import EngineError

POLL_INTERVAL_S = 0.5
TAIL_LINES = 30


class HostProcess:
    """One child process with a message channel and a log file."""

    def __init__(self, env: Mapping[str, str], log_path: Path, on_log: Callable[[str], None]) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path = log_path
        self._on_log = on_log
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        ours, theirs = socket.socketpair()
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "assayline.engines.host", str(theirs.fileno())],
                env=dict(env),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self._log = open(log_path, "rb")  # noqa: SIM115 - lives as long as the process
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Process id, which is also the process group's."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives; negative for a signal."""
        return self._process.poll()

    def send(self, message: Any) -> None:
        """Sends one message. Raises EngineError if the host is gone."""
        try:
            self._connection.send(message)
        except OSError:
            raise EngineError(self.describe_death()) from None

    def receive(self, timeout_s: float = POLL_INTERVAL_S) -> Any | None:
        """The next message, or None after `timeout_s` of silence. Raises EngineError if the host is gone."""
        try:
            message = self._connection.recv() if self._connection.poll(timeout_s) else None
        except (EOFError, OSError):
            raise EngineError(self.describe_death()) from None
        self.relay_log()
        return message

    def relay_log(self) -> None:
        """Passes on the log's new lines."""
        while not self._log.closed and (line := self._log.readline()):
            if text := line.decode("utf-8", "replace").strip():
                self._tail.append(text)
                self._on_log(text)

    def describe_death(self) -> str:
        """A sentence with the exit code and the end of the log."""
        try:
            code: int | None = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.relay_log()
        how = "is unreachable" if code is None else f"died of {_name_exit(code)}"
        tail = "\n".join(f"    {line}" for line in list(self._tail)[-8:])
        return f"The engine's process {how}. The end of its log, {self.log_path}:\n{tail}"

    def wait(self, timeout_s: float) -> bool:
        """Whether it exited within `timeout_s`."""
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kills what is left of the process group and waits until it is gone. Safe to call twice."""
        if self._log.closed:
            return  # its number may be another process's by now
        deadline = time.monotonic() + 10
        while _signal_group(self.pid) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(0.02)
        self._process.wait(timeout=10)
        self.relay_log()
        self._connection.close()
        self._log.close()


def _signal_group(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _name_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
