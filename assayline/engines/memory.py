"""A device's memory from outside: whether a dead engine's share has come back, and who holds it if not.

GPUs are asked through nvidia-smi, which needs no context on the device. In main memory a process's share is back when
the process is gone, so there is nothing to wait for; the largest processes are named all the same.
"""

import contextlib
import subprocess
import time
from collections.abc import Callable

import psutil

POLL_INTERVAL_S = 0.5
SLACK_MIB = 512
"""Free memory may stay this much below what it was, since other processes on the device breathe too."""
NAMED_PROCESSES = 3


class DeviceMemory:
    """The memory of the GPUs that an engine has, or of the machine where it has none."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        self._gpus = gpus
        self._free_before_mib = self._read_free_mib()

    def wait_until_back(self, timeout_s: float, should_stop: Callable[[], bool]) -> bool:
        """Waits until about as much is free as when this object was made. False if that did not happen in time."""
        deadline = time.monotonic() + timeout_s
        while not self._is_back():
            if time.monotonic() >= deadline or should_stop():
                return False
            time.sleep(POLL_INTERVAL_S)
        return True

    def describe_holders(self) -> str:
        """Who has memory, as one sentence; empty if that cannot be found out."""
        holders = _list_gpu_processes(self._gpus) if self._gpus else _list_largest_processes()
        return f"Memory is held by {', '.join(holders)}." if holders else ""

    def _is_back(self) -> bool:
        now = self._read_free_mib()
        return all(free >= before - SLACK_MIB for free, before in zip(now, self._free_before_mib, strict=False))

    def _read_free_mib(self) -> list[int]:
        if not self._gpus:
            return []
        rows = _ask_nvidia_smi("--query-gpu=memory.free", self._gpus)
        return [int(free) for (free,) in rows if free.isdigit()]


def _list_gpu_processes(gpus: tuple[str, ...]) -> list[str]:
    rows = _ask_nvidia_smi("--query-compute-apps=pid,used_memory,process_name", gpus)
    rows = [row for row in rows if len(row) == 3]
    rows.sort(key=lambda row: int(row[1]) if row[1].isdigit() else 0, reverse=True)
    return [f"process {pid} ({name}, {used} MiB)" for pid, used, name in rows[:NAMED_PROCESSES]]


def _list_largest_processes() -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is not None:
            found.append((memory.rss, process.info["pid"], process.info["name"]))
    found.sort(reverse=True)
    return [f"process {pid} ({name}, {rss >> 20} MiB)" for rss, pid, name in found[:NAMED_PROCESSES]]


def _ask_nvidia_smi(query: str, gpus: tuple[str, ...]) -> list[list[str]]:
    """Rows of a query; none where the driver does not answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(
            ["nvidia-smi", "-i", ",".join(gpus), query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    return []
