"""Workers that are hurt at random while they answer a queue, with the fake engine, and a table of what came of it.

A round is one queue and one mixture of faults, so that the table tells what each kind does. A worker is killed, or is
stopped for half a lease or for three: some never learn of it, others find their shards taken over, or two of them at
once.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assayline.evaluation.orders import WorkOrder, take_name
from assayline.store.takeovers import list_takeovers
from record_kit import fill_queue, order_of, rows_of

from assayline.engines.fake import FakeEngine
from assayline.evaluation import opening, worker
from assayline.records import Completion, Request
from assayline.settings import Settings
from assayline.store.database import connect
from assayline.store.ingest import reload_parts

KILL, STOP = "worker killed", "worker stopped"
WORKERS, FEW = 4, 4
"""How many are at work at once, but for a round of few faults."""
MOST_SHARDS, SHARDS_PER_FAULT, PER_SHARD = 60, 3, 10
FAULTS_PER_ROUND = 20
"""More, and on a busy machine no worker lives long enough to get anywhere."""
ROUND_LIMIT_S = 300.0
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["assayline.evaluation.worker", "assayline.store.database"])


class NotingEngine(FakeEngine):
    """It notes in a file which requests it was asked. A token takes 10 ms, and three requests are in flight."""

    asked: Path

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        return super().generate(self._note(requests))

    def _note(self, requests: Iterable[Request | None]) -> Iterator[Request | None]:
        with open(self.asked / str(os.getpid()), "a", buffering=1) as file:
            for request in requests:
                if request is not None:
                    file.write(f"{request.request_id}\n")
                yield request


def work(order: WorkOrder, asked: Path) -> None:
    """What a worker's process does."""
    NotingEngine.asked = asked
    opening.open_engine = lambda opened, sizes, setup, hooks, **_: NotingEngine(  # type: ignore[assignment]
        opened.clock, worker=opened.worker, window=3, step_s=0.01, hooks=hooks
    )
    worker.run_worker(order, lambda _: None, lambda _: None)


@dataclass(frozen=True)
class Outcome:
    """What a round came to."""

    kinds: str
    faults: Counter[str]
    requests: int
    taken_over: int
    asked_again: int
    stored_twice: int
    lost: int
    doubled: int
    failed: int
    """Workers that ended by an error of their own."""


class Round:
    """One queue, and the workers on it."""

    def __init__(self, run_dir: Path, settings: Settings, dice: random.Random, lease_s: float) -> None:
        self._run_dir, self._settings, self._dice, self._lease_s = run_dir, settings, dice, lease_s
        self._asked = run_dir.parent / f"{run_dir.name}-asked"
        self._asked.mkdir()
        self._at_work: dict[str, str] = {}
        self._alive: list[Any] = []
        self._stopped: dict[Any, float] = {}
        self._killed: set[Any] = set()
        self._failed = 0
        self._faults: Counter[str] = Counter()

    def run(self, kinds: Sequence[str], faults: int) -> Outcome:
        """Until every worker has ended by itself, and at most so many faults."""
        shards = min(MOST_SHARDS, SHARDS_PER_FAULT * faults)
        ids = fill_queue(self._run_dir, shards, PER_SHARD, max_tokens=6)
        for _ in range(WORKERS if faults > FEW else 2):
            self._start()
        deadline = time.monotonic() + ROUND_LIMIT_S
        while self._alive:
            assert time.monotonic() < deadline, "no end in sight"
            time.sleep(self._dice.uniform(0.0, 0.15))
            self._continue_those_whose_time_is_over()
            self._bury_the_ended()
            if self._faults.total() < faults:
                self._hurt(self._dice.choice(kinds))
        return self._count("all kinds" if len(kinds) > 1 else kinds[0], ids)

    def _start(self) -> None:
        order = order_of(self._run_dir, self._settings, take_name(self._run_dir), shard_requests=PER_SHARD)
        order = replace(order, lease_s=self._lease_s)
        process = processes.Process(target=work, args=[order, self._asked], name=order.worker, daemon=True)
        process.start()
        self._alive.append(process)

    def _hurt(self, kind: str) -> None:
        self._see_who_is_at_work()
        running = [one for one in self._alive if one not in self._stopped and one.name in self._at_work.values()]
        if not running:
            return
        if kind == KILL:
            self._kill(self._dice.choice(running))
        else:
            victim = self._dice.choice(running)
            os.kill(victim.pid, signal.SIGSTOP)
            self._stopped[victim] = time.monotonic() + self._dice.choice([0.5, 3.0]) * self._lease_s
        self._faults[kind] += 1

    def _kill(self, process: Any) -> None:
        self._killed.add(process)
        process.kill()
        process.join()
        self._start()

    def _see_who_is_at_work(self) -> None:
        """Whoever has a claim; a claim that was seen never changes."""
        for claim in (self._run_dir / "claims").iterdir():
            if not self._at_work.get(claim.name):
                self._at_work[claim.name] = claim.read_text().rpartition("-")[0]

    def _continue_those_whose_time_is_over(self) -> None:
        for process, until_s in list(self._stopped.items()):
            if time.monotonic() >= until_s:
                del self._stopped[process]
                os.kill(process.pid, signal.SIGCONT)

    def _bury_the_ended(self) -> None:
        ended = [process for process in self._alive if not process.is_alive()]
        self._failed += sum(process.exitcode != 0 and process not in self._killed for process in ended)
        self._alive = [process for process in self._alive if process not in ended]

    def _count(self, kinds: str, ids: list[str]) -> Outcome:
        asked = Counter(line for path in self._asked.iterdir() for line in path.read_text().split())
        in_parts = Counter(row["request_id"] for row in rows_of(self._run_dir, "completions"))
        assert set(in_parts) <= set(ids)
        with connect(self._run_dir / "test.duckdb", 10) as connection:
            reload_parts(connection, "run", self._run_dir)
            query = "select count(*), count(distinct request_id) from completions"
            [(rows, requests)] = connection.execute(query).fetchall()
        return Outcome(
            kinds,
            self._faults,
            len(ids),
            taken_over=len(list_takeovers(self._run_dir)),
            asked_again=asked.total() - len(asked),
            stored_twice=in_parts.total() - len(in_parts),
            lost=len(ids) - requests,
            doubled=rows - requests,
            failed=self._failed,
        )


def plan_rounds(faults: int, kinds: Sequence[str]) -> list[tuple[Sequence[str], int]]:
    """Faults by round: first all kinds at once, then each for itself, and again."""
    mixtures = [kinds, *([kind] for kind in kinds)]
    rounds = -(-faults // FAULTS_PER_ROUND)
    return [
        (mixtures[number % len(mixtures)], min(FAULTS_PER_ROUND, faults - number * FAULTS_PER_ROUND))
        for number in range(rounds)
    ]


COLUMNS = ("requests", "taken_over", "asked_again", "stored_twice", "lost", "doubled", "failed")


def print_table(outcomes: Sequence[Outcome], seed: int) -> Counter[str]:
    """A line for each kind of fault, and the whole as JSON; its totals."""
    by_kind: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    for outcome in outcomes:
        counts = {name: getattr(outcome, name) for name in COLUMNS} | {"faults": outcome.faults.total()}
        by_kind.setdefault(outcome.kinds, Counter()).update(counts)
        totals.update(counts)
    print(f"\n{'faults':28}{'times':>6}" + "".join(f"{name.replace('_', ' '):>14}" for name in COLUMNS))
    for kind, counts in [*by_kind.items(), ("together", totals)]:
        print(f"{kind:28}{counts['faults']:6}" + "".join(f"{counts[name]:14}" for name in COLUMNS))
    times = sum((outcome.faults for outcome in outcomes), Counter())
    print(json.dumps({**totals, "rounds": len(outcomes), "seed": seed, "times": times}))
    return totals
