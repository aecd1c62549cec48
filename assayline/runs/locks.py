"""Who works on a run: two lock files in its folder, which the kernel frees however a process ends.

`flow.lock` is held by the process that drives the run, so that nobody else resumes or rebuilds it meanwhile.
`workers.lock` is shared by all workers; a resume takes it alone for a moment, and so knows that no worker of a killed
attempt still writes parts. Both are `flock`s, as those of devices are, and hold between processes of one machine. On
some file systems they reach over machines, on some they only seem to, and of a run in an object store these are files
of this machine's copy. So who drives a run from another machine is told by `drivers.py`, and which workers still write
there by their leases.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from assayline.errors import EngineInterruptedError, StoreError
from assayline.files import MAKE_ROOM
from assayline.places.home import MANIFEST_NAME, find_url, place_of
from assayline.runs.drivers import Driver, is_driven, name_driver, take_run
from assayline.runs.manifest import read_manifest

FLOW_LOCK = "flow.lock"
WORKERS_LOCK = "workers.lock"
WORKERS_WAIT_S = 15.0
RETRY_S = 0.1
NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
"""How a file system says that it has no locks, or none that reach to other machines."""


class RunLock:
    """The right to drive a run. Freed by `release`, and by the end of the process."""

    def __init__(self, file: TextIO, driver: Driver) -> None:
        self._file = file
        self._driver = driver

    def check(self) -> None:
        """Raises StoreError if another process has taken the run, which this one was too silent to keep."""
        try:
            if self._driver.is_last():
                return
        except OSError as error:
            raise StoreError(f"Who drives the run cannot be read: {error}") from error
        raise StoreError(
            "This process was silent for so long that another one has taken the run and drives it now. What was stored "
            "is kept."
        )

    def release(self) -> None:
        """Frees the run. Safe to call twice. The file keeps the last holder's name."""
        self._driver.release()
        self._file.close()


def lock_run(run_dir: Path) -> RunLock | None:
    """Takes a run for this process, or returns None if somebody works on it. Raises StoreError.

    Where the file system has no locks, that somebody was killed is told by silence alone.
    """
    with contextlib.ExitStack() as stack:  # however this ends without a lock, nothing stays held
        file = stack.enter_context(_open(run_dir / FLOW_LOCK))
        try:
            is_locked = _try_lock(file, fcntl.LOCK_EX)
            driver = None if is_locked is False else take_run(run_dir, _own_name(), has_lock=_tells(run_dir, is_locked))
            if driver is None:
                return None
            stack.callback(driver.release)
            file.truncate(0)
            file.write(_own_name())
            file.flush()
        except OSError as error:
            raise _explain(run_dir / FLOW_LOCK, error) from error
        stack.pop_all()
        return RunLock(file, driver)


def is_worked_on(run_dir: Path) -> bool:
    """Whether some process drives the run. Writes nothing."""
    is_locked = None
    with contextlib.suppress(OSError), open(run_dir / FLOW_LOCK, encoding="utf-8") as file:
        is_locked = _try_lock(file, fcntl.LOCK_SH)
    if is_locked is False:
        return True
    try:
        return is_driven(run_dir, has_lock=_tells(run_dir, is_locked))
    except OSError:
        return False


def has_locks(run_dir: Path) -> bool:
    """Whether the locks of a run in a folder hold between processes of this machine at least. Raises StoreError."""
    try:
        with _open(run_dir / WORKERS_LOCK) as file:
            return _tells(run_dir, _try_lock(file, fcntl.LOCK_SH))
    except OSError as error:
        raise _explain(run_dir / WORKERS_LOCK, error) from error


def _tells(run_dir: Path, is_locked: bool | None) -> bool:
    """Whether a lock says anything of other processes of this machine: one of a store's copy says it of this copy."""
    return is_locked is not None and find_url(run_dir) is None


def name_holder(run_dir: Path) -> str:
    """Who works on the run, or did last: `process 4711 on host`."""
    try:
        return name_driver(run_dir) if find_url(run_dir) else _read_name(run_dir)
    except OSError:
        return "another process"


def was_driven_here(run_dir: Path) -> bool:
    """Whether this very process was the last to drive the run on this machine."""
    try:
        return _read_name(run_dir) == _own_name()
    except OSError:
        return False


def _read_name(run_dir: Path) -> str:
    return (run_dir / FLOW_LOCK).read_text(encoding="utf-8") or "another process"


@contextmanager
def hold_worker_lock(run_dir: Path, attempt: int | None = None) -> Iterator[None]:
    """For a worker, around everything that it writes.

    Raises EngineInterruptedError if a later attempt than `attempt` has resumed the run. Where the file system has no
    locks, leases alone (`leases.py`) tell who may write.
    """
    with _hold(run_dir / WORKERS_LOCK, fcntl.LOCK_SH, WORKERS_WAIT_S) as is_held:
        if not is_held:
            raise _over(attempt)
        check_attempt(run_dir, attempt)
        yield


def check_attempt(run_dir: Path, attempt: int | None) -> None:
    """Raises EngineInterruptedError if a later attempt than `attempt` has resumed the run."""
    if attempt is not None and place_of(run_dir).exists(MANIFEST_NAME) and read_manifest(run_dir).attempt != attempt:
        raise _over(attempt)


@contextmanager
def keep_workers_out(run_dir: Path, wait_s: float = WORKERS_WAIT_S) -> Iterator[None]:
    """For a resume: no worker writes meanwhile. Raises StoreError if one of an earlier attempt does not end."""
    with _hold(run_dir / WORKERS_LOCK, fcntl.LOCK_EX, wait_s) as is_held:
        if not is_held:
            raise StoreError(
                f"A worker of an earlier attempt still works for {run_dir.name} and did not stop within {wait_s:g} s. "
                f"Wait for its end, or end it (`fuser {run_dir / WORKERS_LOCK}` names it), then give the same command "
                "again; or start a new run with --fresh."
            )
        yield


@contextmanager
def _hold(path: Path, kind: int, wait_s: float) -> Iterator[bool]:
    """Holds a lock as soon as it is free; gives False if that is not within `wait_s`."""
    deadline = time.monotonic() + wait_s
    with _open(path) as file:
        try:
            while not (is_held := _try_lock(file, kind) is not False) and time.monotonic() < deadline:
                time.sleep(RETRY_S)
        except OSError as error:
            raise _explain(path, error) from error
        yield is_held


def _try_lock(file: TextIO, kind: int) -> bool | None:
    """Whether this process has the lock now; None where the file system has none, and beats and leases must do."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "a+", encoding="utf-8")  # its user closes it
    except OSError as error:
        raise _explain(path, error) from error


def _explain(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The run's lock {path} cannot be made or taken: {error}. The data folder (ASSAYLINE_DATA_DIR) must be "
        f"writable. {MAKE_ROOM}"
    )


def _over(attempt: int | None) -> EngineInterruptedError:
    return EngineInterruptedError(f"Attempt {attempt} of this run is over, as a later one has resumed it.")


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
