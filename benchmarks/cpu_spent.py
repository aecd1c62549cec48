"""CPU-seconds that processes spend on a piece of work."""

from collections.abc import Callable
from typing import TypeVar

import psutil

Given = TypeVar("Given")


def read_cpu_s(root: psutil.Process) -> float:
    """CPU-seconds of a process and those that it started, so far."""
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


def find_host() -> psutil.Process:
    """The engine's process: the only child that is one."""
    (host,) = (child for child in psutil.Process().children() if "assayline.engines.host" in child.cmdline())
    return host


def spend(processes: dict[str, Callable[[], float]], work: Callable[[], Given]) -> tuple[Given, dict[str, float]]:
    """What `work` gives, and the CPU-seconds that it took in each process."""
    before = {name: read() for name, read in processes.items()}
    result = work()
    return result, {name: read() - before[name] for name, read in processes.items()}
