"""The queue between preparing and generating: a folder of request parts that workers claim one by one.

A shard is a part file of the `requests` table. A worker claims it by creating a file that must not exist yet, which is
atomic on every local and network file system and in object stores (`places/`), so any number of workers, in threads,
processes or on other machines, share a queue without a server, and a fast worker takes more shards than a slow one. Of
the shards that are there it takes the one with the longest answers, where their names tell how long they are expected
to be, or else the largest, so that the last ones are small.

A claim holds as long as its owner's lease (`runs/leases.py`). A shard whose owner is gone is claimed once more, under
the same name with the next number, and again exactly one worker can create that file. Of such a shard only what its
former owners have not stored is asked. `done/` has the shards whose answers are all stored; a worker ends when every
shard is there or in its own hands.

A run that is resumed begins with its answered shards done, and with a list of answered requests beside those that were
left in the middle.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from assayline.errors import StoreError
from assayline.evaluation.shards.claims import CLAIMS, DONE, Claim, Claims
from assayline.evaluation.shards.lookout import Lookout
from assayline.evaluation.shards.rows import heaviest_first, read_shard
from assayline.evaluation.shards.suspects import SUSPECTS, Suspicion, note_asked, read_suspicion
from assayline.evaluation.shards.throttle import Throttle
from assayline.places.home import place_of
from assayline.records import Request
from assayline.runs.leases import BEATS, ENDS, LEASES, Lease, Watch
from assayline.store.parts import list_part_names, part_folder, parts_dir, read_request_ids, read_texts

ANSWERED = "answered"
CLOSED, GO, STOP = "queue-closed", "go", "stop"
LOST_LIST_AGE_S = 0.5
"""Of a store's list of claims that is good enough to leave out what others have."""
READING = ""
"""Stands for the requests of a shard that are not read yet."""
LISTING_WAIT_S = 120.0
"""How long a network file system may take to list the last shards after it showed that the queue is closed."""


class ShardQueue:
    """One run's shards. `pull` is for workers, `close` for whoever writes the last shard, `stop` for everybody."""

    def __init__(
        self,
        run_dir: Path,
        lease: Lease | None = None,
        watch: Watch | None = None,
        on_convicted: Callable[[Request, str], None] = lambda request, words: None,
    ) -> None:
        """Without a `lease`, what is claimed stays claimed until the queue is reset; so it does without a `watch`.

        `on_convicted` gets a request that kills its workers, and words for its error row; it is to settle it.
        """
        self._run_dir = run_dir
        self._lease = lease
        self._on_convicted = on_convicted
        self._claims = Claims(run_dir)
        self._lookout = None if watch is None else Lookout(run_dir, self._claims, watch)
        self._place = place_of(run_dir)
        self._pending: list[Path] = []
        self._seen: set[str] = set()
        self._is_closed = self._has_all = self._is_over = False
        self._closed_s: float | None = None
        self._gone: list[Claim] = []
        """Claims whose owners were gone at the last look."""
        self._open: dict[str, set[str]] = {}
        self._shard_of: dict[str, str] = {}
        self._scan = Throttle()

    def reset(self) -> None:
        """Makes every shard claimable and the queue open again: at the start of a run. Raises StoreError.

        Every lease of before is lost by it.
        """
        with _explained(self._run_dir):
            for folder in (LEASES, BEATS, ENDS, SUSPECTS, CLAIMS, DONE, ANSWERED):
                self._place.clear(folder)
            for mark in (CLOSED, STOP):
                self._place.remove(mark)
            self._place.note(GO)

    def close(self, shards: int | None = None) -> None:
        """No shard will follow; `shards` is how many there are, where that is known. Raises StoreError."""
        with _explained(self._run_dir):
            self._place.note(CLOSED, b"" if shards is None else str(shards).encode())

    def stop(self) -> None:
        """Asks every worker to stop generating now. Needs no space: a full disk is a reason to stop."""
        with contextlib.suppress(OSError):
            self._place.move(GO, STOP)
            return
        with contextlib.suppress(OSError):
            self._place.note(STOP)

    def mark_answered(self, shard: str) -> None:
        """Nothing of this shard is to be asked. Raises StoreError."""
        with _explained(self._run_dir):
            self._claims.make(shard, "")
            self._claims.mark_done(shard)

    def mark_partly_answered(self, shard: str, request_ids: Iterable[str]) -> None:
        """These requests of the shard are not to be asked. To be said before it can be claimed. Raises StoreError."""
        with _explained(self._run_dir):
            lines = "".join(f"{request_id}\n" for request_id in request_ids)
            self._place.note(f"{ANSWERED}/{shard}", lines.encode())

    def is_stopped(self) -> bool:
        """Whether somebody asked to stop. Raises StoreError."""
        with _explained(self._run_dir):
            return self._place.exists(STOP)

    def is_finished(self) -> bool:
        """Whether the queue is closed and all its shards are done. Raises StoreError."""
        with _explained(self._run_dir):
            closed = self._place.exists(CLOSED)
            shards = {name.removesuffix(".parquet") for name in list_part_names(self._run_dir, "requests")}
            return closed and shards <= set(self._place.names(DONE))

    def claim(self) -> Path | None:
        """A shard that nobody else will get, the one with the longest answers; None if there is none at the moment.

        Raises StoreError.
        """
        self._rescan()
        while self._pending and (self._lease is None or self._lease.is_held()):
            shard = self._pending.pop(0)
            with _explained(self._run_dir):
                if self._claims.make(shard.stem, self._lease.owner if self._lease else ""):
                    return shard
                if self._place.is_far:
                    self._drop_claimed()
        return None

    def _drop_claimed(self) -> None:
        """Who lost one race will lose others: one list costs less than a round trip for each."""
        claimed = {name.partition(".")[0] for name in self._place.names(CLAIMS, max_age_s=LOST_LIST_AGE_S)}
        self._pending = [shard for shard in self._pending if shard.stem not in claimed]

    def take_over(self) -> Path | None:
        """A shard whose owner is gone, for this worker alone; None if there is none now. Raises StoreError."""
        if self._lease is None or self._lookout is None:
            return None
        is_due = self._lookout.throttle.is_due()
        if not (is_due or self._gone) or not self._lease.is_held():
            return None
        with _explained(self._run_dir):
            if is_due:
                self._look_for_gone(self._lease, self._lookout)
            while self._gone:
                claim = self._gone.pop(0)
                if self._claims.take_over(claim, self._lease):
                    return self._path_of(claim.shard)
        return None

    def _look_for_gone(self, lease: Lease, lookout: Lookout) -> None:
        """What is found is good until the next look: the leases of those who are gone are lost for ever."""
        with lookout.throttle:
            seen = [name.removesuffix(".parquet") for name in self._seen]
            self._is_over = lookout.is_all_done(seen, self._open)
            gone = [] if self._is_over and self._has_all else lookout.find_gone(lease.owner)
            self._gone = sorted(gone, key=lambda claim: heaviest_first(self._path_of(claim.shard)))

    def pull(self) -> Iterator[Request | None]:
        """Requests of every shard that can be claimed, until the queue is closed and empty; None: nothing now.

        With a lease, the queue is empty when all that others have claimed is done. What this worker was given it
        settles, request by request, and calls `mark_stored` when the answers are durable.
        """
        while True:
            closed = self._has_closed()  # asked before claiming: the last shard is there before the mark is
            shard = self.claim()
            if shard is None and closed and not self._has_all:
                self._scan.forget()  # the last shard may have come since the last look
                shard = self.claim()
                self._has_all = self._has_seen_all()
            shard = shard or self.take_over()
            if shard is not None:
                yield from self._hand_out(shard)
            elif self._has_all and (self._is_over or self._lease is None):
                return
            else:
                yield None

    def forget(self, lease: Lease) -> None:
        """Continues under a new lease: what was claimed under the old one is somebody else's, or taken over anew."""
        self._lease = lease
        self._open, self._shard_of, self._is_over = {}, {}, False

    def settle(self, request_id: str) -> None:
        """A request is answered; its row is about to be stored."""
        if shard := self._shard_of.pop(request_id, None):
            self._open[shard].remove(request_id)

    def mark_stored(self) -> None:
        """All that was settled is stored: shards with nothing left are done. Raises StoreError."""
        with _explained(self._run_dir):
            for shard in [shard for shard, left in self._open.items() if not left]:
                del self._open[shard]
                self._claims.mark_done(shard)

    def _hand_out(self, shard: Path) -> Iterator[Request | None]:
        with _explained(self._run_dir):
            [shard] = self._place.fetch(part_folder("requests"), [shard.name])
        answered = self._read_answered(shard.stem)
        if self._lease is None:
            yield from read_shard(shard, answered, partial(read_texts, self._run_dir))
            return
        left = self._open[shard.stem] = {READING}
        # What an earlier attempt has answered can be in any part; what a worker has that died, in its own alone.
        writers = None if answered else self._claims.former_owners(shard.stem)
        stored = answered | self._read_stored(shard.stem)
        requests = read_shard(shard, stored, partial(read_texts, self._run_dir, writers=writers))
        with _explained(self._run_dir):
            suspicion = read_suspicion(self._run_dir, shard.stem, self._claims.former_owners(shard.stem))
        if suspicion is None:
            for request in requests:
                yield self._track(request, shard)
        else:
            yield from self._ask_with_care(shard, suspicion, list(requests))
        left.remove(READING)

    def _ask_with_care(self, shard: Path, suspicion: Suspicion, requests: list[Request]) -> Iterator[Request | None]:
        """Group by group, with nothing else in the engine, so that the next owner knows what this one died with."""
        for request in filter(suspicion.is_proven, requests):
            self._on_convicted(self._track(request, shard), suspicion.describe())
        for group in suspicion.divide(requests):
            while self._shard_of:
                yield None
            with _explained(self._run_dir):
                note_asked(self._run_dir, shard.stem, self._lease.owner if self._lease else "", group)
            for request in group:
                yield self._track(request, shard)
        while self._shard_of:
            yield None

    def _track(self, request: Request, shard: Path) -> Request:
        """Notes that a request is under way, until it is settled."""
        self._open[shard.stem].add(request.request_id)
        self._shard_of[request.request_id] = shard.stem
        return request

    def _rescan(self) -> None:
        if self._has_all or not self._scan.is_due():
            return
        with self._scan:
            folder = parts_dir(self._run_dir, "requests")
            new = [name for name in list_part_names(self._run_dir, "requests") if name not in self._seen]
            self._pending = sorted([*self._pending, *(folder / name for name in new)], key=heaviest_first)
            self._seen.update(new)
            self._is_over = self._is_over and not new

    def _has_closed(self) -> bool:
        """Whether the queue is known to be closed."""
        if not self._is_closed and (self._scan.is_due() or not self._place.is_far):
            with _explained(self._run_dir):
                self._is_closed = self._place.exists(CLOSED)
        return self._is_closed

    def _has_seen_all(self) -> bool:
        """Whether every shard of the closed queue was seen. A network file system's list may lag behind."""
        with _explained(self._run_dir):
            said = self._place.read(CLOSED).decode()
        self._closed_s = self._closed_s or time.monotonic()
        return not said or len(self._seen) >= int(said) or time.monotonic() - self._closed_s > LISTING_WAIT_S

    def _path_of(self, shard: str) -> Path:
        return parts_dir(self._run_dir, "requests") / f"{shard}.parquet"

    def _read_answered(self, shard: str) -> frozenset[str]:
        with _explained(self._run_dir), contextlib.suppress(FileNotFoundError):
            return frozenset(self._place.read(f"{ANSWERED}/{shard}").decode().splitlines())
        return frozenset()

    def _read_stored(self, shard: str) -> frozenset[str]:
        """Requests that the shard's former owners have answered, by their parts."""
        owners = self._claims.former_owners(shard)
        return frozenset(request_id for owner in owners for request_id in read_request_ids(self._run_dir, owner))


@contextlib.contextmanager
def _explained(run_dir: Path) -> Iterator[None]:
    """An error of the file system, or of a store, becomes a sentence."""
    try:
        yield
    except OSError as error:
        place = place_of(run_dir)
        raise StoreError(
            f"The run's folder {place.name} cannot be read or written: {error}. {place.advice} What was stored so far "
            "is kept: the same command resumes the run."
        ) from error
