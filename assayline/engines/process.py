"""An engine host as its worker sees it: start, send, receive, read the log, kill.

The host's output goes to a file, one per engine generation, so that a death can be explained afterwards; its lines are
relayed while it lives. `kill` ends the whole process group and waits until it is gone: process exit is the one
dependable way to get a GPU's memory back.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from assayline.engines.environment import engine_environment
from assayline.engines.messages import Close
from assayline.errors import Death, EngineDiedError, Witness
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec

POLL_INTERVAL_S = 0.5
TAIL_LINES = 30
EXIT_WAIT_S = 5.0
STALL_MARGIN_S = 60.0
"""A server's requests end by their own time limit before the whole of it is taken for dead."""

EVIDENCE_BYTES = 1 << 17
"""How much of a log's end is read for the cause of a death: vLLM prints pages after the line that matters."""


class Launched(Protocol):
    """A started process: the part of `subprocess.Popen` that is used here."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Launch = Callable[[Mapping[str, str], int, int], Launched]
"""Starts an engine host, given its environment and the descriptors of its channel and its log."""


def start_host(env: Mapping[str, str], channel: int, log: int) -> "subprocess.Popen[bytes]":
    """Starts an engine host as a Python process in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "assayline.engines.host", str(channel)],
        env=dict(env),
        pass_fds=[channel],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


@dataclass(frozen=True, slots=True)
class HostSetup:
    """What an engine's process gets on this machine, and how long it may take."""

    env: Mapping[str, str]
    """The whole environment of the process."""
    log_path: Path
    start_timeout_s: float = 900.0
    close_timeout_s: float = 20.0
    stall_timeout_s: float = 600.0
    """An engine that has requests and makes no step for so long is taken for dead."""
    launch: Launch = start_host

    @classmethod
    def of(cls, settings: Settings, engine: EngineSpec, device_env: Mapping[str, str], log_path: Path) -> "HostSetup":
        """As settings and spec say, on a device that is bound by `device_env`."""
        stall_s = settings.engine_stall_timeout_s
        return cls(
            env=engine_environment(settings, device_env, engine.env),
            log_path=log_path,
            start_timeout_s=settings.engine_start_timeout_s,
            close_timeout_s=settings.engine_close_timeout_s,
            stall_timeout_s=max(stall_s, engine.server.timeout_s + STALL_MARGIN_S)
            if engine.kind.is_served
            else stall_s,
        )


class HostProcess:
    """One child process with a message channel and a log file."""

    def __init__(
        self,
        env: Mapping[str, str],
        log_path: Path,
        on_log: Callable[[str], None],
        launch: Launch = start_host,
    ) -> None:
        """Starts it."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path = log_path
        self.phase = "start"
        """start, or run once it generates: the same words in a log mean different things."""
        self._on_log = on_log
        self._oom_kills_before = count_oom_kills()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        ours, theirs = socket.socketpair()
        with open(log_path, "ab") as log:
            self._log_start = log.tell()
            self._process = launch(env, theirs.fileno(), log.fileno())
        theirs.close()
        self._log = open(log_path, "rb")  # noqa: SIM115 - lives as long as the process
        self._log.seek(self._log_start)
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
        """Sends one message. Raises EngineDiedError if the host is gone."""
        try:
            self._connection.send(message)
        except OSError:
            raise EngineDiedError(self.describe_death(), self.evidence()) from None

    def receive(self, timeout_s: float = POLL_INTERVAL_S) -> Any | None:
        """The next message, or None after `timeout_s` of silence. Raises EngineDiedError if the host is gone."""
        try:
            message = self._connection.recv() if self._connection.poll(timeout_s) else None
        except (EOFError, OSError):
            raise EngineDiedError(self.describe_death(), self.evidence()) from None
        self.relay_log()
        return message

    def relay_log(self) -> None:
        """Passes on the log's new lines."""
        while not self._log.closed and (line := self._log.readline()):
            if text := line.decode("utf-8", "replace").strip():
                self._tail.append(text)
                self._on_log(text)

    def listen(self, on_log: Callable[[str], None]) -> None:
        """From now on the log's new lines go there, and what it says of causes counts from here."""
        self.relay_log()
        self._on_log = on_log
        self._log_start = self._log.tell()
        self.phase = "start"

    def end(self, timeout_s: float) -> None:
        """Asks it to close its engine, and kills what is left after `timeout_s`. Safe to call twice.

        What it prints meanwhile is in its log alone: a server that is told to stop complains of it.
        """
        deadline = time.monotonic() + timeout_s
        self._on_log = lambda line: None
        try:
            if self.exit_code is None:
                self.send(Close())
                while self.exit_code is None and time.monotonic() < deadline:
                    self.receive(0.05)
        except EngineDiedError:
            pass  # it died while closing: there is nothing left to ask
        finally:
            self.kill()

    def describe_death(self) -> str:
        """A sentence with the exit code and the end of the log."""
        code = self._await_exit()
        how = "is unreachable" if code is None else f"died of {_name_exit(code)}"
        tail = "\n".join(f"    {line}" for line in list(self._tail)[-8:])
        return f"The engine's process {how}. The end of its log, {self.log_path}:\n{tail}"

    def evidence(self, exception: str = "", message: str = "", witness: Witness = Witness.EXCEPTION) -> Death:
        """What there is to say why it died; `exception` and `message` are what is known of it already, if anything."""
        code = self.exit_code if exception or message else self._await_exit()
        oom_kills = count_oom_kills() - self._oom_kills_before
        return Death(self.phase, code, exception, message, self._read_log_end(), oom_kills, witness)

    def _await_exit(self) -> int | None:
        """The exit code, as soon as there is one; None if it lives on."""
        self.wait(EXIT_WAIT_S)
        self.relay_log()
        return self.exit_code

    def wait(self, timeout_s: float) -> bool:
        """Whether it exited within `timeout_s`."""
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read_log_end(self) -> str:
        with open(self.log_path, "rb") as log:
            log.seek(max(self._log_start, os.fstat(log.fileno()).st_size - EVIDENCE_BYTES))
            return log.read().decode("utf-8", "replace")

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


def count_oom_kills(root: Path = Path("/")) -> int:
    """Out-of-memory kills so far in this process's control group; of the whole machine where it has none."""
    for path in [*_group_files(root), root / "proc/vmstat"]:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def _group_files(root: Path) -> list[Path]:
    """Where control groups count, version 2 first. In a container the group is often mounted as the root."""
    files = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers in ("", "memory"):
                base = root / "sys/fs/cgroup" / controllers
                name = "memory.events" if controllers == "" else "memory.oom_control"
                files += [base / group.lstrip("/") / name, base / name]
    return files
