"""What a worker that has nothing to ask looks for: whether all is done, and shards whose owners are gone.

A thousand idle workers would be a burden if each read what all others have. So a look that finds nothing new costs four
requests to a store, however many workers and shards there are (a thousand of them are a page of a list): is my lease
held; is a shard done that was not (one stands for all); who beats; whose end is known. Claims are listed and read only
when somebody is newly gone. Who does that says so, and that there is nothing left to take over once that is so: it
costs the others nothing then. And the more workers there are, the less often each of them looks.
"""

import random
import time
from collections.abc import Collection
from pathlib import Path

from assayline.evaluation.shards.claims import Claim, Claims
from assayline.evaluation.shards.throttle import RESCAN_INTERVAL_S, Throttle
from assayline.runs.leases import BEATS_PER_LEASE, Watch, revoke, settle

LOOKS_PER_S = 100
"""Of all workers of a run together, if all were idle."""
CHECK_LEASES = 2
WORKERS_PER_CHECK = 25
"""All claims are gone over without a reason, too, each so many leases, or one per so many workers: whatever happens
between a worker's look at its lease and its claim, nothing stays behind."""
MOST_SEEKERS = 50
"""Workers of a run of which all may look for the shards of one who is gone. Of more, the first one does so alone."""
ALONE_LEASES = 0.5


class Lookout:
    """One worker's looks. It decides nothing: of all who find a shard to take over one will have it."""

    def __init__(self, run_dir: Path, claims: Claims, watch: Watch) -> None:
        self.throttle = Throttle()
        self._run_dir = run_dir
        self._claims = claims
        self._watch = watch
        self._stands_for_all: str | None = None
        self._unnamed: set[str] = set()
        """Who has claims and no beat: a claim whose writer was killed before it wrote its name is one's own owner."""
        self._check_s: float | None = None
        self._gone_since_s: dict[str, float] = {}
        self._sought: set[str] = set()
        """Owners whose shards this worker looks for."""

    def is_all_done(self, shards: Collection[str], own: Collection[str]) -> bool:
        """Whether each of these shards is done, or in one's own hands. Raises OSError."""
        left = [shard for shard in shards if shard not in self._claims.done and shard not in own]
        if not left:
            return True
        if self._stands_for_all not in left or self._claims.is_done(self._stands_for_all):
            self._claims.list_done()
            left = [shard for shard in left if shard not in self._claims.done]
            self._stands_for_all = random.choice(left) if left else None  # the first would be everybody's
        return not left

    def find_gone(self, owner: str) -> list[Claim]:
        """Claims whose owners are gone, but for those of `owner`, who looks. Raises OSError."""
        self._watch.look()
        gone = self._watch.find_gone(self._watch.seen - {owner})
        gone = {one for one in gone if not self._watch.is_settled(one) and self._may_seek(one)}
        self._slow_down()
        if not gone and not self._unnamed and not self._is_check_due():
            return []
        for one in gone:
            if self._watch.silent_s(one) < float("inf") and not self._watch.has_lost(one):
                revoke(self._run_dir, one)  # from here on it claims nothing more, and what it has is known
        held = self._claims.survey(owner)
        owners = {claim.owner for claim in held}
        self._unnamed = owners - self._watch.seen
        if self._unnamed:
            self._watch.look(self._unnamed)
        else:
            for one in gone - owners:
                settle(self._run_dir, one)
                self._sought.discard(one)
                self._gone_since_s.pop(one)
        gone = self._watch.find_gone(owners)
        return [claim for claim in held if claim.owner in gone]

    def _may_seek(self, owner: str) -> bool:
        """Whether this worker is to read all claims for the sake of one owner, which is a thousand requests."""
        since_s = self._gone_since_s.setdefault(owner, time.monotonic())
        is_late = time.monotonic() - since_s > ALONE_LEASES * self._watch.lease_s
        if len(self._watch.seen) <= MOST_SEEKERS or is_late or owner in self._sought or self._watch.seek(owner):
            self._sought.add(owner)
        return owner in self._sought

    def _slow_down(self) -> None:
        fair_s = len(self._watch.seen) / LOOKS_PER_S
        self.throttle.interval_s = max(RESCAN_INTERVAL_S, min(fair_s, self._watch.lease_s / BEATS_PER_LEASE))

    def _is_check_due(self) -> bool:
        now_s = time.monotonic()
        is_due = self._check_s is not None and now_s >= self._check_s
        if is_due or self._check_s is None:
            leases = max(CHECK_LEASES, len(self._watch.seen) / WORKERS_PER_CHECK)
            self._check_s = now_s + leases * self._watch.lease_s * random.uniform(0.5, 1.5)
        return is_due
