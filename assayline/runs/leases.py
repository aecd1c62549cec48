"""Leases: which worker may answer the shards that it claimed, and when others may take them over.

A worker shows that it is there by a number that it writes again and again. Whoever sees the same number for
`lease_s` seconds of its own monotonic clock takes that worker for dead, says so in the worker's lease, and takes its
shards over. The worker, if it lives after all, reads its lease before it writes answers, and writes none. So no clocks
of two machines are compared, and no lock has to reach from one machine to another.

A lease is two small files in the run's folder, `leases/OWNER` and `beats/OWNER`. They are overwritten in place and
never renamed: a network file system shows what is in a file that is opened anew, but may show an old name for a minute.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM

LEASES, BEATS = "leases", "beats"
HELD, LOST = b"held\n", b"lost\n"
LEFT = b"left".ljust(20)
"""The last beat of a worker that ends by itself: nobody need wait for its silence."""
DIED = b"died".ljust(20)
"""The last beat of a worker of which somebody knows that it was killed."""

BEATS_PER_LEASE = 6
LOOKS_PER_LEASE = 4
"""How often somebody must have looked during a silence: one who was stopped himself has seen nothing."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lease."""

    owner: str
    worker: str
    host: str
    pid: int


class Beat:
    """A number in a file of `beats/` that a thread writes again and again, for as long as this process lives."""

    def __init__(self, run_dir: Path, owner: str, interval_s: float) -> None:
        self._path = run_dir / BEATS / owner
        self._interval_s = interval_s
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="beat", daemon=True)

    def begin(self) -> None:
        """Writes the first one. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write(create=True)
        self._thread.start()

    def end(self) -> None:
        """Says that this is the end, for which nobody need wait. Safe to call twice."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            with contextlib.suppress(OSError):
                _overwrite(self._path, LEFT)

    def _keep(self) -> None:
        while not self._ended.wait(self._interval_s):
            with contextlib.suppress(OSError):  # a beat that is missed is no loss, and many of them tell
                self._write()

    def _write(self, create: bool = False) -> None:
        self._count += 1
        _overwrite(self._path, b"%020d" % self._count, create)


class Lease:
    """This process's lease, kept by a thread. `is_held` asks whether it still counts; once lost it stays lost."""

    def __init__(self, run_dir: Path, worker: str, lease_s: float) -> None:
        self.owner = f"{worker}-{uuid.uuid4().hex[:8]}"
        self._path = run_dir / LEASES / self.owner
        self._beat = Beat(run_dir, self.owner, lease_s / BEATS_PER_LEASE)
        self._worker = worker
        self._is_lost = False

    def begin(self) -> None:
        """Takes the lease. Raises StoreError."""
        holder = {"worker": self._worker, "host": socket.gethostname(), "pid": os.getpid()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._beat.begin()
            self._path.write_bytes(HELD + json.dumps(holder).encode())
        except OSError as error:
            raise StoreError(f"The lease {self._path} cannot be written: {error}. {MAKE_ROOM}") from error

    def is_held(self) -> bool:
        """Whether what was claimed under this lease is still this worker's, by what its file says now."""
        if not self._is_lost:
            try:
                self._is_lost = not self._path.read_bytes().startswith(HELD)
            except FileNotFoundError:
                self._is_lost = True  # a later attempt has begun the queue anew
            except OSError:
                return False  # nobody knows now: nothing is written, and it is asked again
        return not self._is_lost

    @property
    def is_lost(self) -> bool:
        """Whether `is_held` has found it lost."""
        return self._is_lost

    def end(self) -> None:
        """Gives the lease back: whatever is claimed under it and not done may be taken over at once."""
        self._beat.end()


class Watch:
    """Who is silent, by this process's own monotonic clock. It knows only what it has looked at."""

    def __init__(self, run_dir: Path, lease_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._lease_s = lease_s
        self._now = now
        self._seen: dict[str, tuple[bytes | None, float]] = {}
        self._silent_s: dict[str, float] = {}

    def look(self, owners: Iterable[str]) -> None:
        """Reads the beats of these owners."""
        for owner in owners:
            beat, now = self._read_beat(owner), self._now()
            last, looked_s = self._seen.get(owner, (None, now))
            if beat in (LEFT, DIED):
                self._silent_s[owner] = float("inf")
            elif owner not in self._seen or beat != last:
                self._silent_s[owner] = 0.0
            else:
                self._silent_s[owner] += min(now - looked_s, self._lease_s / LOOKS_PER_LEASE)
            self._seen[owner] = (beat, now)

    def silent_s(self, owner: str) -> float:
        """Seconds for which an owner was seen silent; infinite for one that has left."""
        return self._silent_s.get(owner, 0.0)

    def is_gone(self, owner: str) -> bool:
        """Whether others may take over what this owner holds."""
        return self.silent_s(owner) >= self._lease_s or is_revoked(self._run_dir, owner)

    def _read_beat(self, owner: str) -> bytes | None:
        try:
            return (self._run_dir / BEATS / owner).read_bytes() if owner else None
        except OSError:
            return None


def list_owners(run_dir: Path) -> list[str]:
    """Everybody who had a lease in this attempt."""
    try:
        return sorted(os.listdir(run_dir / LEASES))  # noqa: PTH208 - names are what is wanted
    except OSError:
        return []


def read_holder(run_dir: Path, owner: str) -> Holder | None:
    """Who an owner is; None while its lease is being written."""
    try:
        said = json.loads((run_dir / LEASES / owner).read_bytes().partition(b"\n")[2])
        return Holder(owner, str(said["worker"]), str(said["host"]), int(said["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bury(run_dir: Path, worker: str) -> None:
    """Says for a worker whose process is known to be gone that it died: nobody need wait for its silence."""
    for owner in list_owners(run_dir):
        if owner.rpartition("-")[0] == worker:
            with contextlib.suppress(OSError):
                _overwrite(run_dir / BEATS / owner, DIED)


def has_left(run_dir: Path, owner: str) -> bool:
    """Whether an owner ended by itself."""
    try:
        return (run_dir / BEATS / owner).read_bytes() == LEFT if owner else False
    except OSError:
        return False


def revoke(run_dir: Path, owner: str) -> None:
    """Says in an owner's lease that it is lost: before the first of its shards is taken over. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        _overwrite(run_dir / LEASES / owner, LOST)


def is_revoked(run_dir: Path, owner: str) -> bool:
    """Whether an owner's lease is lost, as somebody said."""
    try:
        return (run_dir / LEASES / owner).read_bytes().startswith(LOST) if owner else False
    except OSError:
        return False


def _overwrite(path: Path, content: bytes, create: bool = False) -> None:
    """Writes the beginning of a file in place, by one write."""
    descriptor = os.open(path, os.O_WRONLY | (os.O_CREAT if create else 0), 0o666)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
