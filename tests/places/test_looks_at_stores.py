"""What a look for dead workers costs where each read is a request."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_kit import Proxy, use_store

from assayline.evaluation.shards.queue import ShardQueue
from assayline.places.home import attach, place_of
from assayline.runs.leases import BEATS, Lease, Watch, bury
from benchmarks.idle_looks import look, pretend

LEASE_S = 3600.0


@pytest.fixture
def counted(localbucket_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    found = Proxy(localbucket_port)
    use_store(found.port, monkeypatch)
    yield found
    found.close()


def test_a_look_that_finds_nothing_costs_four_requests_however_many_workers_there_are(
    counted: Proxy, prefix: str, tmp_path: Path
) -> None:
    attach(tmp_path / "run", prefix)
    pretend(tmp_path / "run", 60)
    leases, queues = [], []
    for number in (100, 101):
        lease = Lease(tmp_path / "run", f"worker-{number}", LEASE_S)
        lease.begin()
        queue = ShardQueue(tmp_path / "run", lease, Watch(tmp_path / "run", LEASE_S))
        assert queue.claim() is None and look(queue) is None
        leases.append(lease)
        queues.append(queue)
    before = counted.counts["requests"]
    assert [look(queue) for queue in queues] == [None, None]
    assert counted.counts["requests"] - before == 8
    bury(tmp_path / "run", "worker-7")
    taken = look(queues[0])
    assert taken is not None and taken.stem == "shard-000007"
    before = counted.counts["requests"]
    assert look(queues[1]) is None
    assert counted.counts["requests"] - before == 4, "one reads whose shards those are, and not everybody"
    for lease in leases:
        lease.end()


def test_versions_differ_once_a_file_is_overwritten_in_a_store_as_in_a_folder(store: str, tmp_path: Path) -> None:
    attach(tmp_path / "far", store)
    for run_dir in (tmp_path / "far", tmp_path / "near"):
        place = place_of(run_dir)
        place.clear(BEATS)
        for owner in ("one", "two"):
            place.note(f"{BEATS}/{owner}", b"1")
        first = place.versions(BEATS)
        place.note(f"{BEATS}/two", b"2")
        second = place.versions(BEATS)
        assert set(second) == {"one", "two"} and second["one"] == first["one"] and second["two"] != first["two"]
        shutil.rmtree(run_dir)
