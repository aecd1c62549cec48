"""Workers as a flow sees them: alive, silent, dead, left, slow; shards done, leased, taken over."""

from dataclasses import replace
from pathlib import Path

import pytest
from record_kit import completion_of, fill_queue

from assayline.evaluation.crew import ALIVE, DEAD, LEFT, SILENT, Crew
from assayline.evaluation.shards.queue import ShardQueue
from assayline.runs.leases import BEATS, Lease, Watch
from assayline.store.parts import write_part

LEASE_S = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def states(crew: Crew) -> dict[str, str]:
    return {one.worker: one.state for one in crew.look().workers}


def test_silence_becomes_death_which_the_flow_declares(tmp_path: Path, clock: Clock) -> None:
    fill_queue(tmp_path, shards=3, per_shard=1)
    one, two = (Lease(tmp_path, f"worker-{number}", LEASE_S) for number in range(2))
    for lease in (one, two):
        lease.begin()
    queue = ShardQueue(tmp_path, one, Watch(tmp_path, LEASE_S))
    assert queue.claim() and queue.claim()
    crew = Crew(tmp_path, LEASE_S, clock)
    assert states(crew) == {"worker-0": ALIVE, "worker-1": ALIVE}
    for look in range(4):
        clock.now_s += LEASE_S / 4
        (tmp_path / BEATS / two.owner).write_bytes(b"%020d" % (100 + look))
        found = states(crew)
        assert found == {"worker-0": [ALIVE, SILENT, SILENT, DEAD][look], "worker-1": ALIVE}
    watch = Watch(tmp_path, LEASE_S)
    watch.look()
    assert watch.find_gone([one.owner, two.owner]) == {one.owner} and not one.is_held()
    heir = ShardQueue(tmp_path, two, Watch(tmp_path, LEASE_S))
    assert heir.claim() is not None
    taken = heir.take_over()
    assert taken is not None, "nobody need wait for a lease once more"
    standing = crew.look()
    assert (standing.shards, standing.done, standing.leased, standing.taken_over) == (3, 0, 3, 1)
    again = Lease(tmp_path, "worker-0", LEASE_S)
    again.begin()
    two.end()
    assert states(crew) == {"worker-0": ALIVE, "worker-1": LEFT}, "a new lease brings a worker back"
    for lease in (one, again):
        lease.end()


def test_a_worker_much_slower_than_the_others_is_named(tmp_path: Path, clock: Clock) -> None:
    fill_queue(tmp_path, shards=1, per_shard=1)
    leases = [Lease(tmp_path, f"worker-{number}", LEASE_S) for number in (0, 1, 10)]
    for lease in leases:
        lease.begin()
    crew = Crew(tmp_path, LEASE_S, clock)
    clock.now_s += 10
    for worker, tokens in (("worker-0", 1000), ("worker-1", 400), ("worker-10", 900)):
        row = replace(completion_of(f"of {worker}"), worker=worker, output_tokens=tokens)
        write_part(tmp_path, "completions", worker, [row])
    standing = crew.look()
    assert [(one.worker, one.output_tokens_per_s, one.is_slow) for one in standing.workers] == [
        ("worker-0", 100.0, False), ("worker-1", 40.0, True), ("worker-10", 90.0, False)
    ]  # fmt: skip
    assert standing.output_tokens_per_s == 230.0 and [one.answered for one in standing.workers] == [1, 1, 1]
    for lease in leases:
        lease.end()
