"""An engine host as its worker sees it: start, send, receive, read the log, kill.

The host's output goes to a file, one per engine generation, so that a death can be explained afterwards; its lines are
relayed while it lives. `kill` ends the whole process group and waits until it is gone: process exit is the only
reliable way to free a GPU's memory. All waits here have time limits, whatever the host does.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil

from assayline.engines.messages import Channel, Close
from assayline.engines.recovery.causes import CAUSE_LINE
from assayline.errors import Death, DeviceError, EngineDiedError, Witness
from assayline.files import find_caches, find_obstacle, list_memory_groups
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec

POLL_INTERVAL_S = 0.5
TAIL_LINES = 8
EXIT_WAIT_S = 5.0
KILL_WAIT_S = 60.0
"""Time for a killed process to be gone: a driver may need long to unpin the memory of eight GPUs."""

STALL_MARGIN_S = 60.0
"""Added to a server's request timeout, so that requests time out before the engine is declared dead."""

EVIDENCE_BYTES = 1 << 17
"""Bytes of a log's end that are evidence of a death, after the lines that match a known cause."""

CAUSE_LINES = 20
"""Number of lines kept that match a known cause; the first ones are."""

LONGEST_LINE = 4096
"""Most characters of a line that are relayed and searched."""

READ_BYTES = 1 << 14
READ_S = 0.2
"""Approximate limit of one reading of the log; the next one reads the rest."""

READ_SHARE = 0.2
"""Share of the worker's time that reading the log may take."""

RELAYED_LINES = 200
"""Most lines relayed per second; the log has all of them."""

DRAIN_S = 5.0
"""Time limit for searching the rest of a dead engine's log for its cause."""

SHARED_MEMORY = Path("/dev/shm")
SEGMENT_NAMES = ("psm_", "vllm_dist_", "sem.mp-", "sem.loky-", "nccl-", "torch_")
"""Prefixes of the segments of an engine's libraries. Other files there, such as weights, are left alone."""


DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the host is a process already: docs/design/001-engine-process.md
    "DO_NOT_TRACK": "1",
    "NCCL_DEBUG": "WARN",  # the reason of an "unhandled cuda error" is only in its log
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # number GPUs as the driver's library and nvidia-smi do, not the fastest first
    "GOMP_SPINCOUNT": "10000",  # threads that wait for one without a core would spin for its whole time slice
}
"""Default variables of an engine's process, overridden by the surrounding environment and the spec. vLLM, torch and the
hub client read theirs at import, so they cannot be set later."""

MEMORY_LIMIT = "ASSAYLINE_ENGINE_MEMORY_LIMIT_BYTES"
"""Variable that passes the setting to the host, also if the setting came from a `.env` file."""


def engine_environment(
    settings: Settings, device_env: Mapping[str, str], spec_env: Mapping[str, str], python: str = sys.executable
) -> dict[str, str]:
    """Return this process's environment over the defaults, overridden by the device's and `engine.env`.

    PATH begins with the folder of `python`: vLLM uses fewer kernels if it does not find the `ninja` that is there.
    If the home folder's caches cannot be written, the engine's home is in the data folder.
    """
    token = {"HF_TOKEN": settings.hf_token.get_secret_value()} if settings.hf_token else {}
    limit = settings.engine_memory_limit_bytes
    limits = {} if limit is None else {MEMORY_LIMIT: str(limit)}
    home = {}
    if find_obstacle(caches := find_caches(os.environ)):
        # Cached models are read from where they are.
        hub = os.environ.get("HF_HOME") or str(caches / "huggingface")
        home = {"HF_HOME": hub, "HOME": str(settings.data_dir.absolute() / "home")}
    env = {**DEFAULTS, **os.environ, **home, **token, **limits, **device_env, **spec_env}
    tools = str(Path(shutil.which(python) or python).parent)
    return {**env, "PATH": os.pathsep.join(filter(None, (tools, env.get("PATH"))))}


class Launched(Protocol):
    """A started process: the part of `subprocess.Popen` that is used here."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Launch = Callable[[Mapping[str, str], int, int], Launched]
"""Starts an engine host, given its environment and the descriptors of its channel and its log."""


def start_host(
    env: Mapping[str, str], channel: int, log: int, python: str = sys.executable
) -> "subprocess.Popen[bytes]":
    """Start an engine host as a process of `python` in a session of its own."""
    return subprocess.Popen(
        [python, "-m", "assayline.engines.host", str(channel)],
        env=dict(env),
        pass_fds=[channel],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


@dataclass(frozen=True, slots=True)
class HostSetup:
    """Environment, log, time limits and launcher of an engine's process."""

    env: Mapping[str, str]
    """The whole environment of the process."""
    log_path: Path
    start_timeout_s: float = 900.0
    close_timeout_s: float = 20.0
    stall_timeout_s: float = 600.0
    """An engine that has requests and schedules nothing for this long is declared dead."""
    launch: Launch = start_host

    @classmethod
    def of(cls, settings: Settings, engine: EngineSpec, device_env: Mapping[str, str], log_path: Path) -> "HostSetup":
        """Make a setup from settings and spec, for the device that `device_env` binds."""
        stall_s = settings.engine_stall_timeout_s
        return cls(
            env=engine_environment(settings, device_env, engine.env, engine.python or sys.executable),
            log_path=log_path,
            start_timeout_s=settings.engine_start_timeout_s,
            close_timeout_s=settings.engine_close_timeout_s,
            stall_timeout_s=max(stall_s, engine.server.timeout_s + STALL_MARGIN_S) if engine.is_served else stall_s,
            launch=partial(start_host, python=engine.python) if engine.python else start_host,
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
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path = log_path
        self.phase = "start"
        """start, or run once it generates: the same log line has a different meaning in each."""
        self._oom_kills_before = count_oom_kills()
        ours, theirs = socket.socketpair()
        with open(log_path, "ab") as log:
            log_start = log.tell()
            self._process = launch(env, theirs.fileno(), log.fileno())
        theirs.close()
        self._log = HostLog(log_path, log_start, on_log)
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        """Process id, which is also the process group's."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it lives, negative for a signal."""
        return self._process.poll()

    def send(self, message: Any) -> None:
        """Send one message without waiting. Raises EngineDiedError if the host is gone.

        Bytes that the socket does not take yet are sent by later calls of `send` and `receive`.
        """
        try:
            self._channel.send(message)
        except OSError:
            raise EngineDiedError(self.describe_death(), self.evidence()) from None

    def receive(self, timeout_s: float = POLL_INTERVAL_S) -> Any | None:
        """Return the next message, or None after `timeout_s`. Raises EngineDiedError if the host is gone."""
        try:
            message = self._channel.receive(timeout_s)
        except (EOFError, OSError):
            raise EngineDiedError(self.describe_death(), self.evidence()) from None
        self._log.read(self.phase)
        return message

    def fileno(self) -> int:
        """Return the descriptor that is readable when a message is there."""
        return self._channel.fileno()

    def begin_run(self) -> None:
        """Note that the engine has started: its next death is one at run time."""
        if self.phase != "run":
            self._log.drain(self.phase)
            self._log.begin()
            self.phase = "run"

    def listen(self, on_log: Callable[[str], None]) -> None:
        """Pass new log lines to `on_log` from now on, and forget causes in earlier ones."""
        self._log.read(self.phase)
        self._log.restart(on_log)
        self.phase = "start"

    def end(self, timeout_s: float) -> None:
        """Ask it to close its engine, and kill the rest after `timeout_s`. Safe to call twice.

        Its output meanwhile goes only to its log: a server that is stopped prints errors.
        """
        deadline = time.monotonic() + timeout_s
        self._log.on_line = lambda line: None
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
        """Return an error message with the exit code and the end of the log."""
        code = self._await_exit()
        if code is None:
            how = "is unreachable"
        else:
            how = f"died of signal {signal.Signals(-code).name}" if code < 0 else f"died of exit code {code}"
        tail = "\n".join(f"    {line}" for line in self._log.list_last(TAIL_LINES))
        return f"The engine's process {how}.\nThe end of its log, {self.log_path}:\n{tail}"

    def evidence(self, exception: str = "", message: str = "", witness: Witness = Witness.EXCEPTION) -> Death:
        """Collect the evidence of a death; `exception` and `message` are what the host reported, if anything."""
        code = self.exit_code if exception or message else self._await_exit()
        oom_kills = count_oom_kills() - self._oom_kills_before
        log = self._log.explain(self.phase)
        return Death(self.phase, code, exception, message, log, oom_kills, witness)

    def _await_exit(self) -> int | None:
        """Wait shortly for the exit code. None if the process is still alive."""
        self.wait(EXIT_WAIT_S)
        return self.exit_code

    def wait(self, timeout_s: float) -> bool:
        """Wait for its exit. Returns whether it exited within `timeout_s`."""
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill the process group and wait until it is gone. Safe to call twice.

        Raises DeviceError if a process cannot be killed: it may still use the device.
        """
        if self._log.is_closed:
            return  # its number may have been reused
        segments = _list_segments(self.pid)
        deadline = time.monotonic() + KILL_WAIT_S
        try:
            while _signal_group(self.pid) and (alive := _list_members(self.pid)):
                if time.monotonic() > deadline:
                    raise DeviceError(_describe_unkillable(alive))
                self._process.poll()
                time.sleep(0.02)
            self.wait(EXIT_WAIT_S)
        finally:
            self._log.drain(self.phase)
            self._log.close()
            self._channel.close()
        for segment in segments:
            with contextlib.suppress(OSError):
                segment.unlink()


class HostLog:
    """A host's log: read as it grows, relayed within limits, searched for causes of a death."""

    def __init__(self, path: Path, start: int, on_line: Callable[[str], None]) -> None:
        """Open the log. `on_line` gets the lines from byte `start` on."""
        self.on_line = on_line
        self._path = path
        self._start = self._phase_start = start
        self._file = open(path, "rb")  # noqa: SIM115 - lives as long as the process
        self._file.seek(start)
        self._rest = b""
        self._causes: dict[str, list[str]] = defaultdict(list)
        """The first lines that match a known cause, by the phase in which they came."""
        self._next_s = self._second = 0.0
        self._relayed = self._skipped = 0

    @property
    def is_closed(self) -> bool:
        """Return True if reading has ended."""
        return self._file.closed

    def read(self, phase: str) -> None:
        """Read new lines for a short time; calls before the next reading is due do nothing (`READ_SHARE`)."""
        began = time.monotonic()
        if began >= self._next_s:
            self._read_until(began + READ_S, phase)
            self._next_s = began + (time.monotonic() - began) / READ_SHARE

    def drain(self, phase: str) -> None:
        """Read the rest, for at most `DRAIN_S`: no more lines will follow."""
        self._read_until(time.monotonic() + DRAIN_S, phase)
        self._take(self._rest, phase)
        self._rest = b""
        self._report_skipped()

    def restart(self, on_line: Callable[[str], None]) -> None:
        """Skip earlier lines: the log belongs to another run from now on."""
        self._report_skipped()
        self.on_line = on_line
        self._start = self._phase_start = self._file.seek(0, os.SEEK_END)
        self._rest = b""
        self._causes.clear()

    def begin(self) -> None:
        """Note that a phase begins: lines before it do not explain a later death."""
        self._phase_start = os.fstat(self._file.fileno()).st_size

    def explain(self, phase: str) -> str:
        """Return the lines of a phase that match a known cause, then the log's end, from the phase's start on."""
        self.drain(phase)
        return "\n".join([*self._causes[phase], self._read_end(self._phase_start)])

    def list_last(self, count: int) -> list[str]:
        """Return the last lines that are not empty."""
        return [text for line in self._read_end(self._start).splitlines() if (text := line.strip()[:LONGEST_LINE])][
            -count:
        ]

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._file.close()

    def _read_end(self, start: int) -> str:
        with open(self._path, "rb") as log:
            log.seek(max(start, os.fstat(log.fileno()).st_size - EVIDENCE_BYTES))
            return log.read().decode("utf-8", "replace")

    def _read_until(self, deadline: float, phase: str) -> None:
        while not self._file.closed and (content := self._file.read(READ_BYTES)):
            *lines, self._rest = (self._rest + content).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._take(line, phase)
            if len(self._rest) > READ_BYTES:
                self._take(self._rest, phase)
                self._rest = b""
            if time.monotonic() > deadline:
                return

    def _take(self, line: bytes, phase: str) -> None:
        text = line[: 4 * LONGEST_LINE].decode("utf-8", "replace").strip()[:LONGEST_LINE]
        if not text:
            return
        is_cause = len(self._causes[phase]) < CAUSE_LINES and CAUSE_LINE.search(text) is not None
        if is_cause:
            self._causes[phase].append(text)
        if time.monotonic() >= self._second + 1:
            self._report_skipped()
            self._second, self._relayed = time.monotonic(), 0
        if is_cause or self._relayed < RELAYED_LINES:
            self._relayed += 1
            self.on_line(text)
        else:
            self._skipped += 1

    def _report_skipped(self) -> None:
        if self._skipped:
            now = time.strftime("%m-%d %H:%M:%S")  # formatted like vLLM's lines, which have a level
            self.on_line(f"WARNING {now} [process.py:0] {self._skipped:,} more lines in {self._path}")
            self._skipped = 0


def _list_members(group: int) -> list[psutil.Process]:
    """Return the processes of a group that still run. Zombies do not, even if their exit code is not read."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
    return found


def _list_segments(group: int) -> set[Path]:
    """Return the shared memory that a group's processes have mapped; if killed together, they leave it behind."""
    found = set()
    for process in _list_members(group):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                path = Path(line.partition("/")[1] + line.partition("/")[2])
                if path.parent == SHARED_MEMORY and path.name.startswith(SEGMENT_NAMES):
                    found.add(path)
    return found


def _describe_unkillable(alive: list[psutil.Process]) -> str:
    names = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            names.append(f"{process.pid} ({process.name()}, {process.status()})")
    return (
        f"The engine's processes could not be killed within {KILL_WAIT_S:.0f} s: {', '.join(names)}. They may still "
        "use the device. hint: look for errors of its driver in `dmesg` (NVIDIA: Xid), and reset the device or restart "
        "the machine before you resume the run."
    )


def _signal_group(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def count_oom_kills(root: Path = Path("/")) -> int:
    """Count out-of-memory kills so far in this process's control group; on the whole machine if it has none.

    In a container the group is often mounted as the root.
    """
    groups = [folder / name for folder in list_memory_groups(root) for name in ("memory.events", "memory.oom_control")]
    for path in [*groups, root / "proc/vmstat"]:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0
