"""The fork server's own side: a process that has imported vLLM, and forks an engine's host for every request.

It is started like a host, by `engines/fork_server.py`, and imports first. Then it says so and waits. A request is one
packet: the environment of the new host, its channel, its log and a pipe for its exit code. The host is a process of a
session of its own, as if it had been started; its exit is told by the only one who can wait for it, this process. When
the worker is gone, this process ends; when this process is gone, its hosts end.

vLLM forks its own processes after these imports, too, as long as no device is in use; here none ever is.
"""

import ctypes
import os
import pickle
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable

from assayline.engines.messages import FORKS_READY

LARGEST_REQUEST_BYTES = 1 << 17
PR_SET_PDEATHSIG = 1


def serve_forks(control: socket.socket, prepare: Callable[[], object]) -> int:
    """Returns in every forked child, with the descriptor of its channel; in the server itself, never."""
    prepare()
    control.send(FORKS_READY)
    libc = ctypes.CDLL(None)
    exits: dict[int, tuple[int, int]] = {}
    """Descriptor of a child → its process id and the pipe for its exit code."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in exits:
                poll.unregister(descriptor)
                _tell_exit(descriptor, *exits.pop(descriptor))
                continue
            request, fds, _, _ = socket.recv_fds(control, LARGEST_REQUEST_BYTES, 3)
            if not request:
                os._exit(0)  # the worker is gone, or needs no more
            channel, log, exit_pipe = fds
            begun, begin = os.pipe()
            child = _fork()
            if child == 0:
                os.setsid()
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                _become_host(pickle.loads(request), log)
                os.write(begin, b"!")
                for each in (begun, begin, log, exit_pipe, control.detach(), *exits):
                    os.close(each)
                for _, pipe in exits.values():
                    os.close(pipe)
                return channel
            os.close(begin)
            os.read(begun, 1)  # it has its session, or is dead
            for each in (begun, channel, log):
                os.close(each)
            watched = os.pidfd_open(child)
            exits[watched] = child, exit_pipe
            poll.register(watched, select.POLLIN)
            control.send(str(child).encode())


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which none holds a lock of Python's
        return os.fork()


def _become_host(env: dict[str, str], log: int) -> None:
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:  # vLLM names its processes, in a place that is found by what was there first
            os.environ[name] = value
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)


def _tell_exit(descriptor: int, child: int, pipe: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.write(pipe, str(code).encode())
    except BrokenPipeError:
        pass  # nobody asks any more
    finally:
        os.close(pipe)
        os.close(descriptor)
