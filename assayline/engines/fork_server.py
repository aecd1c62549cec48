"""The fork server: a process that imports vLLM once, for all engines that a worker opens one after another.

    with keep_imports():
        ...  # engines of this process that come and go

Importing vLLM is most of an engine's start. Within such a block the first engine in need of vLLM begins a fork server,
and that engine and all later ones are forked from it: the one that replaces a dead engine has nothing left to import.
What is imported is shared memory, so the server costs hardly any of its own.

Nothing depends on it. Where it cannot be had, or has another environment than an engine wants, the engine's process
is started by itself and imports for itself.
"""

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from assayline.engines.messages import FORKS_READY

OWN = "ASSAYLINE_"
"""Variables that only our own modules read, and those anew in every host."""

POLL_INTERVAL_S = 0.2
FORK_TIMEOUT_S = 60.0


class Forked:
    """A forked process, with what is used here of `subprocess.Popen`."""

    def __init__(self, pid: int, exit_pipe: int) -> None:
        self.pid = pid
        self._pipe: int | None = exit_pipe
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None if it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self._code

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises TimeoutExpired if it lives on for `timeout` seconds."""
        if self._pipe is not None:
            if not select.select([self._pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked engine", timeout)
            told = os.read(self._pipe, 16)
            os.close(self._pipe)
            self._pipe = None
            self._code = int(told) if told else -signal.SIGKILL  # the server is dead, which ends its hosts
        assert self._code is not None
        return self._code


class ForkServer:
    """A process that imports vLLM and then forks on request."""

    def __init__(self, env: Mapping[str, str], log_path: Path) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.started_s = time.monotonic()
        self._env = dict(env)
        self._log_path = log_path
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "assayline.engines.host", str(theirs.fileno()), "forks"],
                env=self._env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._lock = threading.Lock()
        self.is_ready = False
        self.has_forked = False
        self._is_gone = False

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether there is a process to ask. One that is being killed closes its channel before it has an exit code."""
        return not self._is_gone and self._process.poll() is None

    def suits(self, env: Mapping[str, str]) -> bool:
        """Whether what is imported there is what a host with this environment would import.

        What this process's own environment has got or lost meanwhile, from its libraries, makes no difference.
        """
        differing = {name for name in env.keys() | self._env.keys() if env.get(name) != self._env.get(name)}
        return all(name.startswith(OWN) or env.get(name) == os.environ.get(name) for name in differing)

    def wait_until_ready(self, timeout_s: float, check: Callable[[], object]) -> bool:
        """Whether everything is imported; calls `check` meanwhile, which may raise to stop waiting."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready and time.monotonic() < deadline:
            check()
            with self._lock:
                if not self.is_ready and select.select([self._control], [], [], POLL_INTERVAL_S)[0]:
                    if self._receive() != FORKS_READY:
                        return False
                    self.is_ready = True
        return self.is_ready

    def fork(self, env: Mapping[str, str], channel: int, log: int) -> Forked | None:
        """A new host, which talks through `channel` and prints to `log`; None where the server cannot make one."""
        exit_pipe, theirs = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [pickle.dumps(dict(env))], [channel, log, theirs])
                answer = self._receive() if select.select([self._control], [], [], FORK_TIMEOUT_S)[0] else b""
        except (OSError, ValueError):  # it is gone, or the environment is larger than a packet
            answer = b""
        finally:
            os.close(theirs)
        if not answer:
            os.close(exit_pipe)
            return None
        self.has_forked = True
        return Forked(int(answer), exit_pipe)

    def close(self) -> None:
        """Ends the server, and with it all hosts that it forked. Safe to call twice."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._log_path.unlink(missing_ok=True)

    def _receive(self) -> bytes:
        answer = b""
        with contextlib.suppress(OSError, ValueError):
            answer = self._control.recv(16)
        self._is_gone = not answer
        return answer


_lock = threading.Lock()
_users = 0
_server: ForkServer | None = None


@contextlib.contextmanager
def keep_imports() -> Iterator[None]:
    """Meanwhile, engines of this process are forked from one server. The last such block to end takes it along."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            is_last = _users == 0
        if is_last:
            end_fork_server()


def end_fork_server() -> None:
    """Ends the server, if there is one: the next engine begins another."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.close()


def begin_fork_server(env: Mapping[str, str], log_path: Path) -> ForkServer | None:
    """The server that suits this environment: the one that is there, or a new one. None where there is to be none."""
    global _server
    with _lock:
        if _users == 0:
            return None
        if _server is not None and not _server.is_alive:
            _server.close()
            _server = None
        if _server is None:
            _server = ForkServer(env, log_path)
        return _server if _server.suits(env) else None
