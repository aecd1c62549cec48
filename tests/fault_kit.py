"""Runs that are hurt, on one machine or on a Ray cluster: workers, nodes, and rounds of faults.

A round is a run, with all kinds of faults or with one, so that a table shows what each kind does. The kinds are drawn
by seed; each fault comes when a certain number of requests has been sent to engines. The flow is a process
without Prefect that does what the flow `evaluate` does; as often as it ends early, it is started again, and resumes the
run:

    python fault_kit.py flow SPEC

The cluster is a process, too. It prints the cluster's address; then each line of standard input is a command, which a
line answers: `add ADDRESS GPUS` starts a node with one CPU, and `kill ADDRESS` kills it at once, as a machine that
loses power. It ends with its standard input:

    python fault_kit.py cluster FOLDER
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import yaml

from assayline.engines.fake import FakeEngine
from assayline.errors import Death, EngineDiedError
from assayline.records import Completion, Request
from assayline.run import drive, ray_cluster
from assayline.run import worker as worker_module
from assayline.run.begin import begin_evaluation
from assayline.run.watch import RunReport
from assayline.run.worker import Worker, WorkOrder
from assayline.settings import load_settings
from assayline.spec.file import load_spec
from assayline.store.database import connect

ENGINE, THREAD, FLOW, STOPPED_FLOW, DISK = "engine dies", "worker dies", "flow killed", "flow stopped", "disk full"
NODE, ACTOR, STOPPED_ACTOR, JOIN = "node killed", "actor killed", "actor stopped", "node joins"
LOCAL_KINDS = (ENGINE, THREAD, FLOW, STOPPED_FLOW, DISK)
RAY_KINDS = (NODE, ACTOR, STOPPED_ACTOR, FLOW, JOIN)
NODES = 4
STEP_S = 0.005
HEAD = "127.0.0.2"
NOTICES_DEATHS_SOON = {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "500"}
"""A killed node is noticed when five checks in a row have failed, by default after 15 seconds."""
TESTS = Path(__file__).resolve().parent
REQUESTS = 600
FAULTS_PER_ROUND = 10
STALL_TIMEOUT_S = 1.5


class NotingEngine(FakeEngine):
    """Notes in a file which requests it was asked, and dies of the faults that lie in a folder, each once.

    A token takes 10 ms, and three requests are in flight.
    """

    def __init__(self, opened: Any, folder: Path, hooks: Any) -> None:
        super().__init__(opened, hooks, window=3, step_s=0.01)
        self._asked = folder / "asked" / f"{os.getpid()}-{opened.worker}"
        self._faults = folder / "faults"

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        return super().generate(self._note(requests))

    def _note(self, requests: Iterable[Request | None]) -> Iterator[Request | None]:
        with open(self._asked, "a", buffering=1) as file:
            for request in requests:
                if request is not None:
                    file.write(f"{request.request_id}\n")
                yield request

    def _step(self, live: list[Any]) -> Iterator[Completion]:
        for fault in self._faults.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another engine has died of it
                fault.unlink()
                if fault.name == ENGINE:
                    raise EngineDiedError("The engine's process died of signal SIGKILL.", Death("run", exit_code=-9))
                raise RuntimeError("a defect in the worker's thread")
        return super()._step(live)


def open_noting_engine(folder: Path, opened: Any, sizes: Any, setup: Any, hooks: Any, **_: Any) -> NotingEngine:
    """In place of `assayline.engines.open_engine`."""
    return NotingEngine(opened, folder, hooks)


class NodeEngine(FakeEngine):
    """A request may kill its process; the answer to one with media is the path and the content of each."""

    def _start(self, request: Request) -> Any:
        if "kill" in (request.rendered or ""):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._start(request)


def die(*_: Any, **__: Any) -> Any:
    raise EngineDiedError("The engine died on its node.", Death("run", exception="AssertionError"))


def read_media(request: Request) -> str:
    return "|".join(f"{media['path']}={Path(media['path']).read_text()}" for media in request.media or ())


class NotingNodeWorker(ray_cluster._NodeWorker):
    """A worker whose engine notes what it was asked, for rounds of faults."""

    def __init__(self, order: WorkOrder) -> None:
        worker_module.open_engine = partial(open_noting_engine, order.log_folder.parents[2])  # type: ignore[assignment]
        super().__init__(order)


class NodeWorker(ray_cluster._NodeWorker):
    """A worker with such an engine, regardless of its spec, and without a device."""

    def __init__(self, order: WorkOrder) -> None:
        worker_module.open_engine = lambda opened, sizes, setup, hooks, **_: NodeEngine(  # type: ignore[assignment]
            opened, hooks, window=order.open.engine.max_concurrency, step_s=STEP_S, answer=read_media
        )
        if "STOPS" in order.open.engine.env and (stops := Path(order.open.engine.env["STOPS"])).exists():
            stops.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        if "DIES" in order.open.engine.env:
            worker_module.open_engine = die
        worker_module.claim_device = lambda *_, **__: worker_module.NO_DEVICE  # type: ignore[attr-defined]
        super().__init__(order)
        import ray

        args = order.open.engine.args
        self._notes.append(f"GPUs {ray.get_gpu_ids()}, executor {args.get('distributed_executor_backend')}")


class Nodes:
    """A cluster in a process of its own; two nodes can have workers at first.

    Each node has an address and a working folder of its own. The first has the cluster's head and no CPU, so no worker
    runs there. 127.0.0.1 is not an address for a node: Ray replaces it by the machine's outward one.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        paths = os.pathsep.join(map(str, [TESTS.parent, TESTS]))
        env = {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", **NOTICES_DEATHS_SOON}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "cluster", str(folder)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self.address = self._read()
        self.alive: list[str] = []
        self._numbers = iter(range(3, 250))
        for _ in range(2):
            self.add()

    def add(self, gpus: int = 0, path: str = "") -> str:
        """Add a node. `path`: its PYTHONPATH, before that of the others."""
        address = f"127.0.0.{next(self._numbers)}"
        self._tell(f"add {address} {gpus} {path}")
        self.alive.append(address)
        return address

    def kill(self, address: str) -> None:
        self.alive.remove(address)
        self._tell(f"kill {address}")

    def kill_head(self) -> None:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            if "gcs_server" in process.cmdline()[0]:
                process.kill()

    def keep_two(self) -> None:
        """Every test begins with two nodes without GPUs."""
        while len(self.alive) < 2:
            self.add()
        for address in self.alive[2:]:
            self.kill(address)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                process.kill()

    def actors(self) -> dict[int, str]:
        """The node of each process that holds a worker."""
        found = {}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                if "NodeWorker" in process.cmdline()[0]:
                    found[process.pid] = _node_of(process)
            except (psutil.Error, IndexError):
                continue
        return found

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._read() == "done"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _node_of(process: psutil.Process) -> str:
    for parent in process.parents():
        for word in parent.cmdline():
            if word.startswith("--node_ip_address="):
                return word.partition("=")[2]
    raise AssertionError(f"{process} is not a process of Ray")


def run_cluster(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    size = {"object_store_memory": 80_000_000}
    head = {"num_cpus": 0, "num_gpus": 0, "node_ip_address": HEAD, "include_dashboard": False, **size}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes, paths = {}, os.environ["PYTHONPATH"]
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            command, address, *how = line.split()
            if command == "add":
                place = folder / address
                place.mkdir(exist_ok=True)
                os.chdir(place)  # where the node's processes are, too
                os.environ["ASSAYLINE_LOCK_DIR"] = str(place / "locks")
                os.environ["PYTHONPATH"] = os.pathsep.join([*how[1:], paths])
                nodes[address] = cluster.add_node(num_cpus=1, num_gpus=int(how[0]), node_ip_address=address, **size)
            else:
                cluster.remove_node(nodes.pop(address), allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


def run_flow(spec_path: str) -> None:
    """Run as the flow does. Raises the exception that ends it early."""
    settings = load_settings()
    drive.REPLACEMENT_PAUSES_S = (0.1, 0.2, 0.4)
    worker_module.open_engine = partial(open_noting_engine, settings.data_dir)  # type: ignore[assignment]
    evaluation = begin_evaluation(load_spec(spec_path), settings)
    dispatcher = evaluation.dispatcher
    try:
        with ray_cluster.open_cluster(evaluation.spec, settings) as cluster, ThreadPoolExecutor(64) as pool:
            if cluster is not None:
                from fault_kit import NotingNodeWorker  # not this program's own, which a node could not import

                ray_cluster._NodeWorker = NotingNodeWorker  # type: ignore[misc]
            prepared = pool.submit(evaluation.prepare)
            workers: list[Any] = []
            while not (
                prepared.done()
                and (dispatcher.is_over or dispatcher.is_stopped)
                and all(worker.done() for worker in workers)
            ):
                if cluster is not None:
                    dispatcher.workers = cluster.count_workers()
                if not dispatcher.is_over and not dispatcher.is_stopped:
                    while len(workers) < dispatcher.workers:
                        log: Any = SimpleNamespace(info=print, warning=print, debug=str)
                        report = RunReport(log)
                        launch = Worker if cluster is None else cluster.launch
                        name = f"worker-{len(workers)}"
                        workers.append(pool.submit(drive.drive_worker, evaluation, name, log, report, launch))
                if any(task.done() and task.exception() for task in (prepared, *workers)):
                    evaluation.stop()
                time.sleep(0.05)
            for task in (prepared, *workers):
                task.result()
        evaluation.finish(prepared.result())
    except BaseException as error:
        evaluation.abandon("failed", str(error))
        raise


@dataclass
class Outcome:
    """Result of a round."""

    kinds: str
    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    attempts: int = 0
    """Starts of the flow."""
    asked_again: int = 0
    errors: int = 0
    """Error rows: requests that were blamed for several deaths."""
    lost: int = 0
    twice: int = 0


class Round:
    """One run in a folder of its own, which is hurt until it is complete."""

    def __init__(self, folder: Path, model: Path, dice: random.Random, nodes: Any = None) -> None:
        """`nodes` is the cluster; None: workers of this machine."""
        self._folder, self._dice, self._nodes = folder, dice, nodes
        for name in ("data/asked", "data/faults"):
            (folder / name).mkdir(parents=True)
        rows = "".join(json.dumps({"question": f"{i} + {i}?"}) + "\n" for i in range(REQUESTS))
        (folder / "rows.jsonl").write_text(rows)
        spec: dict[str, Any] = {
            "name": "faults",
            "model": str(model),
            "prompts": {"source": {"kind": "file", "path": str(folder / "rows.jsonl")}, "template": "{{ question }}"},
            "sampling": {"max_tokens": 6},
            "engine": {"backend": "fake", "max_concurrency": 3},
            "shard_requests": 10,
            "max_error_share": 1.0,
            "workers": NODES,
        }
        if nodes is not None:
            spec |= {"runner": "ray", "ray_address": nodes.address, "workers": "auto"}
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        self._env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [TESTS.parent, TESTS])),
            "ASSAYLINE_DATA_DIR": str(folder / "data"),
            "ASSAYLINE_LOCK_DIR": str(folder / "locks"),
            "ASSAYLINE_FLUSH_INTERVAL_S": "0.2",
            "ASSAYLINE_ENGINE_STALL_TIMEOUT_S": str(STALL_TIMEOUT_S),
        }

    def run(self, kinds: Sequence[str], faults: int) -> Outcome:
        """Repeat until the run is complete, with at most that many faults."""
        outcome = Outcome("all kinds" if len(kinds) > 1 else kinds[0], requests=REQUESTS)
        with open(self._folder / "log", "a") as log:
            code, next_at = None, 1
            while code != 0:
                outcome.attempts += 1
                command = [sys.executable, __file__, "flow", str(self._folder / "spec.yaml")]
                flow = subprocess.Popen(command, env=self._env, stdout=log, stderr=log, start_new_session=True)
                while flow.poll() is None:
                    if outcome.faults.total() < faults and len(self._count_asked()) >= next_at:
                        kind = self._dice.choice(kinds)
                        outcome.faults[kind] += self._hurt(kind, flow)
                        next_at += REQUESTS // (2 * faults)
                    time.sleep(0.02)
                code = flow.returncode
        return self._count(outcome)

    def _count_asked(self) -> Counter[str]:
        """How often each request was sent to an engine."""
        asked = (self._folder / "data" / "asked").iterdir()
        return Counter(line for path in asked for line in path.read_text().split())

    def _hurt(self, kind: str, flow: "subprocess.Popen[bytes]") -> bool:
        """Inject a fault; return whether one was injected."""
        if kind in (ENGINE, THREAD):
            (self._folder / "data" / "faults" / kind).touch()
        elif kind in (FLOW, STOPPED_FLOW, DISK):
            flow.send_signal(signal.SIGSTOP)
            try:
                return self._hurt_stopped(kind, flow)
            finally:
                flow.send_signal(signal.SIGCONT)
                if kind != STOPPED_FLOW:
                    flow.wait()
        else:
            return self._hurt_cluster(kind)
        return True

    def _hurt_stopped(self, kind: str, flow: "subprocess.Popen[bytes]") -> bool:
        """Hurt a flow that does not move meanwhile, unless its run is complete: the next start would begin another."""
        manifests = self._folder.glob("data/runs/*/run.json")
        if any(json.loads(path.read_text())["state"] == "completed" for path in manifests):
            return False
        if kind == FLOW:
            flow.kill()
        elif kind == DISK:  # no file can grow beyond some bytes any more
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(flow.pid).rlimit(psutil.RLIMIT_FSIZE, (900, psutil.RLIM_INFINITY))
        else:
            time.sleep(self._dice.uniform(0.2, 1.0))
        return True

    def _hurt_cluster(self, kind: str) -> bool:
        actors = self._nodes.actors()
        if kind == JOIN or len(self._nodes.alive) < 2:
            if len(self._nodes.alive) >= NODES:
                self._nodes.kill(self._nodes.alive[0])  # so that there is one to join
            self._nodes.add()
            return kind == JOIN
        if not actors:
            return False
        victim = self._dice.choice(sorted(actors))
        if kind == NODE:
            self._nodes.kill(actors[victim])
            self._nodes.add()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL if kind == ACTOR else signal.SIGSTOP)
        return True

    def _count(self, outcome: Outcome) -> Outcome:
        asked = self._count_asked()
        with connect(self._folder / "data" / "assayline.duckdb", 10, read_only=True) as connection:
            query = "select count(*), count(distinct request_id), count(error_kind) from completions"
            [(rows, requests, outcome.errors)] = connection.execute(query).fetchall()
            [(runs,)] = connection.execute("select count(*) from runs").fetchall()
        assert runs == 1, "each start resumed the run"
        outcome.asked_again = asked.total() - len(asked)
        outcome.lost, outcome.twice = REQUESTS - requests, rows - requests
        return outcome


def run_rounds(faults: int, kinds: Sequence[str], make: Callable[[int], Round]) -> list[Outcome]:
    """Run rounds of all kinds and of each kind alone in turn, until that many faults."""
    mixtures = [kinds, *([kind] for kind in kinds)]
    outcomes: list[Outcome] = []
    while (left := faults - sum(outcome.faults.total() for outcome in outcomes)) > 0:
        number = len(outcomes)
        outcomes.append(make(number).run(mixtures[number % len(mixtures)], min(FAULTS_PER_ROUND, left)))
    return outcomes


COLUMNS = ("requests", "attempts", "asked_again", "errors", "lost", "twice")


def print_table(outcomes: Sequence[Outcome], seed: int) -> Counter[str]:
    """Prints a line for each kind of fault, and the totals as JSON. Returns the totals."""
    by_kind: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    for outcome in outcomes:
        counts = {name: getattr(outcome, name) for name in COLUMNS} | {"faults": outcome.faults.total()}
        by_kind.setdefault(outcome.kinds, Counter()).update(counts)
        totals.update(counts)
    print(f"\n{'faults':16}{'times':>6}" + "".join(f"{name.replace('_', ' '):>13}" for name in COLUMNS))
    for kind, counts in [*by_kind.items(), ("together", totals)]:
        print(f"{kind:16}{counts['faults']:6}" + "".join(f"{counts[name]:13}" for name in COLUMNS))
    times = sum((outcome.faults for outcome in outcomes), Counter())
    print(json.dumps({**totals, "rounds": len(outcomes), "seed": seed, "times": times}), flush=True)
    return totals


if __name__ == "__main__":
    role, given = sys.argv[1:]
    run_flow(given) if role == "flow" else run_cluster(Path(given).absolute())
