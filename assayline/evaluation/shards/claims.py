"""The claims on a run's shards: files of the run, each of which exactly one worker can have made.

`claims/SHARD` holds the name of its first owner, `claims/SHARD.2` that of who took it over, and so on: the last one
counts. `done/SHARD` says that all answers of a shard are stored.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from assayline.places.home import place_of
from assayline.runs.leases import Lease, revoke
from assayline.store.takeovers import note_takeover

CLAIMS, DONE = "claims", "done"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim on a shard that counts."""

    shard: str
    term: int
    """How often the shard was claimed."""
    owners: tuple[str, ...]
    """By whom; the last one is empty while the claim is being written, or if its writer was killed in the middle."""

    @property
    def owner(self) -> str:
        """Whose silence is watched: a claim without a name is its own owner."""
        return self.owners[-1] or f"{self.shard}.{self.term}"


class Claims:
    """Who has which shard. Its methods raise OSError."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._place = place_of(run_dir)
        self._known: dict[str, Claim] = {}
        self.done: set[str] = set()
        """Shards that are known to be done."""

    def make(self, shard: str, owner: str, term: int = 1) -> bool:
        """Claims a shard; False if somebody else did."""
        # Who is stopped after it has claimed may have lost the shard already.
        return self._place.create(_key(shard, term), owner.encode()) and not self._place.exists(_key(shard, term + 1))

    def mark_done(self, shard: str) -> None:
        """All answers of the shard are stored."""
        self._place.note(f"{DONE}/{shard}")
        self.done.add(shard)

    def is_done(self, shard: str) -> bool:
        """Whether all answers of the shard are stored, by what is there now."""
        return self._place.exists(f"{DONE}/{shard}")

    def list_done(self) -> None:
        """Learns which shards are done."""
        self.done.update(self._place.names(DONE))

    def survey(self, own: str | None) -> list[Claim]:
        """Claims on shards that are not done, but for those of the owner `own`."""
        self.list_done()
        terms: dict[str, int] = {}
        for name in self._place.names(CLAIMS):
            shard, _, number = name.partition(".")
            if shard not in self.done:
                terms[shard] = max(terms.get(shard, 0), int(number or 1))
        self._learn({shard: term for shard, term in terms.items() if not self._knows(shard, term)})
        return [self._known[shard] for shard in terms if self._known[shard].owners[-1] != own]

    def take_over(self, claim: Claim, lease: Lease) -> bool:
        """Claims a shard whose owner is gone; False if somebody else was faster.

        The former owner's lease is lost first, so that what it has not stored by then it does not store.
        """
        revoke(self._run_dir, claim.owner)
        note_takeover(self._run_dir, claim.shard)
        return self.make(claim.shard, lease.owner, claim.term + 1)

    def former_owners(self, shard: str) -> tuple[str, ...]:
        """Who had it before it was taken over."""
        return tuple(filter(None, self._known[shard].owners)) if shard in self._known else ()

    def _knows(self, shard: str, term: int) -> bool:
        known = self._known.get(shard)
        return known is not None and known.term >= term and known.owners[-1] != ""

    def _learn(self, terms: dict[str, int]) -> None:
        """Reads whose these claims are, all at once."""
        names = {shard: [_name(shard, number) for number in range(1, term + 1)] for shard, term in terms.items()}
        owners = self._place.read_many(CLAIMS, itertools.chain(*names.values()))
        for shard, term in terms.items():
            self._known[shard] = Claim(shard, term, tuple(owners.get(name, b"").decode() for name in names[shard]))


def _name(shard: str, term: int) -> str:
    return shard if term == 1 else f"{shard}.{term}"


def _key(shard: str, term: int) -> str:
    return f"{CLAIMS}/{_name(shard, term)}"
