"""Workers that die or fall silent in the middle: others answer what they had not stored, and every request counts once.

Workers here are processes with the fake engine. The proof with vLLM is in tests/flows.
"""

import errno
import fcntl
import json
import pickle
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_kit import completion_of, fill_queue, order_of, read_line, rows_of, start_python

from assayline.errors import StoreError
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.shards.claims import Claims
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.worker import Worker, run_worker
from assayline.runs.leases import LEASES, Lease, Watch, revoke
from assayline.settings import Settings
from assayline.store.database import connect
from assayline.store.ingest import reload_parts
from assayline.store.parts import read_request_ids, write_part
from assayline.store.takeovers import list_takeovers

LEASE_S = 0.6
WORK = """
import pickle, sys
from assayline.engines.fake import FakeEngine
from assayline.evaluation import opening, worker
order, step_s = pickle.loads(open(sys.argv[1], "rb").read()), float(sys.argv[2])
opening.open_engine = lambda opened, sizes, setup, hooks, **_: FakeEngine(
    opened.clock, worker=opened.worker, window=4, step_s=step_s, hooks=hooks)
print(worker.run_worker(order, lambda line: print(line, file=sys.stderr), str).answered_requests, flush=True)
"""


@pytest.fixture
def leased(tmp_path: Path, settings: Settings) -> Callable[..., WorkOrder]:
    def order(worker: str, **changes: Any) -> WorkOrder:
        return replace(order_of(tmp_path, settings, worker, **changes), lease_s=LEASE_S)

    return order


@pytest.fixture
def start(tmp_path: Path, leased: Callable[..., WorkOrder]) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a worker in a process, `step_s` for a token."""
    processes = []

    def begin(worker: str, step_s: float = 0.01) -> "subprocess.Popen[str]":
        (tmp_path / worker).write_bytes(pickle.dumps(leased(worker)))
        processes.append(start_python(WORK, tmp_path / worker, step_s))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(done: Callable[[], Any], limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answered_by(run_dir: Path, worker: str) -> list[str]:
    return [row["request_id"] for row in rows_of(run_dir, "completions") if row["worker"] == worker]


def check_each_once(run_dir: Path, ids: list[str]) -> Counter[str]:
    """Loads all parts, and checks that each request has one row. Returns how often each is in parts."""
    with connect(run_dir / "test.duckdb", 10) as connection:
        reload_parts(connection, "run", run_dir)
        rows = connection.execute("select request_id from completions").fetchall()
    assert sorted(request_id for (request_id,) in rows) == sorted(ids), "0 lost, 0 twice"
    return Counter(row["request_id"] for row in rows_of(run_dir, "completions"))


def test_a_dead_workers_shards_are_taken_over_and_what_it_had_stored_is_not_asked_again(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"], leased: Callable[..., WorkOrder]
) -> None:
    ids = fill_queue(tmp_path, shards=6, per_shard=20, max_tokens=2)
    doomed = start("worker-0")
    wait_until(lambda: len(answered_by(tmp_path, "worker-0")) > 5)
    doomed.kill()
    doomed.wait()
    early = answered_by(tmp_path, "worker-0")
    assert 5 < len(early) < len(ids)
    began = time.monotonic()
    run_worker(leased("worker-1"), lambda _: None, lambda _: None)
    assert time.monotonic() - began >= LEASE_S * 0.75, "nobody is declared dead before his time"
    assert list_takeovers(tmp_path)
    assert set(check_each_once(tmp_path, ids).values()) == {1}
    assert not set(answered_by(tmp_path, "worker-1")) & set(early)


def test_a_worker_that_ends_by_itself_leaves_its_shards_at_once(
    tmp_path: Path, leased: Callable[..., WorkOrder]
) -> None:
    ids = fill_queue(tmp_path, shards=2, per_shard=3)
    order = replace(leased("worker-0"), lease_s=3600.0)
    leaving = Lease(tmp_path, "worker-0", 3600.0)
    leaving.begin()
    queue = ShardQueue(tmp_path, leaving, Watch(tmp_path, 3600.0))
    assert next(queue.pull()) is not None
    leaving.end()
    run_worker(replace(order, worker="worker-1"), lambda _: None, lambda _: None)
    check_each_once(tmp_path, ids)


def test_a_worker_that_was_stopped_for_longer_than_its_lease_drops_what_it_had_and_continues(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """SIGSTOP and SIGCONT: the other one takes its shards over, and it is no worse than a new worker then."""
    ids = fill_queue(tmp_path, shards=12, per_shard=20, max_tokens=2)
    (tmp_path / "queue-closed").unlink()
    stopped = start("worker-0")
    wait_until(lambda: len(answered_by(tmp_path, "worker-0")) > 5)
    stopped.send_signal(signal.SIGSTOP)
    other = start("worker-1")
    wait_until(lambda: list_takeovers(tmp_path))
    stopped.send_signal(signal.SIGCONT)
    wait_until(lambda: sum(path.name.startswith("worker-0-") for path in (tmp_path / LEASES).iterdir()) == 2)
    ShardQueue(tmp_path).close()
    assert [process.wait(60) for process in (stopped, other)] == [0, 0]
    check_each_once(tmp_path, ids)


def test_of_many_that_take_over_at_once_one_wins(tmp_path: Path) -> None:
    fill_queue(tmp_path, shards=12, per_shard=1)
    dead = Lease(tmp_path, "dead", LEASE_S)
    dead.begin()
    queue = ShardQueue(tmp_path, dead, Watch(tmp_path, LEASE_S))
    while queue.claim():
        pass
    dead.end()
    leases = [Lease(tmp_path, f"worker-{number}", 60.0) for number in range(6)]
    for lease in leases:
        lease.begin()
    gate = threading.Barrier(len(leases))
    won: list[str] = []

    def take(lease: Lease) -> None:
        queue = ShardQueue(tmp_path, lease, Watch(tmp_path, 60.0))
        gate.wait()
        while len(won) < 12:
            if shard := queue.take_over():
                won.append(shard.stem)

    threads = [threading.Thread(target=take, args=[lease], daemon=True) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 12 == len(set(won))
    for lease in leases:
        lease.end()


def test_a_worker_whose_lease_is_lost_writes_no_answer_of_before(
    tmp_path: Path, settings: Settings, leased: Callable[..., WorkOrder]
) -> None:
    ids = fill_queue(tmp_path, shards=1, per_shard=8)
    slow = settings.model_copy(update={"flush_interval_s": 1000.0})
    worker = Worker(replace(leased("worker-0"), settings=slow, lease_s=60.0), lambda _: None, lambda _: None)
    worker.lease.begin()
    requests = worker.queue.pull()
    taken = [next(requests) for _ in range(5)]
    for request in taken:
        assert request is not None
        worker.queue.settle(request.request_id)
        worker.writer.add(completion_of(request.request_id))
    revoke(tmp_path, worker.lease.owner)
    worker.writer.flush()
    assert rows_of(tmp_path, "completions") == [] and worker.lease.is_lost
    worker._begin_anew()
    worker.writer.flush()
    assert rows_of(tmp_path, "completions") == []
    assert [request.request_id for request in worker.queue.pull() if request] == ids, "it takes them over from itself"
    worker.lease.end()


def test_a_shard_is_done_when_its_last_answer_is_stored_and_not_before(tmp_path: Path) -> None:
    fill_queue(tmp_path, shards=2, per_shard=2)
    lease = Lease(tmp_path, "worker-0", 60.0)
    lease.begin()
    queue = ShardQueue(tmp_path, lease, Watch(tmp_path, 60.0))
    ids = [request.request_id for request in queue.pull() if request]
    done = tmp_path / "done"
    queue.mark_stored()
    queue.settle(ids[0])
    queue.mark_stored()
    assert list(done.iterdir()) == []
    queue.settle(ids[1])
    assert list(done.iterdir()) == [], "its answer may be in memory alone"
    queue.mark_stored()
    assert [path.name for path in done.iterdir()] == ["shard-000000"]
    lease.end()


def test_nobody_leaves_while_another_may_die(tmp_path: Path) -> None:
    fill_queue(tmp_path, shards=1, per_shard=1)
    one, two = (Lease(tmp_path, f"worker-{number}", 60.0) for number in range(2))
    for lease in (one, two):
        lease.begin()
    working, waiting = (ShardQueue(tmp_path, lease, Watch(tmp_path, 60.0)) for lease in (one, two))
    [request] = working.pull()
    assert request is not None
    idle = waiting.pull()
    for _ in range(3):
        assert next(idle) is None
        time.sleep(0.06)
    working.settle(request.request_id)
    working.mark_stored()
    deadline = time.monotonic() + 5
    assert all(found is None for found in idle) and time.monotonic() < deadline
    for lease in (one, two):
        lease.end()


def test_a_claim_whose_writer_was_killed_before_it_wrote_its_name_is_taken_over(tmp_path: Path) -> None:
    fill_queue(tmp_path, shards=1, per_shard=1)
    (tmp_path / "claims" / "shard-000000").touch()
    lease = Lease(tmp_path, "worker-0", 0.3)
    lease.begin()
    assert [request for request in ShardQueue(tmp_path, lease, Watch(tmp_path, 0.3)).pull() if request]
    lease.end()


def test_a_claim_that_was_taken_over_while_it_was_written_is_not_won(tmp_path: Path) -> None:
    ShardQueue(tmp_path).reset()
    claims = Claims(tmp_path)
    (tmp_path / "claims" / "shard-000000.2").touch()
    assert not claims.make("shard-000000", "late")


def test_a_folder_that_is_not_the_runs_is_a_sentence_before_an_engine_opens(
    tmp_path: Path, leased: Callable[..., WorkOrder]
) -> None:
    fill_queue(tmp_path, shards=1, per_shard=1)
    with pytest.raises(StoreError, match=r"is not the run's: it has no work\.json\. Workers on other machines need"):
        run_worker(replace(leased("worker-0"), token="known to the flow"), lambda _: None, lambda _: None)
    plan = {"model": "fake", "model_args": {}, "attempt": 1, "lease_s": 60.0, "token": "of a copy"}
    (tmp_path / "work.json").write_text(json.dumps(plan))
    with pytest.raises(StoreError, match=r"of another attempt, or a copy"):
        run_worker(replace(leased("worker-0"), token="known to the flow"), lambda _: None, lambda _: None)
    assert not (tmp_path / "parts" / "engine_events").exists()


def test_a_worker_needs_no_lock_where_the_file_system_has_none(
    tmp_path: Path, leased: Callable[..., WorkOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as Lustre that is mounted without them."""
    ids = fill_queue(tmp_path, shards=2, per_shard=3)

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run_worker(leased("worker-0"), lambda _: None, lambda _: None)
    check_each_once(tmp_path, ids)


def test_stored_requests_of_an_owner_are_those_of_its_own_parts(tmp_path: Path) -> None:
    for writer, name in (("worker-1-aa", "one"), ("worker-1-ab", "two"), ("worker-10-aa", "three")):
        write_part(tmp_path, "completions", f"{writer}-000000", [completion_of(name)])
    assert read_request_ids(tmp_path, "worker-1-aa") == ["one"]
    assert read_request_ids(tmp_path, "worker-10-aa") == ["three"]


def test_processes_wait_for_each_other_to_the_last_request(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    ids = fill_queue(tmp_path, shards=20, per_shard=5, max_tokens=2)
    processes = [start(f"worker-{number}", step_s=0.002 * (number + 1)) for number in range(3)]
    assert sum(int(read_line(process)) for process in processes) == len(ids)
    assert set(check_each_once(tmp_path, ids).values()) == {1} and list_takeovers(tmp_path) == []


def test_several_shards_of_the_dead_are_taken_over_after_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_queue(tmp_path, shards=3, per_shard=1)
    dead, heir = (Lease(tmp_path, worker, 3600.0) for worker in ("worker-0", "worker-1"))
    for lease in (dead, heir):
        lease.begin()
    claimed = ShardQueue(tmp_path, dead)
    while claimed.claim():
        pass
    queue = ShardQueue(tmp_path, heir, Watch(tmp_path, 3600.0))
    assert queue.claim() is None and queue.take_over() is None
    revoke(tmp_path, dead.owner)
    queue._lookout.throttle.forget()
    looks = []
    monkeypatch.setattr(
        Claims, "survey", lambda self, own, survey=Claims.survey: looks.append(own) or survey(self, own)
    )
    monkeypatch.setattr(queue._lookout.throttle, "is_due", lambda: not looks)
    taken = [shard.stem for shard in iter(queue.take_over, None)]
    assert taken == ["shard-000000", "shard-000001", "shard-000002"] and len(looks) == 1
    for lease in (dead, heir):
        lease.end()
