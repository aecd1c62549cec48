"""Requests that kill the machines that ask them: found by few deaths, and error rows then; all others are answered."""

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_kit import completion_of, fill_queue, order_of, rows_of

from assayline.engines.fake import FakeEngine
from assayline.errors import EngineError
from assayline.evaluation import opening
from assayline.evaluation.orders import take_name
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.shards.suspects import CONVICTED, KILLED_WORKER, SUSPECTS, read_suspicion
from assayline.evaluation.worker import run_worker
from assayline.records import Completion, Request
from assayline.runs.leases import Lease, Watch, bury
from assayline.settings import Settings
from assayline.store.parts import write_part

LEASE_S = 60.0


class Machines:
    """Workers one after another, without engines: each answers until it is asked for what kills it."""

    def __init__(self, run_dir: Path, killers: Iterable[str], window: int = 40) -> None:
        self.run_dir, self.killers, self.window = run_dir, set(killers), window
        self.deaths = 0
        self.convicted: list[str] = []

    def run(self, most_deaths: int = 50) -> None:
        """Until one lives to the end."""
        while not self._work(f"worker-{self.deaths}"):
            self.deaths += 1
            assert self.deaths <= most_deaths

    def _work(self, worker: str) -> bool:
        lease = Lease(self.run_dir, worker, LEASE_S)
        lease.begin()
        convicted: list[str] = []

        def convict(request: Request, words: str) -> None:
            assert f"{self.deaths} workers died with its shard" in words
            convicted.append(request.request_id)
            self._store(lease, queue, [request.request_id])

        queue = ShardQueue(self.run_dir, lease, Watch(self.run_dir, LEASE_S), convict)
        asked: list[str] = []
        for request in queue.pull():
            if request is not None:
                asked.append(request.request_id)
            if request is None or len(asked) >= self.window:  # an engine settles them in the order of their lengths
                if self.killers & set(asked):
                    break
                self._store(lease, queue, asked)
        self.convicted += convicted
        lease.end()
        if self.killers & set(asked):
            bury(self.run_dir, worker)
            return False
        self._store(lease, queue, asked)
        return True

    def _store(self, lease: Lease, queue: ShardQueue, ids: list[str]) -> None:
        if ids:
            write_part(self.run_dir, "completions", f"{lease.owner}-{ids[0]}", map(completion_of, ids))
        while ids:
            queue.settle(ids.pop())
        queue.mark_stored()


@pytest.mark.parametrize(
    ("per_shard", "killers", "deaths"),
    [
        (1, ["request-00000"], 3),
        (8, ["request-00003"], 3),
        (100, ["request-00150"], 5),
        (100, ["request-00007", "request-00093"], 7),
    ],
)
def test_few_deaths_find_what_kills_and_all_others_are_answered(
    tmp_path: Path, per_shard: int, killers: list[str], deaths: int
) -> None:
    """Two to suspect the shard, one more for each division by eight, and again for the next one."""
    ids = fill_queue(tmp_path, shards=2, per_shard=per_shard)
    machines = Machines(tmp_path, killers)
    machines.run()
    assert machines.convicted == killers and machines.deaths == deaths
    assert sorted(row["request_id"] for row in rows_of(tmp_path, "completions")) == ids


def test_a_machine_that_dies_of_something_else_costs_its_shard_no_request(tmp_path: Path) -> None:
    """Two deaths in one shard and none after: with care, nobody is convicted."""
    ids = fill_queue(tmp_path, shards=1, per_shard=30)
    machines = Machines(tmp_path, ["request-00009"])
    for _ in range(3):
        assert not machines._work(f"worker-{machines.deaths}")
        machines.deaths += 1
    machines.killers = set()
    machines.run()
    assert machines.convicted == [] and len(list((tmp_path / SUSPECTS).iterdir())) == 2
    assert sorted(row["request_id"] for row in rows_of(tmp_path, "completions")) == ids


def test_who_left_by_itself_did_not_die(tmp_path: Path) -> None:
    fill_queue(tmp_path, shards=1, per_shard=1)
    owners = []
    for number in range(4):
        lease = Lease(tmp_path, f"worker-{number}", LEASE_S)
        lease.begin()
        lease.end()
        owners.append(lease.owner)
    assert read_suspicion(tmp_path, "shard-000000", owners) is None
    bury(tmp_path, "worker-1")
    assert read_suspicion(tmp_path, "shard-000000", owners) is None, "machines die for many reasons"
    bury(tmp_path, "worker-3")
    suspicion = read_suspicion(tmp_path, "shard-000000", owners)
    assert suspicion is not None and (suspicion.deaths, suspicion.asked) == (2, frozenset())


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["assayline.evaluation.worker"])


class Deadly(FakeEngine):
    """Kills the worker that asks for some requests."""

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        yield from super().generate(self._look(request) for request in requests)

    def _look(self, request: Request | None) -> Request | None:
        if request is not None and request.sampling.get("max_tokens") == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return request


def work(order: Any) -> None:
    opening.open_engine = lambda opened, sizes, setup, hooks, **_: Deadly(
        opened.clock, worker=opened.worker, window=4, step_s=0.002, hooks=hooks
    )
    run_worker(order, lambda _: None, lambda _: None)


def start(run_dir: Path, settings: Settings, lease_s: float = 0.5) -> Any:
    order = replace(order_of(run_dir, settings, take_name(run_dir)), lease_s=lease_s)
    process = processes.Process(target=work, args=[order], name=order.worker, daemon=True)
    process.start()
    return process


def make_deadly(run_dir: Path, numbers: list[int]) -> list[str]:
    ids = fill_queue(run_dir, shards=1, per_shard=8)
    requests = [
        Request(name, name, 0, 0, [1, 2], {"max_tokens": 7 if number in numbers else 2}, "say")
        for number, name in enumerate(ids)
    ]
    write_part(run_dir, "requests", "shard-000000", requests)
    return ids


def test_processes_that_a_request_kills_leave_an_error_row_and_the_run_goes_on(
    tmp_path: Path, settings: Settings
) -> None:
    ids = make_deadly(tmp_path, [3])
    quick = settings.model_copy(update={"flush_interval_s": 0.02})
    dead = []
    while (process := start(tmp_path, quick)).join(60) or process.exitcode:
        dead.append(process.exitcode)
        assert len(dead) <= 3
    assert dead == [-signal.SIGKILL] * 3 and process.exitcode == 0
    rows = {row["request_id"]: row for row in rows_of(tmp_path, "completions")}
    assert sorted(rows) == ids and [name for name in ids if rows[name]["error_kind"]] == [ids[3]]
    assert rows[ids[3]]["error_kind"] == KILLED_WORKER
    assert "3 workers died with its shard, the last one while it had nothing else" in rows[ids[3]]["error_message"]
    [event] = [row for row in rows_of(tmp_path, "engine_events") if row["event"] == "isolated"]
    assert ids[3] in event["message"]


def test_more_of_them_than_the_spec_allows_end_the_run_with_a_sentence(tmp_path: Path, settings: Settings) -> None:
    ids = fill_queue(tmp_path, shards=1, per_shard=8)
    (tmp_path / CONVICTED).mkdir()
    (tmp_path / CONVICTED / "another").touch()
    machines = Machines(tmp_path, [ids[3]])
    for _ in range(3):
        assert not machines._work(f"worker-{machines.deaths}")
        machines.deaths += 1
    order = order_of(tmp_path, settings, "worker-9", max_error_fraction=0.1)
    with pytest.raises(EngineError, match=r"2 requests killed the workers that asked them, more than max_error_frac"):
        run_worker(order, lambda _: None, lambda _: None)
    assert [row["request_id"] for row in rows_of(tmp_path, "completions") if row["error_kind"]] == [ids[3]]
