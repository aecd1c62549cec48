"""A shard whose owners die one after another: which of its requests kills them.

Machines die for many reasons, so a shard that lost one owner is answered like any other. From the second death on it is
answered with care: alone, in groups of an eighth, and each group is noted in the run's folder before it is asked. Of a
group that the next owner died with, the one after it asks each eighth, and so on. A request that was the whole group
becomes an error row. Of 512 requests it takes five deaths to find the one, of eight requests three.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assayline.places.home import place_of
from assayline.records import Completion, Request
from assayline.runs.leases import has_left

SUSPECTS, CONVICTED = "suspects", "convicted"
KILLED_WORKER = "killed_worker"
"""error_kind of a request that kills whoever asks it."""

MOST_UNSUSPECTED = 1
"""Deaths of a shard's owners that say nothing about the shard."""
GROUPS = 8
"""Into which suspects are divided: more find the one in fewer deaths, and leave the engine idle more often."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is known of a shard that several workers died with."""

    deaths: int
    asked: frozenset[str]
    """What the last of them had noted before it died."""

    def is_proven(self, request: Request) -> bool:
        """Whether nothing else was asked when a worker died."""
        return self.asked == {request.request_id}

    def describe(self) -> str:
        """Why a request of which it is proven becomes an error row."""
        return f"{self.deaths} workers died with its shard, the last one while it had nothing else to answer"

    def divide(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Groups to be asked one after another: those of the suspects, then those of the others, without the proven.

        A turn that is suspected cannot be asked before those that come before it, which are suspected with it.
        """
        last = {_name_talk(r): r.turn_index or 0 for r in requests if r.request_id in self.asked}
        left = [request for request in requests if not self.is_proven(request)]
        suspects = [r for r in left if (r.turn_index or 0) <= last.get(_name_talk(r), -1)]
        asked_first = {request.request_id for request in suspects}
        others = [request for request in left if request.request_id not in asked_first]
        return [*_divide(suspects), *_divide(others)]


def read_suspicion(run_dir: Path, shard: str, owners: Sequence[str]) -> Suspicion | None:
    """What the deaths of a shard's former owners say; None if that is nothing. Raises OSError.

    One that ended by itself did not die, and one that fell silent did, as far as anybody can know.
    """
    dead = [owner for owner in owners if not has_left(run_dir, owner)]
    if len(dead) <= MOST_UNSUSPECTED:
        return None
    return Suspicion(len(dead), _read_asked(run_dir, shard, dead[-1]))


def note_asked(run_dir: Path, shard: str, owner: str, group: Sequence[Request]) -> None:
    """Says what of a shard is about to be asked, before it is. Raises OSError."""
    place_of(run_dir).note(_key(shard, owner), json.dumps([request.request_id for request in group]).encode())


def note_convicted(run_dir: Path, request_id: str) -> int:
    """Says that a request becomes an error row, and how many have so far in the run. Raises OSError."""
    place = place_of(run_dir)
    place.note(f"{CONVICTED}/{request_id}")
    return len(place.names(CONVICTED))


def write_verdict(request: Request, worker: str, generation: int, words: str) -> Completion:
    """The error row of a request that kills whoever asks it."""
    prompt_tokens = len(request.prompt_token_ids) or None
    return Completion(
        request.request_id,
        worker,
        generation,
        None,
        prompt_tokens=prompt_tokens,
        error_kind=KILLED_WORKER,
        error_message=words,
    )


def _name_talk(request: Request) -> tuple[object, ...]:
    """The conversation that a turn is of; any other request is one by itself."""
    if request.turn_index is None:
        return (request.request_id,)
    return (request.prompt_id, request.occurrence, request.repeat_index)


def _divide(requests: list[Request]) -> list[list[Request]]:
    size = -(-len(requests) // GROUPS)
    return [requests[begin : begin + size] for begin in range(0, len(requests), size or 1)]


def _read_asked(run_dir: Path, shard: str, owner: str) -> frozenset[str]:
    """Nothing, if the owner noted nothing or died while it did."""
    try:
        return frozenset(json.loads(place_of(run_dir).read(_key(shard, owner))))
    except (FileNotFoundError, ValueError):
        return frozenset()


def _key(shard: str, owner: str) -> str:
    return f"{SUSPECTS}/{shard}.{owner}"
