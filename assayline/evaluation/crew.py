"""The workers of a run as its flow sees them: who is there, who is silent, who is slow, and how many shards are left.

The flow looks from the beginning, so it is the first to know that a worker is gone, and says so in that worker's lease:
idle workers then take its shards over at once.
"""

import contextlib
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.evaluation.shards.claims import CLAIMS, DONE
from assayline.evaluation.shards.throttle import Throttle
from assayline.places.home import place_of
from assayline.runs.leases import Holder, Watch, list_owners, read_holders, revoke
from assayline.store.parts import ANSWERS, SHOWN_AGE_S, fetch_parts, list_part_names
from assayline.store.takeovers import list_takeovers

ALIVE, SILENT, DEAD, LEFT = "alive", "silent", "dead", "left"
SILENT_SHARE = 0.5
"""Of the lease, after which a worker is called silent."""
RATE_OVER_S = 30.0
SLOW_SHARE = 0.5
"""Of the median rate, below which a worker is called slow."""
LEAST_COMPARED = 3
"""Workers whose rates say what is slow."""


@dataclass(frozen=True, slots=True)
class WorkerStanding:
    """One worker."""

    worker: str
    host: str
    state: str
    """alive, silent (for half a lease), dead (for a lease, or known to be: its shards are taken over) or left."""
    silent_s: float
    answered: int
    output_tokens_per_s: float | None
    """Over the last `RATE_OVER_S` seconds, as parts came in; None before the first."""
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class CrewStanding:
    """All of them, and the shards."""

    workers: list[WorkerStanding]
    shards: int
    done: int
    leased: int
    taken_over: int

    def count(self, state: str) -> int:
        """Workers in a state."""
        return sum(worker.state == state for worker in self.workers)

    @property
    def output_tokens_per_s(self) -> float:
        """Of all workers."""
        return sum(worker.output_tokens_per_s or 0.0 for worker in self.workers)


class Crew:
    """Looks at a run's workers, in the process of its flow."""

    def __init__(self, run_dir: Path, lease_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._lease_s = lease_s
        self._now = now
        self._watch = Watch(run_dir, lease_s, now)
        self._holders: dict[str, Holder] = {}
        self._parts = Throttle()
        self._seen: set[str] = set()
        self._answered: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._marks: deque[tuple[float, Counter[str]]] = deque([(now(), Counter())])

    def look(self, *, is_last: bool = False) -> CrewStanding:
        """Reads beats and new parts; revokes the leases of those that are gone. Raises StoreError.

        Where names of parts are many, they are not gone over at each look, but at the last one.
        """
        if is_last or self._parts.is_due():
            with self._parts:
                self._read_new_parts()
        now = self._now()
        self._marks.append((now, self._tokens.copy()))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_OVER_S:
            self._marks.popleft()
        place = place_of(self._run_dir)
        try:
            done = set(place.names(DONE))
            claimed = {name.partition(".")[0] for name in place.names(CLAIMS)}
        except OSError as error:
            raise StoreError(f"The claims of {place.name} cannot be read: {error}. {place.advice}") from error
        return CrewStanding(
            self._stand(),
            shards=len(list_part_names(self._run_dir, "requests", max_age_s=SHOWN_AGE_S)),
            done=len(done),
            leased=len(claimed - done),
            taken_over=len(list_takeovers(self._run_dir)),
        )

    def _stand(self) -> list[WorkerStanding]:
        owners = list_owners(self._run_dir)
        self._watch.look(owners)
        new = [owner for owner in owners if owner not in self._holders]
        self._holders.update({holder.owner: holder for holder in read_holders(self._run_dir, new)})
        found: dict[str, WorkerStanding] = {}
        for holder in (self._holders[owner] for owner in owners if owner in self._holders):
            standing = WorkerStanding(
                holder.worker,
                holder.host,
                self._judge(holder),
                self._watch.silent_s(holder.owner),
                self._answered[holder.worker],
                self._rate(holder.worker),
            )
            before = found.get(holder.worker)
            if before is None or before.state in (DEAD, LEFT):  # who lost a lease may have another one
                found[holder.worker] = standing
        return _mark_slow(sorted(found.values(), key=lambda one: (len(one.worker), one.worker)))

    def _judge(self, holder: Holder) -> str:
        silent_s = self._watch.silent_s(holder.owner)
        if silent_s == float("inf"):
            return LEFT if self._watch.has_left(holder.owner) else DEAD
        if self._watch.has_lost(holder.owner):
            return DEAD
        if silent_s >= self._lease_s:
            with contextlib.suppress(OSError):  # the next look tries again, and so does every idle worker
                revoke(self._run_dir, holder.owner)
            return DEAD
        return SILENT if silent_s >= SILENT_SHARE * self._lease_s else ALIVE

    def _rate(self, worker: str) -> float | None:
        (since_s, before), (now_s, after) = self._marks[0], self._marks[-1]
        return (after[worker] - before[worker]) / (now_s - since_s) if after[worker] and now_s > since_s else None

    def _read_new_parts(self) -> None:
        names = list_part_names(self._run_dir, ANSWERS, max_age_s=SHOWN_AGE_S)
        for part in fetch_parts(self._run_dir, ANSWERS, [name for name in names if name not in self._seen]):
            table = pq.read_table(part, columns=["worker", "output_tokens"])
            self._seen.add(part.name)
            for worker, tokens in zip(*(table[column].to_pylist() for column in table.column_names), strict=True):
                self._answered[worker] += 1
                self._tokens[worker] += tokens or 0


def _mark_slow(workers: list[WorkerStanding]) -> list[WorkerStanding]:
    """Says who makes much fewer tokens than the others."""
    rates = [one.output_tokens_per_s for one in workers if one.state == ALIVE and one.output_tokens_per_s is not None]
    if len(rates) < LEAST_COMPARED:
        return workers
    limit = SLOW_SHARE * statistics.median(rates)
    return [replace(one, is_slow=one.state == ALIVE and (one.output_tokens_per_s or limit) < limit) for one in workers]
