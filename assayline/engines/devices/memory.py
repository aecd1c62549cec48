"""A device's memory from outside: whether a dead engine's share has come back, and who holds it if not.

In main memory a process's share is back when the process is gone, so there is nothing to wait for; the largest
processes are named all the same, and how much is free is read from the control groups as well.
"""

import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from assayline.engines.devices.nvidia import GpuProcess, list_processes, read_free_bytes

POLL_INTERVAL_S = 0.5
SLACK_BYTES = 2**29
"""Free memory may stay this much below what it was, since other processes on the device breathe too."""

NAMED_PROCESSES = 3
GROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and use of a control group, in version 2 and 1."""


class DeviceMemory:
    """The memory of the GPUs that an engine has, or of the machine where it has none."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        self._gpus = gpus
        self._free_before = self._read_free_bytes()

    def wait_until_back(self, timeout_s: float, should_stop: Callable[[], bool]) -> bool:
        """Waits until about as much is free as when this object was made. False if that did not happen in time."""
        deadline = time.monotonic() + timeout_s
        while not self._is_back():
            if time.monotonic() >= deadline or should_stop():
                return False
            time.sleep(POLL_INTERVAL_S)
        return True

    def wait_until_free(self, wanted_bytes: int, timeout_s: float, should_stop: Callable[[], bool]) -> bool:
        """Waits until each GPU has as much free memory. False if that does not happen in time or nothing tells."""
        deadline = time.monotonic() + timeout_s
        while not self.is_free(wanted_bytes):
            if time.monotonic() >= deadline or should_stop() or not self._gpus:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True

    def is_free(self, wanted_bytes: int) -> bool:
        """Whether each GPU has as much free memory."""
        return bool(self._gpus) and all(free is not None and free >= wanted_bytes for free in self._read_free_bytes())

    def describe_holders(self) -> str:
        """Who has memory, as one sentence; empty if that cannot be found out."""
        holders = _list_gpu_processes(self._gpus) if self._gpus else _list_largest_processes()
        return f"Memory is held by {', '.join(holders)}." if holders else ""

    def _is_back(self) -> bool:
        """GPUs that do not tell, before or now, count as back."""
        pairs = zip(self._read_free_bytes(), self._free_before, strict=True)
        return not any(free is not None and before and free < before - SLACK_BYTES for free, before in pairs)

    def _read_free_bytes(self) -> list[int | None]:
        return [read_free_bytes(gpu) for gpu in self._gpus]


def read_free_main_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: of the machine's memory, its control groups' and its own limit's."""
    free = [psutil.virtual_memory().available, *_list_group_room(root)]
    if (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        free.append(most - psutil.Process().memory_info().vms)
    return max(0, min(free))


def _list_group_room(root: Path) -> list[int]:
    """What is left in each control group that limits this process's memory, version 1 or 2."""
    room = []
    for folder in _list_memory_groups(root):
        for limit, used in GROUP_FILES:
            with contextlib.suppress(OSError, ValueError):  # it is of the other version, or has no limit
                sizes = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                cached = int(sizes.get("total_inactive_file") or sizes["inactive_file"])  # the kernel gives it up
                room.append(int((folder / limit).read_text()) - int((folder / used).read_text()) + cached)
    return room


def _list_memory_groups(root: Path) -> list[Path]:
    """The folders of this process's control groups of memory, and of those around them."""
    folders = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):
                base = root / "sys/fs/cgroup" / controllers
                group = base / name.lstrip("/")
                folders += [group, *(folder for folder in group.parents if folder.is_relative_to(base))]
    return folders


def _list_gpu_processes(gpus: tuple[str, ...]) -> list[str]:
    found = [process for gpu in gpus for process in list_processes(gpu)]
    found.sort(key=lambda process: process.used_bytes or 0, reverse=True)
    return [_describe(process) for process in found[:NAMED_PROCESSES]]


def _describe(process: GpuProcess) -> str:
    used = "unknown" if process.used_bytes is None else f"{process.used_bytes >> 20} MiB"
    return f"process {process.pid} ({process.name}, {used})"


def _list_largest_processes() -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is not None:
            found.append((memory.rss, process.info["pid"], process.info["name"]))
    found.sort(reverse=True)
    return [f"process {pid} ({name}, {rss >> 20} MiB)" for rss, pid, name in found[:NAMED_PROCESSES]]
