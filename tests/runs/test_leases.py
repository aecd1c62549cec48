"""Leases: silence is counted by the observer's own clock, and who has lost one knows it."""

import os
import time
from pathlib import Path

import pytest

from assayline.errors import StoreError
from assayline.runs import leases
from assayline.runs.leases import (
    BEATS,
    LEASES,
    LOOKS_PER_LEASE,
    Lease,
    Watch,
    bury,
    list_far_owners,
    list_owners,
    read_holders,
    revoke,
)

LEASE_S = 8.0


class Clock:
    """An observer's monotonic clock, set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def is_revoked(run_dir: Path, lease: Lease) -> bool:
    watch = Watch(run_dir, LEASE_S)
    watch.look([lease.owner])
    return bool(watch.find_gone([lease.owner]))


def beat(run_dir: Path, owner: str, number: int) -> None:
    (run_dir / BEATS).mkdir(exist_ok=True)
    (run_dir / BEATS / owner).write_bytes(b"%020d" % number)


def look_for(watch: Watch, clock: Clock, owner: str, seconds: float, every_s: float = 1.0) -> None:
    """Looks again and again for so long."""
    end_s = clock.now_s + seconds
    while clock.now_s < end_s:
        clock.now_s += every_s
        watch.look([owner])


def test_a_lease_beats_and_says_whose_it_is(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "worker-3", lease_s=0.06)
    lease.begin()
    assert list_owners(tmp_path) == [lease.owner] and lease.is_held()
    [holder] = read_holders(tmp_path, [lease.owner])
    assert (holder.worker, holder.pid) == ("worker-3", os.getpid())
    first = (tmp_path / BEATS / lease.owner).read_bytes()
    time.sleep(0.2)
    assert (tmp_path / BEATS / lease.owner).read_bytes() > first
    lease.end()
    last = (tmp_path / BEATS / lease.owner).read_bytes()
    time.sleep(0.05)
    assert (tmp_path / BEATS / lease.owner).read_bytes() == last


def test_who_beats_is_there_however_slowly_and_who_does_not_is_gone_after_the_lease(tmp_path: Path) -> None:
    clock = Clock()
    watch = Watch(tmp_path, LEASE_S, clock)
    for number in range(5):
        beat(tmp_path, "one", number)
        look_for(watch, clock, "one", LEASE_S - 2)
        assert not watch.find_gone(["one"])
    look_for(watch, clock, "one", 3)
    assert watch.find_gone(["one"]) and watch.silent_s("one") >= LEASE_S
    beat(tmp_path, "one", 99)
    watch.look(["one"])
    assert not watch.find_gone(["one"]), "nobody has taken anything from it"


def test_an_observer_that_was_stopped_itself_has_seen_no_silence(tmp_path: Path) -> None:
    clock = Clock()
    watch = Watch(tmp_path, LEASE_S, clock)
    beat(tmp_path, "one", 1)
    watch.look(["one"])
    clock.now_s += 1000.0  # it slept, and so may the other one have
    watch.look(["one"])
    assert watch.silent_s("one") == LEASE_S / LOOKS_PER_LEASE and not watch.find_gone(["one"])


def test_clocks_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    """Whatever time the file system and the other machine have."""
    clock = Clock()
    watch = Watch(tmp_path, LEASE_S, clock)
    beat(tmp_path, "one", 1)
    os.utime(tmp_path / BEATS / "one", (0, 0))
    watch.look(["one"])
    beat(tmp_path, "one", 2)
    os.utime(tmp_path / BEATS / "one", (4e9, 4e9))
    watch.look(["one"])
    assert watch.silent_s("one") == 0.0


def test_who_leaves_or_is_buried_is_gone_at_once(tmp_path: Path) -> None:
    for end in ("left", "buried"):
        lease = Lease(tmp_path, f"worker-{end}", LEASE_S)
        lease.begin()
        watch = Watch(tmp_path, LEASE_S)
        watch.look([lease.owner])
        assert not watch.find_gone([lease.owner])
        if end == "left":
            lease.end()
        else:
            bury(tmp_path, "worker-buried")
        watch.look([lease.owner])
        assert watch.find_gone([lease.owner])
        lease.end()


def test_a_burial_is_of_one_worker_alone(tmp_path: Path) -> None:
    leases = [Lease(tmp_path, name, LEASE_S) for name in ("worker-1", "worker-10")]
    for lease in leases:
        lease.begin()
    bury(tmp_path, "worker-1")
    watch = Watch(tmp_path, LEASE_S)
    watch.look([lease.owner for lease in leases])
    assert watch.find_gone(lease.owner for lease in leases) == {leases[0].owner}
    for lease in leases:
        lease.end()


def test_a_lease_that_was_revoked_is_lost_for_ever(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "worker-0", 0.06)
    lease.begin()
    revoke(tmp_path, lease.owner)
    assert not lease.is_held() and lease.is_lost and is_revoked(tmp_path, lease)
    time.sleep(0.1)  # its beats go on, and do not bring it back
    assert is_revoked(tmp_path, lease) and not lease.is_held()
    [holder] = read_holders(tmp_path, [lease.owner])
    assert holder.worker == "worker-0" and holder.is_revoked, "who it was can still be told"
    lease.end()


def test_a_lease_says_on_which_machine_its_worker_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume waits for those of other machines, of which no lock tells."""
    found = []
    for machine in (leases.boot_id(), "another", "unknown"):
        with monkeypatch.context() as there:
            there.setattr(leases, "boot_id", lambda machine=machine: machine)
            found.append(Lease(tmp_path, "worker", LEASE_S))
            found[-1].begin()
    assert set(list_far_owners(tmp_path)) == {lease.owner for lease in found[1:]}
    for lease in found:
        lease.end()


def test_a_queue_that_was_begun_anew_has_lost_all_leases(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "worker-0", LEASE_S)
    lease.begin()
    (tmp_path / LEASES / lease.owner).unlink()
    assert not lease.is_held() and lease.is_lost
    lease.end()


def test_a_lease_that_cannot_be_read_now_is_neither_held_nor_lost(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "worker-0", LEASE_S)
    lease.begin()
    path = tmp_path / LEASES / lease.owner
    content = path.read_bytes()
    path.unlink()
    path.mkdir()
    assert not lease.is_held() and not lease.is_lost
    path.rmdir()
    path.write_bytes(content)
    assert lease.is_held()
    lease.end()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / LEASES).write_text("no folder")
    with pytest.raises(StoreError, match=r"The lease .* cannot be written"):
        Lease(tmp_path, "worker-0", LEASE_S).begin()
