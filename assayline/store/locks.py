"""The lock of a run: `flow.lock` in its folder, a `flock` that the kernel frees in any case when its holder exits.

The process that drives a run holds it, so that no other process resumes or rebuilds the run meanwhile.
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM

FLOW_LOCK = "flow.lock"
_LOOKING_S = 1.0
"""Time for other processes to finish looking: `is_worked_on` holds a shared lock for microseconds."""

_RETRY_S = 0.01


class RunLock:
    """The right to drive a run, until `release` or the end of the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def release(self) -> None:
        """Release the lock; a second call has no effect. The file keeps the last holder's name."""
        self._file.close()


def lock_run(run_dir: Path) -> RunLock | None:
    """Lock a run for this process; None if another process drives it. Raises StoreError."""
    return lock_file(run_dir / FLOW_LOCK, _LOOKING_S)


@contextlib.contextmanager
def holding(run_dir: Path, hint: str, what: str | None = None) -> Iterator[None]:
    """Hold the lock of a run, or of a campaign as `what`, for this process. Raises StoreError if another one has it."""
    if (lock := lock_run(run_dir)) is None:
        holder = name_holder(run_dir)
        raise StoreError(f"{what or f'Run {run_dir.name}'} is in use by {holder}. hint: {hint}")
    try:
        yield
    finally:
        lock.release()


def lock_file(path: Path, wait_s: float) -> RunLock | None:
    """Lock a file for this process, and create it if it is missing; None if it is locked for longer than `wait_s`.

    Raises StoreError.
    """
    try:
        with contextlib.ExitStack() as stack:  # without a lock at the end, nothing stays open
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+", encoding="utf-8"))
            deadline = time.monotonic() + wait_s
            while not _try_lock(file, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    return None
                time.sleep(_RETRY_S)
            file.truncate(0)
            file.write(_own_name())
            file.flush()
            stack.pop_all()
            return RunLock(file)
    except OSError as error:  # also from closing the file, which writes again if the disk was full
        raise StoreError(
            f"The lock {path} cannot be made or taken: {error}. hint: the data folder (ASSAYLINE_DATA_DIR) must be "
            f"writable, on a file system that has locks (flock); {MAKE_ROOM}"
        ) from error


def is_worked_on(run_dir: Path) -> bool:
    """Return True if a process drives the run. Writes nothing."""
    with contextlib.suppress(OSError), open(run_dir / FLOW_LOCK, encoding="utf-8") as file:
        return not _try_lock(file, fcntl.LOCK_SH)
    return False


def name_holder(run_dir: Path, lock: str = FLOW_LOCK) -> str:
    """Return the current or last holder of the run or of another lock in the folder: `process 4711 on host`."""
    try:
        return (run_dir / lock).read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"


def _try_lock(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
