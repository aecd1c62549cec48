"""Run a command on given cores and sample the CPU time of its process tree.

Samples include start-up and the evaluation of results; `cpu_between` excludes them, given the times of the first and
last request of a load.
"""

import bisect
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

Given = TypeVar("Given")

SAMPLE_INTERVAL_S = 0.1
RUN_TIMEOUT_S = 1800.0


@dataclass
class CpuSamples:
    """CPU seconds of each process of a tree, over wall-clock time; a process that ended keeps its last value."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[dict[int, float]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def take(self, root: psutil.Process) -> None:
        """Add one sample."""
        latest = dict(self.cpu_s[-1]) if self.cpu_s else {}
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                latest[process.pid] = times.user + times.system
                self.names[process.pid] = " ".join(process.cmdline())
        self.wall_s.append(time.time())
        self.cpu_s.append(latest)

    def cpu_between(self, start_s: float, end_s: float) -> dict[int, float]:
        """Return the CPU seconds of each process between two wall-clock times, from the samples around them."""
        first = self.cpu_s[max(bisect.bisect_right(self.wall_s, start_s) - 1, 0)]
        last = self.cpu_s[min(bisect.bisect_left(self.wall_s, end_s), len(self.wall_s) - 1)]
        return {pid: seconds - first.get(pid, 0.0) for pid, seconds in last.items()}


def run_sampled(command: list[str], cores: set[int], env: dict[str, str], log: Path) -> CpuSamples:
    """Run the command to its end. Exit with its output if it fails."""
    samples = CpuSamples()
    with log.open("w") as output:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=output, stderr=output)
    os.sched_setaffinity(process.pid, cores)
    watching = threading.Thread(target=_watch, args=(samples, process), daemon=True)
    watching.start()
    try:
        code = process.wait(RUN_TIMEOUT_S)
    finally:
        process.kill()
    watching.join()
    if code:
        sys.exit(f"`{' '.join(command)}` failed with exit code {code}:\n{log.read_text()[-3000:]}")
    return samples


def _watch(samples: CpuSamples, process: subprocess.Popen[bytes]) -> None:
    root = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            samples.take(root)
        time.sleep(SAMPLE_INTERVAL_S)


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
