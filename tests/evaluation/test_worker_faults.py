"""Workers that are killed and stopped at random, on the fake engine: 0 requests lost, 0 twice.

`make test` does it twenty times, `make test-faults` two hundred. The line of JSON at the end is what a person wants to
know. A stop is as long as half a lease or as long as three: some workers never learn of it, others find their shards
taken over, or two of them at once.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_kit import fill_queue, order_of, rows_of

from assayline.evaluation import opening, worker
from assayline.evaluation.orders import WorkOrder, take_name
from assayline.settings import Settings
from assayline.store.database import connect
from assayline.store.ingest import load_parts
from assayline.store.takeovers import list_takeovers

pytestmark = pytest.mark.slow

LEASE_S = 0.5
WORKERS = 4
SHARDS, PER_SHARD = 60, 10
FAULTS_PER_ROUND = 20
"""More, and on a busy machine no worker lives long enough to get anywhere."""
ROUND_LIMIT_S = 300.0
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["assayline.evaluation.worker", "assayline.store.database"])


def work(order: WorkOrder) -> None:
    """What a worker's process does. A token takes 10 ms, and three requests are in flight."""
    from assayline.engines.fake import FakeEngine

    opening.open_engine = lambda opened, sizes, setup, hooks, **_: FakeEngine(  # type: ignore[assignment]
        opened.clock, worker=opened.worker, window=3, step_s=0.01, hooks=hooks
    )
    worker.run_worker(order, lambda _: None, lambda _: None)


class Round:
    """One queue, and the workers on it."""

    def __init__(self, run_dir: Path, settings: Settings, dice: random.Random) -> None:
        self.run_dir, self.settings, self.dice = run_dir, settings, dice
        self.ids = fill_queue(run_dir, SHARDS, PER_SHARD, max_tokens=6)
        self.faults: Counter[str] = Counter()
        self.alive: list[Any] = []
        self.stopped: dict[Any, float] = {}

    def run(self, faults: int) -> None:
        """Until every worker has ended by itself, and at most so many faults."""
        for _ in range(WORKERS):
            self._start()
        deadline = time.monotonic() + ROUND_LIMIT_S
        while self.alive:
            assert time.monotonic() < deadline, "no end in sight"
            time.sleep(self.dice.uniform(0.0, 0.15))
            self._continue_those_whose_time_is_over()
            self.alive = [process for process in self.alive if process.is_alive()]
            at_work = {path.read_text().rpartition("-")[0] for path in (self.run_dir / "claims").iterdir()}
            running = [one for one in self.alive if one not in self.stopped and one.name in at_work]
            if running and self.faults.total() < faults:
                self._hurt(self.dice.choice(running))

    def _start(self) -> None:
        order = order_of(self.run_dir, self.settings, take_name(self.run_dir), shard_requests=PER_SHARD)
        order = replace(order, lease_s=LEASE_S)
        process = processes.Process(target=work, args=[order], name=order.worker, daemon=True)
        process.start()
        self.alive.append(process)

    def _hurt(self, process: Any) -> None:
        if self.dice.random() < 0.5:
            self.faults["kills"] += 1
            process.kill()
            process.join()
            self._start()
        else:
            self.faults["stops"] += 1
            os.kill(process.pid, signal.SIGSTOP)
            self.stopped[process] = time.monotonic() + self.dice.choice([0.5, 3.0]) * LEASE_S

    def _continue_those_whose_time_is_over(self) -> None:
        for process, until_s in list(self.stopped.items()):
            if time.monotonic() >= until_s:
                del self.stopped[process]
                os.kill(process.pid, signal.SIGCONT)


def test_whoever_is_killed_or_stopped_every_request_counts_once(
    tmp_path: Path, settings: Settings, request: pytest.FixtureRequest, record_property: Any
) -> None:
    wanted = int(request.config.getoption("--faults"))
    seed = int(request.config.getoption("--kill-seed"))
    dice = random.Random(seed)
    quick = settings.model_copy(update={"flush_interval_s": 0.05, "flush_rows": 16})
    totals: Counter[str] = Counter(faults=0, kills=0, stops=0, takeovers=0, stored_twice=0, lost=0, twice=0)
    while totals["faults"] < wanted:
        run_dir = tmp_path / f"round-{totals['rounds']}"
        shots = Round(run_dir, quick, dice)
        shots.run(min(FAULTS_PER_ROUND, wanted - totals["faults"]))
        in_parts = Counter(row["request_id"] for row in rows_of(run_dir, "completions"))
        with connect(run_dir / "test.duckdb", 10) as connection:
            load_parts(connection, "run", run_dir)
            [(rows, requests)] = connection.execute(
                "select count(*), count(distinct request_id) from completions"
            ).fetchall()
        totals.update(
            rounds=1, faults=shots.faults.total(), **shots.faults, takeovers=len(list_takeovers(run_dir)),
            requests=len(shots.ids), stored_twice=in_parts.total() - len(in_parts), lost=len(shots.ids) - requests,
            twice=rows - requests,
        )  # fmt: skip
        assert set(in_parts) == set(shots.ids)
    for name, value in totals.items():
        record_property(name, value)
    print(json.dumps({**totals, "seed": seed}))
    assert (totals["lost"], totals["twice"]) == (0, 0) and totals["takeovers"] > 0
