"""What a worker with nothing to ask looks for, and that its looks are few and cheap however many workers there are."""

from pathlib import Path

import pytest
from record_kit import fill_queue

from assayline.evaluation.shards import lookout
from assayline.evaluation.shards.claims import Claims
from assayline.evaluation.shards.lookout import Lookout
from assayline.evaluation.shards.queue import ShardQueue
from assayline.runs.leases import BEATS, ENDS, IS_SETTLED, IS_SOUGHT, Lease, Watch, bury, revoke

LEASE_S = 3600.0


@pytest.fixture
def leases(tmp_path: Path) -> list[Lease]:
    """Of three workers of a run with four shards; the first two have claimed one each."""
    fill_queue(tmp_path, shards=4, per_shard=1)
    found = [Lease(tmp_path, f"worker-{number}", LEASE_S) for number in range(3)]
    for lease in found:
        lease.begin()
    for lease, shard in zip(found, ("shard-000000", "shard-000001"), strict=False):
        assert Claims(tmp_path).make(shard, lease.owner)
    return found


def lookout_of(run_dir: Path) -> Lookout:
    return Lookout(run_dir, Claims(run_dir), Watch(run_dir, LEASE_S))


def ends_of(run_dir: Path, lease: Lease) -> set[str]:
    return {path.suffix[1:] for path in (run_dir / ENDS).glob(f"{lease.owner}.*")}


def test_claims_are_read_when_somebody_is_gone_and_not_once_more_when_it_has_nothing_left(
    tmp_path: Path, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, _, heir = leases
    surveys = []
    survey = Claims.survey
    monkeypatch.setattr(Claims, "survey", lambda self, own: surveys.append(own) or survey(self, own))
    looking = lookout_of(tmp_path)
    assert looking.find_gone(heir.owner) == [] and not surveys
    revoke(tmp_path, dead.owner)
    [claim] = looking.find_gone(heir.owner)
    assert claim.shard == "shard-000000" and IS_SETTLED not in ends_of(tmp_path, dead)
    assert looking._claims.take_over(claim, heir)
    assert looking.find_gone(heir.owner) == [] and IS_SETTLED in ends_of(tmp_path, dead)
    surveys.clear()
    assert lookout_of(tmp_path).find_gone("another") == [] and not surveys, "nor does anybody else"
    for lease in leases:
        lease.end()


def test_what_was_claimed_under_a_lease_that_was_lost_already_is_found_when_its_owner_finds_out(
    tmp_path: Path, leases: list[Lease]
) -> None:
    """It was stopped between its look at its lease and its claim, and meanwhile its shards were settled."""
    stopped, _, heir = leases
    revoke(tmp_path, stopped.owner)
    looking = lookout_of(tmp_path)
    [claim] = looking.find_gone(heir.owner)
    assert looking._claims.take_over(claim, heir) and looking.find_gone(heir.owner) == []
    assert Claims(tmp_path).make("shard-000002", stopped.owner)
    assert looking.find_gone(heir.owner) == [], "nobody has a reason to look"
    assert not stopped.is_held()
    stopped.end()
    assert [claim.shard for claim in looking.find_gone(heir.owner)] == ["shard-000002"]
    for lease in leases:
        lease.end()


def test_claims_are_gone_over_without_a_reason_at_times(
    tmp_path: Path, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "CHECK_LEASES", 0)
    monkeypatch.setattr(lookout, "WORKERS_PER_CHECK", 1e9)
    (tmp_path / "claims" / "shard-000003").write_text("of nobody")
    watch = Watch(tmp_path, LEASE_S)
    looking = Lookout(tmp_path, Claims(tmp_path), watch)
    for _ in range(3):
        looking.find_gone(leases[2].owner)
    assert "of nobody" in watch._seen, "whose silence counts from here on"
    for lease in leases:
        lease.end()


def test_of_many_workers_one_looks_for_the_shards_of_the_dead_and_the_others_when_that_takes_long(
    tmp_path: Path, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "MOST_SEEKERS", 1)
    dead, _, heir = leases
    first, second = lookout_of(tmp_path), lookout_of(tmp_path)
    for looking in (first, second):
        assert looking.find_gone(heir.owner) == []
    bury(tmp_path, "worker-0")
    assert [claim.shard for claim in first.find_gone(heir.owner)] == ["shard-000000"]
    assert IS_SOUGHT in ends_of(tmp_path, dead) and second.find_gone("worker-9") == []
    assert [claim.shard for claim in first.find_gone(heir.owner)] == ["shard-000000"], "it goes on"
    monkeypatch.setattr(lookout, "ALONE_LEASES", 0)
    assert [claim.shard for claim in second.find_gone("worker-9")] == ["shard-000000"]
    for lease in leases:
        lease.end()


def test_all_is_done_when_the_last_shard_is_and_one_is_asked_for_meanwhile(
    tmp_path: Path, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = []
    list_done = Claims.list_done
    monkeypatch.setattr(Claims, "list_done", lambda self: lists.append(1) or list_done(self))
    looking, shards = lookout_of(tmp_path), [f"shard-{number:06d}" for number in range(4)]
    others = Claims(tmp_path)
    for shard in shards[:3]:
        assert not any(looking.is_all_done(shards, {"shard-000003"}) for _ in range(3))
        others.mark_done(shard)
    assert looking.is_all_done(shards, {"shard-000003"})
    assert len(lists) <= 4, "at most one a shard, and none while nothing changes"
    for lease in leases:
        lease.end()


def test_the_more_workers_there_are_the_less_often_each_looks_but_six_times_a_lease(tmp_path: Path) -> None:
    ShardQueue(tmp_path).reset()
    (tmp_path / BEATS).mkdir(exist_ok=True)
    watch = Watch(tmp_path, 60.0)
    looking = Lookout(tmp_path, Claims(tmp_path), watch)
    found = []
    for count in (4, 100, 1_100):
        watch._seen = {str(number): (b"1", 0.0) for number in range(count)}
        looking._slow_down()
        found.append(looking.throttle.interval_s)
    assert found == [0.05, 1.0, 10.0]
