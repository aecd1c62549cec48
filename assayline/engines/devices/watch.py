"""A device seen from outside: its use over time, the holders of its memory, and engines that outlived their flow.

The kernel frees a process's main memory when it exits, so there is nothing to wait for. The largest processes are
named all the same, and free memory is read from the control groups as well.
"""

import contextlib
import json
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from assayline.clock import RunClock, boot_id
from assayline.engines.devices.nvidia import MemoryHolder, hold_driver, list_processes, read_free_bytes, read_sensors
from assayline.files import list_memory_groups
from assayline.records import DeviceSample

POLL_INTERVAL_S = 0.5
SLACK_BYTES = 2**29
"""Free memory may stay this much below its earlier value, since other processes on the device use memory too."""

NAMED_PROCESSES = 3
GROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and use of a control group, in version 2 and 1."""


class DeviceMemory:
    """The memory of an engine's GPUs, or of the machine if it has none."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        self._gpus = gpus
        self._free_before = self._read_free_bytes()

    def wait_until_back(self, timeout_s: float, should_stop: Callable[[], bool]) -> bool:
        """Wait until about as much memory is free as when this object was made. False on timeout."""
        return _wait_until(self._is_back, timeout_s, should_stop)

    def wait_until_free(self, wanted_bytes: int, timeout_s: float, should_stop: Callable[[], bool]) -> bool:
        """Wait until each GPU has `wanted_bytes` free. False on timeout, or if free memory is unknown."""
        return bool(self._gpus) and _wait_until(lambda: self.is_free(wanted_bytes), timeout_s, should_stop)

    def is_free(self, wanted_bytes: int) -> bool:
        """Return whether each GPU has `wanted_bytes` free."""
        return bool(self._gpus) and all(free is not None and free >= wanted_bytes for free in self._read_free_bytes())

    def describe_holders(self) -> str:
        """Return a message that names the largest holders of memory; empty if they are unknown."""
        found = [one for gpu in self._gpus for one in list_processes(gpu)] if self._gpus else _list_processes()
        found.sort(key=lambda one: one.used_bytes or 0, reverse=True)
        holders = ", ".join(map(str, found[:NAMED_PROCESSES]))
        return f"Memory is held by {holders}." if holders else ""

    def _is_back(self) -> bool:
        """Return whether memory is back. GPUs whose free memory is or was unknown count as back."""
        pairs = zip(self._read_free_bytes(), self._free_before, strict=True)
        return not any(free is not None and before and free < before - SLACK_BYTES for free, before in pairs)

    def _read_free_bytes(self) -> list[int | None]:
        return [read_free_bytes(gpu) for gpu in self._gpus]


def _wait_until(is_so: Callable[[], bool], timeout_s: float, should_stop: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() >= deadline or should_stop():
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def read_free_main_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still allocate, within the machine, its control groups and own limit."""
    free = [psutil.virtual_memory().available, *_list_group_room(root)]
    if (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        free.append(most - psutil.Process().memory_info().vms)
    return max(0, min(free))


def _list_group_room(root: Path) -> list[int]:
    """Return the bytes left in each control group that limits this process's memory, version 1 or 2."""
    room = []
    for folder in list_memory_groups(root):
        for limit, used in GROUP_FILES:
            with contextlib.suppress(OSError, ValueError):  # of the other version, or without a limit
                sizes = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                cached = int(sizes.get("total_inactive_file") or sizes["inactive_file"])  # the kernel reclaims it
                room.append(int((folder / limit).read_text()) - int((folder / used).read_text()) + cached)
    return room


def _list_processes() -> list[MemoryHolder]:
    found = psutil.process_iter(["pid", "name", "memory_info"])
    held = [(process.info, process.info["memory_info"]) for process in found]
    return [MemoryHolder(info["pid"], info["name"], memory.rss) for info, memory in held if memory is not None]


LOCKS = "ASSAYLINE_DEVICE_LOCKS"
"""Environment variable that lists the locks of a host's worker."""

EXIT_WAIT_S = 10.0
START_SLACK_S = 2.0
"""Start times come from two readings of the clock."""


def locks_variable(locks: Iterable[Path]) -> dict[str, str]:
    """Return the environment variable that lists the locks of an engine's device for its host."""
    return {LOCKS: ":".join(str(lock.absolute()) for lock in locks)}


def note_engine(environ: Mapping[str, str]) -> None:
    """Write the session of the starting host, which leads it, into a file next to each lock of its device."""
    note = json.dumps(
        {"session": os.getsid(0), "started_s": psutil.Process().create_time(), "numbered_by": _numbered_by()}
    )
    for lock in filter(None, environ.get(LOCKS, "").split(":")):
        try:
            descriptor = os.open(_note_of(Path(lock)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(note)
        except OSError as error:
            print(f"Cannot note this engine, so nothing will end it if it is orphaned: {error}", file=sys.stderr)


def end_orphans(locks: Iterable[Path]) -> list[str]:
    """Kill the processes in sessions noted next to these locks, and wait until they are gone.

    Call it only while holding all of these locks. Returns a description of each process killed.
    """
    sessions = {session for lock in locks for session in _sessions_of(lock)} - {0, 1, os.getsid(0)}
    if not sessions:
        return []
    orphans = [process for process in psutil.process_iter() if _session_of(process) in sessions]
    killed = []
    for orphan in orphans:
        with contextlib.suppress(psutil.Error):
            name = orphan.name()
            orphan.kill()
            killed.append(f"process {orphan.pid} ({name})")
    psutil.wait_procs(orphans, timeout=EXIT_WAIT_S)
    return killed


def _note_of(lock: Path) -> Path:
    return lock.with_name(f"{lock.stem}.{os.getuid()}.engine")


def _sessions_of(lock: Path) -> list[int]:
    """Return the session noted next to a lock; none if its number has been reused."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = _note_of(lock)
        if path.lstat().st_uid != os.getuid():
            return []
        note = json.loads(path.read_text(encoding="utf-8"))
        session, started_s = int(note["session"]), float(note["started_s"])
        if note["numbered_by"] != _numbered_by():
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            if abs(psutil.Process(session).create_time() - started_s) > START_SLACK_S:
                return []
        return [session]
    return []


def _numbered_by() -> str:
    """Return an id of the process numbering: this boot of the machine, this PID namespace."""
    return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, psutil.Error):
        return None


INTERVAL_S = 1.0
END_WAIT_S = 2.0
"""Longest wait for the last sample: calls of the driver's library have no timeout."""

HOST = "host"
"""Name of the machine itself among the devices."""


class DeviceSampler:
    """One thread that samples some GPUs and the machine. Use it as a context manager."""

    def __init__(self, gpus: tuple[str, ...], worker: str, clock: RunClock, interval_s: float = INTERVAL_S) -> None:
        """Name `gpus` as in CUDA_VISIBLE_DEVICES; without any, only the machine is sampled."""
        self._gpus = gpus
        self._worker = worker
        self._clock = clock
        self._interval_s = interval_s
        self._samples: deque[DeviceSample] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-telemetry", daemon=True)
        self._trouble: str | None = None

    def __enter__(self) -> "DeviceSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(END_WAIT_S)

    def hand_over(self, take: Callable[[DeviceSample], object], log: Callable[[str], object]) -> None:
        """Pass the samples since the last call to `take`, oldest first; log once if sampling has failed.

        Both are called in the caller's thread.
        """
        while self._samples:
            take(self._samples.popleft())
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            log(f"Telemetry of the device has ended: {trouble}")

    def _run(self) -> None:
        try:
            with hold_driver() as driver:
                self._sample_on(driver)
        except Exception as error:  # telemetry is never worth a run
            self._trouble = f"{type(error).__name__}: {error}"

    def _sample_on(self, driver: Any | None) -> None:
        psutil.cpu_percent()  # measured since the previous call
        due = time.monotonic()
        is_first = True
        while True:
            is_last = self._ended.is_set()
            for gpu in self._gpus:
                at_s = self._clock.now_s()
                sensors = read_sensors(driver, gpu)
                self._samples.append(DeviceSample(worker=self._worker, device=f"cuda-{gpu}", at_s=at_s, **sensors))
            self._samples.append(self._sample_host(is_first))
            if is_last:
                return
            is_first = False
            due = max(due + self._interval_s, time.monotonic())  # missed samples are skipped
            self._ended.wait(due - time.monotonic())

    def _sample_host(self, is_first: bool) -> DeviceSample:
        memory = psutil.virtual_memory()
        busy = psutil.cpu_percent()
        return DeviceSample(
            worker=self._worker,
            device=HOST,
            at_s=self._clock.now_s(),
            utilization_share=None if is_first else busy / 100,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
        )
