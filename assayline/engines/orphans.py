"""Orphans: engine processes whose worker is gone, and which would keep a device's memory for ever.

An engine host ends itself when its worker dies. But a host may be killed together with its worker, and vLLM's own
processes, where it has any, then live on. So each of them carries a mark in its environment, the locks of its device;
whoever holds those locks owns the device, and what else bears their mark is nobody's.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "ASSAYLINE_DEVICE_LOCKS"
EXIT_WAIT_S = 10.0


def mark_of(locks: Iterable[Path]) -> dict[str, str]:
    """The environment that marks an engine's processes as using the device behind these locks."""
    return {MARK: ":".join(str(lock.absolute()) for lock in locks)}


def end_orphans(locks: Iterable[Path]) -> list[str]:
    """Kills every process that bears the mark of one of these locks, and waits until they are gone.

    Only for whoever has just got hold of all of them. Returns who was killed, in words.
    """
    wanted = {str(lock.absolute()) for lock in locks}
    orphans = [process for process in psutil.process_iter() if wanted & _marks_of(process)]
    killed = []
    for orphan in orphans:
        with contextlib.suppress(psutil.Error):
            name = orphan.name()
            orphan.kill()
            killed.append(f"process {orphan.pid} ({name})")
    psutil.wait_procs(orphans, timeout=EXIT_WAIT_S)
    return killed


def _marks_of(process: psutil.Process) -> set[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return set(process.environ().get(MARK, "").split(":")) - {""}
    return set()
