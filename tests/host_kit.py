"""Engine hosts that are forked from one process that has imported vLLM, so that a session's engines import it once.

A user's engine host is a process of its own and imports vLLM itself; tests open a hundred. `HOSTS.launch` is a
`process.Launch`: it forks a host, or starts one as a user's is started if its environment asks for other imports. The
workers of a session share a server, whose files are at the path in `FORKED_HOSTS`.
`OutOfMemoryOnce` and `FailingWorker` are classes that vLLM's arguments may name, to fail inside its own processes.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
OWN = "ASSAYLINE_"
"""Prefix of the variables that only our modules read, and those again in every host."""

PROGRAM = f"{OWN}TEST_PROGRAM"
"""The arguments of a program, which a forked process runs in a host's place: it needs the same modules."""

FORK_TIMEOUT_S = 600.0
LARGEST_REQUEST_BYTES = 1 << 17
PR_SET_PDEATHSIG = 1
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
OPENING = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.entrypoints.launchers.cli_args",
)
"""Modules that vLLM imports as it opens a model on a CPU, with 850 others."""

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."
OUT_OF_MEMORY_STREAMS = 64
"""Fewer at once, and the step succeeds."""


class Forked:
    """A forked process: a `process.Launched`."""

    def __init__(self, pid: int, exit_pipe: int) -> None:
        self.pid = pid
        self._pipe: int | None = exit_pipe
        self._code: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._pipe is not None:
            if not select.select([self._pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked host", timeout or 0.0)
            told = os.read(self._pipe, 16)
            os.close(self._pipe)
            self._pipe = None
            self._code = int(told) if told else -signal.SIGKILL  # the server is dead, which ends its hosts
        assert self._code is not None
        return self._code


class ForkedHosts:
    """A server process that starts with the first host, and ends with its last client, and with it all hosts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._env: dict[str, str] = {}
        self._control: socket.socket | None = None
        self._own = Path(tempfile.gettempdir()) / f"forked-hosts-{os.getpid()}-{id(self):x}"
        self.newest = 0
        """Process id of the host that was launched last."""

    def launch(self, env: Mapping[str, str], channel: int, log: int) -> Any:
        """Forks a host that talks through `channel` and prints to `log`."""
        from assayline.engines.process import start_host

        with self._lock:
            if self._control is None:
                self._join(env)
            forked = self._fork(env, channel, log) if self._suits(env) else None
        launched = forked or start_host(env, channel, log)
        self.newest = launched.pid
        return launched

    def close(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
                remove_files(self._own)

    def _join(self, env: Mapping[str, str]) -> None:
        """Connect to the server, which the first client starts."""
        path = Path(os.environ.get("FORKED_HOSTS", self._own))
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._control.connect(address_of(path))
            except OSError:  # there is none yet, or none any more
                # One thread, as tests' engines have, though the first host may be the client of a server.
                path.with_suffix(".json").write_text(json.dumps({"OMP_NUM_THREADS": "1", **env}))
                self._start(path)
                self._control.connect(address_of(path))
            self._env = json.loads(path.with_suffix(".json").read_text())

    def _start(self, path: Path) -> None:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            open(path.with_suffix(".log"), "w") as log,
        ):
            listener.bind(address_of(path))
            listener.listen()
            subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                env=json.loads(path.with_suffix(".json").read_text()),
                pass_fds=[listener.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _suits(self, env: Mapping[str, str]) -> bool:
        """Return True if a host with this environment imports the same as the server.

        Variables that libraries have set or removed in this process since then make no difference.
        """
        differing = {name for name in env.keys() | self._env.keys() if env.get(name) != self._env.get(name)}
        return all(name.startswith(OWN) or env.get(name) == os.environ.get(name) for name in differing)

    def _fork(self, env: Mapping[str, str], channel: int, log: int) -> Forked | None:
        assert self._control is not None
        exit_pipe, theirs = os.pipe()
        answer = b""
        try:
            with contextlib.suppress(OSError, ValueError):  # it is gone, or the environment is larger than a packet
                socket.send_fds(self._control, [pickle.dumps(dict(env))], [channel, log, theirs])
                if select.select([self._control], [], [], FORK_TIMEOUT_S)[0]:
                    answer = self._control.recv(16)
        finally:
            os.close(theirs)
        if not answer:
            os.close(exit_pipe)
            self._control.close()
            self._control = None
            return None
        return Forked(int(answer), exit_pipe)


def address_of(path: Path) -> str:
    """An address without a file, which lives as long as its server."""
    return f"\0{path.name}"


def remove_files(path: Path) -> None:
    for ending in (".lock", ".json", ".log"):
        path.with_suffix(ending).unlink(missing_ok=True)


HOSTS = ForkedHosts()


@contextlib.contextmanager
def forking_hosts(hosts: ForkedHosts = HOSTS) -> Iterator[None]:
    """Engines that this process opens are forked from one server, which ends here."""
    from assayline.engines.process import HostSetup

    make_setup = HostSetup.of

    def make(settings: Any, engine: Any, *given: Any) -> HostSetup:
        setup = make_setup(settings, engine, *given)
        return setup if engine.python else replace(setup, launch=hosts.launch)

    with contextlib.closing(hosts), patch.object(HostSetup, "of", make):
        yield


def serve(listener: socket.socket) -> NoReturn:
    """The server: imports vLLM, and forks a host for every request."""
    _import_vllm()
    exits: dict[int, tuple[int, int]] = {}  # descriptor of a child → its process id and the pipe for its exit code
    clients: dict[int, socket.socket] = {}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in exits:
                poll.unregister(descriptor)
                _tell_exit(descriptor, *exits.pop(descriptor))
                continue
            if descriptor == listener.fileno():
                client, _ = listener.accept()
                clients[client.fileno()] = client
                poll.register(client, select.POLLIN)
                continue
            control = clients[descriptor]
            request, fds, _, _ = socket.recv_fds(control, LARGEST_REQUEST_BYTES, 3)
            if not request:
                poll.unregister(clients.pop(descriptor))
                control.close()
                if not clients:
                    os._exit(0)  # the session is over
                continue
            channel, log, exit_pipe = fds
            begun, begin = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads, none of which holds a lock
                child = os.fork()
            if child == 0:
                os.setsid()
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                os.write(begin, b"!")
                inherited = (listener.detach(), *(client.detach() for client in clients.values()), *exits)
                for each in (begun, begin, exit_pipe, *inherited, *(pipe for _, pipe in exits.values())):
                    os.close(each)
                _become_host(pickle.loads(request), channel, log)
            os.close(begin)
            os.read(begun, 1)  # it has its session, or is dead
            for each in (begun, channel, log):
                os.close(each)
            watched = os.pidfd_open(child)
            exits[watched] = child, exit_pipe
            poll.register(watched, select.POLLIN)
            control.send(str(child).encode())


def _become_host(env: dict[str, str], channel: int, log: int) -> NoReturn:
    from assayline.engines.host.__main__ import main

    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:  # vLLM names its processes, in a place that it finds by the first variable
            os.environ[name] = value
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    if PROGRAM in os.environ:
        sys.argv = json.loads(os.environ.pop(PROGRAM))
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main(channel)
    os._exit(0)


def _tell_exit(descriptor: int, child: int, pipe: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(pipe, str(code).encode())
    os.close(pipe)
    os.close(descriptor)


def _import_vllm() -> None:
    """Imports what an engine begins with, and takes it out of all later searches for garbage."""
    gc.disable()
    from vllm import LLM
    from vllm.platforms import current_platform

    assert LLM
    if current_platform.device_type == "cpu":
        for name in OPENING:
            with contextlib.suppress(ImportError):  # of another version
                importlib.import_module(name)
        _spare_the_cpu(type(current_platform))
    gc.freeze()
    gc.unfreeze = lambda: None
    gc.enable()


def _spare_the_cpu(platform: Any) -> None:
    """Has vLLM look for kernels to replace once, and fork engine cores, which on a CPU it would start."""
    if hasattr(platform, "register_triton_kernel_overrides"):
        platform.register_triton_kernel_overrides()
        platform.register_triton_kernel_overrides = classmethod(lambda cls: None)
    check = platform.check_and_update_config

    def check_and_fork(config: Any) -> None:
        check(config)
        if config.parallel_config.world_size == 1:
            os.environ[START_METHOD] = "fork"

    platform.check_and_update_config = staticmethod(check_and_fork)


def _fail_once_in_a_large_step() -> type:
    """`worker_extension_cls`: the first step of that many requests fails, and notes it in `ASSAYLINE_FAILED_ONCE`."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    error = torch.OutOfMemoryError(f"{OUT_OF_MEMORY} GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free")
    execute = GPUModelRunner.execute_model

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if len(scheduler_output.num_scheduled_tokens) >= OUT_OF_MEMORY_STREAMS and _is_first():
            raise error
        return execute(self, scheduler_output, *args, **kwargs)

    GPUModelRunner.execute_model = execute_model
    return type("OutOfMemoryOnce", (), {})


def _fail_second_rank_once() -> type:
    """`worker_cls`: the second rank fails at its first step, where a rank that does not reply would."""
    import torch
    from vllm.v1.worker.cpu_worker import CPUWorker

    class FailingWorker(CPUWorker):
        def execute_model(self, *args: Any, **kwargs: Any) -> Any:
            if self.rank == 1 and _is_first():
                raise torch.OutOfMemoryError(OUT_OF_MEMORY)
            return super().execute_model(*args, **kwargs)

    return FailingWorker


def _is_first() -> bool:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.environ["ASSAYLINE_FAILED_ONCE"], os.O_CREAT | os.O_EXCL))
        return True
    return False


def __getattr__(name: str) -> Any:
    """The classes for vLLM's workers: they exist in the process alone that asks for them."""
    makers = {"OutOfMemoryOnce": _fail_once_in_a_large_step, "FailingWorker": _fail_second_rank_once}
    if name not in makers:
        raise AttributeError(name)
    return makers[name]()


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    from assayline.engines.host import __main__ as _  # noqa: F401 - before the first fork

    serve(socket.socket(fileno=int(sys.argv[1])))
