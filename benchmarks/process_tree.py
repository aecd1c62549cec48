"""Run a command on given cores, and read the CPU time of processes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

Given = TypeVar("Given")

RUN_TIMEOUT_S = 1800.0


def run_on_cores(command: list[str], cores: set[int], env: dict[str, str], log: Path) -> None:
    """Run the command to its end. Exit with its output if it fails."""
    with log.open("w") as output:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=output, stderr=output)
    os.sched_setaffinity(process.pid, cores)
    try:
        code = process.wait(RUN_TIMEOUT_S)
    finally:
        process.kill()
    if code:
        sys.exit(f"`{' '.join(command)}` failed with exit code {code}:\n{log.read_text()[-3000:]}")


def read_cpu_s(root: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children so far."""
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


def spend(processes: dict[str, Callable[[], float]], work: Callable[[], Given]) -> tuple[Given, dict[str, float]]:
    """Return the result of `work`, and the CPU seconds that it took in each process."""
    before = {name: read() for name, read in processes.items()}
    result = work()
    return result, {name: read() - before[name] for name, read in processes.items()}


def find_host(worker_pid: int) -> psutil.Process | None:
    """Return a worker's engine process, the newest if one is being replaced; None if there is none.

    Processes that it forks have the same command line.
    """
    hosts = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(worker_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                is_forked = parent is not None and parent.cmdline() == process.cmdline()
                if "assayline.engines.host" in process.cmdline() and not is_forked:
                    hosts.append((process.create_time(), process))
    return max(hosts, key=lambda host: host[0])[1] if hosts else None
