"""Leases: which worker may answer the shards that it claimed, and when others may take them over.

A worker shows that it is there by a number that it writes again and again. Whoever sees the same number for
`lease_s` seconds of its own monotonic clock takes that worker for dead, says so in the worker's lease, and takes its
shards over. The worker, if it lives after all, reads its lease before it writes answers, and writes none. So no clocks
of two machines are compared, and no lock has to reach from one machine to another.

A lease is two small files of the run, `leases/OWNER` and `beats/OWNER`, which are overwritten and never renamed, in a
folder as in an object store (`places/`). What somebody knows of an owner's end is said once more by the name of an
empty file, `ends/OWNER.WORD`: so a look at a thousand workers of a store is two lists, of beats and of ends.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assayline.clock import UNKNOWN, boot_id
from assayline.errors import StoreError
from assayline.files import MAKE_ROOM
from assayline.places.home import place_of
from assayline.places.place import Place

LEASES, BEATS, ENDS = "leases", "beats", "ends"
HAS_LEFT, HAS_DIED, HAS_LOST, IS_SOUGHT, IS_SETTLED = END_WORDS = ("left", "died", "lost", "sought", "settled")
"""Of an owner: it ended by itself; somebody knows that it was killed; its lease is lost; somebody looks for its shards;
and it has none left."""
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
    boot: str = UNKNOWN
    """On which start of its machine."""
    is_revoked: bool = False
    """Whether somebody said that the lease is lost."""


class Beat:
    """A number in a file of `beats/` that a thread writes again and again, for as long as this process lives."""

    def __init__(self, run_dir: Path, owner: str, interval_s: float, folder: str = BEATS) -> None:
        self._place = place_of(run_dir)
        self._key = f"{folder}/{owner}"
        self._interval_s = interval_s
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="beat", daemon=True)

    def begin(self) -> None:
        """Writes the first one. Raises OSError."""
        self._write(create=True)
        self._thread.start()

    def end(self) -> None:
        """Says that this is the end, for which nobody need wait. Safe to call twice."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            with contextlib.suppress(OSError):
                self._place.note(self._key, LEFT, create=False)

    def _keep(self) -> None:
        while not self._ended.wait(self._interval_s):
            with contextlib.suppress(OSError):  # a beat that is missed is no loss, and many of them tell
                self._write()

    def _write(self, create: bool = False) -> None:
        self._count += 1
        self._place.note(self._key, b"%020d" % self._count, create=create)


class Lease:
    """This process's lease, kept by a thread. `is_held` asks whether it still counts; once lost it stays lost."""

    def __init__(self, run_dir: Path, worker: str, lease_s: float) -> None:
        self.owner = f"{worker}-{uuid.uuid4().hex[:8]}"
        self._place = place_of(run_dir)
        self._key = f"{LEASES}/{self.owner}"
        self._beat = Beat(run_dir, self.owner, lease_s / BEATS_PER_LEASE)
        self._worker = worker
        self._is_lost = False

    def begin(self) -> None:
        """Takes the lease. Raises StoreError."""
        holder = {"worker": self._worker, "host": socket.gethostname(), "pid": os.getpid(), "boot": boot_id()}
        try:
            self._beat.begin()
            self._place.create(self._key, HELD + json.dumps(holder).encode())
        except OSError as error:
            where = f"{self._place.name}/{self._key}"
            raise StoreError(f"The lease {where} cannot be written: {error}. {MAKE_ROOM}") from error

    def is_held(self) -> bool:
        """Whether what was claimed under this lease is still this worker's, by what its file says now."""
        if not self._is_lost:
            try:
                self._is_lost = not self._place.read(self._key).startswith(HELD)
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
        """Gives the lease back: whatever is claimed under it and not done may be taken over at once.

        Who finds out late that it is lost may have claimed something since others had settled its shards.
        """
        self._beat.end()
        with contextlib.suppress(OSError):
            _note_end(self._place, self.owner, HAS_LEFT)
            for word in (IS_SOUGHT, IS_SETTLED) if self._is_lost else ():
                self._place.remove(_end_key(self.owner, word))


class Watch:
    """Who is silent, by this process's own monotonic clock. It knows only what it has looked at."""

    def __init__(self, run_dir: Path, lease_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._place = place_of(run_dir)
        self.lease_s = lease_s
        self._now = now
        self._seen: dict[str, tuple[object, float]] = {}
        self._silent_s: dict[str, float] = {}
        self._ends: dict[str, set[str]] = {word: set() for word in END_WORDS}
        """Owners, by what is said of their ends."""

    def look(self, owners: Iterable[str] | None = None) -> None:
        """Looks at the beats of these owners, or of all who may still have shards. What cannot be read is not seen."""
        wanted = None if owners is None else set(filter(None, owners))
        with contextlib.suppress(OSError):
            self._read_ends()
            beats = self._place.versions(BEATS, self._ends[IS_SETTLED] - (wanted or set()))
            self._compare(beats, set(beats) - self._ends[IS_SETTLED] if wanted is None else wanted)

    def _read_ends(self) -> None:
        ends: dict[str, set[str]] = {word: set() for word in END_WORDS}
        for name in self._place.names(ENDS):
            owner, _, word = name.rpartition(".")
            ends.setdefault(word, set()).add(owner)
        self._ends = ends

    def _compare(self, beats: Mapping[str, object], owners: Iterable[str]) -> None:
        now = self._now()
        ended = self._ends[HAS_LEFT] | self._ends[HAS_DIED]
        for owner in owners:
            beat = beats.get(owner)
            last, looked_s = self._seen.get(owner, (None, now))
            if beat in (LEFT, DIED) or owner in ended:
                self._silent_s[owner] = float("inf")
            elif owner not in self._seen or beat != last:
                self._silent_s[owner] = 0.0
            else:
                self._silent_s[owner] += min(now - looked_s, self.lease_s / LOOKS_PER_LEASE)
            self._seen[owner] = (beat, now)

    def silent_s(self, owner: str) -> float:
        """Seconds for which an owner was seen silent; infinite for one that has left."""
        return self._silent_s.get(owner, 0.0)

    def find_gone(self, owners: Iterable[str]) -> set[str]:
        """Those of some owners whose shards others may take over: silent for a lease, or revoked by somebody."""
        return {owner for owner in owners if self.silent_s(owner) >= self.lease_s or self.has_lost(owner)}

    def is_settled(self, owner: str) -> bool:
        """Whether somebody has said that an owner whose end is known has no shard left."""
        return owner in self._ends[IS_SETTLED]

    def seek(self, owner: str) -> bool:
        """Whether this observer, and nobody before it, is the one to look for an owner's shards. Raises OSError."""
        return owner not in self._ends[IS_SOUGHT] and self._place.create(_end_key(owner, IS_SOUGHT))

    @property
    def seen(self) -> set[str]:
        """Whose beats it has found."""
        return {owner for owner, (beat, _) in self._seen.items() if beat is not None}

    def has_lost(self, owner: str) -> bool:
        """Whether somebody has said that an owner's lease is lost."""
        return owner in self._ends[HAS_LOST]

    def has_left(self, owner: str) -> bool:
        """Whether an owner ended by itself."""
        return owner in self._ends[HAS_LEFT] or self._seen.get(owner, (None, 0.0))[0] == LEFT


def list_owners(run_dir: Path) -> list[str]:
    """Everybody who had a lease in this attempt."""
    try:
        return sorted(place_of(run_dir).names(LEASES))
    except OSError:
        return []


def read_holders(run_dir: Path, owners: Iterable[str]) -> list[Holder]:
    """Who some owners are, without those whose leases are being written."""
    found = []
    for owner, content in place_of(run_dir).read_many(LEASES, owners).items():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(content.partition(b"\n")[2])
            who = str(said["worker"]), str(said["host"]), int(said["pid"]), str(said.get("boot", UNKNOWN))
            found.append(Holder(owner, *who, content.startswith(LOST)))
    return found


def bury(run_dir: Path, worker: str) -> None:
    """Says for a worker whose process is known to be gone that it died: nobody need wait for its silence."""
    for owner in list_owners(run_dir):
        if owner.rpartition("-")[0] == worker:
            with contextlib.suppress(OSError):
                place_of(run_dir).note(f"{BEATS}/{owner}", DIED, create=False)
                _note_end(place_of(run_dir), owner, HAS_DIED)


def has_left(run_dir: Path, owner: str) -> bool:
    """Whether an owner ended by itself."""
    try:
        return place_of(run_dir).read(f"{BEATS}/{owner}") == LEFT if owner else False
    except OSError:
        return False


def list_far_owners(run_dir: Path) -> list[str]:
    """Who has a lease on a machine of which this one's locks say nothing."""
    owners = list_owners(run_dir)
    here = {holder.owner for holder in read_holders(run_dir, owners) if UNKNOWN != holder.boot == boot_id()}
    return [owner for owner in owners if owner not in here]


def wait_for_ends(run_dir: Path, owners: Sequence[str], lease_s: float, wait_s: float) -> list[str]:
    """Revokes leases, and waits until each of their workers has left or is silent. Returns those that are silent.

    Such a one may still write what it had checked its lease for. Raises StoreError for one that beats after `wait_s`,
    and OSError.
    """
    watch, deadline = Watch(run_dir, lease_s), time.monotonic() + wait_s
    for owner in owners:
        revoke(run_dir, owner)
    while True:
        watch.look(owners)
        beating = [owner for owner in owners if watch.silent_s(owner) < lease_s]
        if not beating:
            return [owner for owner in owners if watch.silent_s(owner) != float("inf")]
        if time.monotonic() > deadline:
            raise StoreError(
                f"{beating[0]} of an earlier attempt still works for {run_dir.name} and did not stop within "
                f"{wait_s:g} s. Wait for its end, or end it, then give the same command again; or start a new run with "
                "--fresh."
            )
        time.sleep(lease_s / LOOKS_PER_LEASE / 2)


def revoke(run_dir: Path, owner: str) -> None:
    """Says in an owner's lease that it is lost: before the first of its shards is taken over. Raises OSError."""
    place, key = place_of(run_dir), f"{LEASES}/{owner}"
    with contextlib.suppress(FileNotFoundError):
        place.note(key, LOST + place.read(key)[len(HELD) :], create=False)
        _note_end(place, owner, HAS_LOST)


def settle(run_dir: Path, owner: str) -> None:
    """Says of an owner whose end is known that none of its shards is left to take over. Raises OSError."""
    _note_end(place_of(run_dir), owner, IS_SETTLED)


def _note_end(place: Place, owner: str, word: str) -> None:
    place.note(_end_key(owner, word))


def _end_key(owner: str, word: str) -> str:
    return f"{ENDS}/{owner}.{word}"
