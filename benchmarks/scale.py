"""CPU time of one flow for 1 to 16 workers.

    python -m benchmarks.scale [--workers 1 4 16] [--requests-per-worker 1500] [--ray] [--busy]

Engines are separate processes that answer at a constant rate without computing; an answer is as large as one of 100
tokens. Dispatcher, exchange and part files are those of a run. `--ray`: workers are actors of a Ray cluster on this
machine. `--busy`: eight engines with 400 answers per second each, instead of 60.

- `rows/s`: all workers together, from the first answer to the last.
- `driver CPU s per 1,000 rows`: CPU time of the flow's process, without engines.
- `calls/s`: exchanges of all workers.
- `idle tail`: share of the workers' time between their own last answer and the last answer of all.

The last line is JSON.
"""

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from assayline.clock import RunClock
from assayline.engines.fake import FakeEngine
from assayline.engines.messages import Open
from assayline.records import Completion, Request
from assayline.run import worker as worker_module
from assayline.run.dispatcher import Dispatcher
from assayline.run.drive import drive_worker
from assayline.run.worker import Exchanger, News, Worker, WorkOrder
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.parts import PartWriter, write_part

PER_SHARD, TOKENS, TICK_S, WINDOW = 256, 100, 0.02, 64
STEADY_PER_S, BUSY_PER_S, BUSY_WORKERS = 60, 400, 8
processes = multiprocessing.get_context("spawn")


def answer_at_pace(pipe: Connection, per_s: float) -> None:
    """Run an engine's process: answer the oldest requests at a constant rate per second."""
    waiting: list[str] = []
    due = time.monotonic()
    answered = 0.0
    while True:
        while pipe.poll(max(0.0, due - time.monotonic())):
            if (new := pipe.recv()) is None:
                return
            waiting += new
        due = max(due + TICK_S, time.monotonic())
        answered += per_s * TICK_S
        done, waiting = waiting[: int(answered)], waiting[int(answered) :]
        answered = answered - int(answered) if waiting else 0.0
        pipe.send([(name, "word " * TOKENS, list(range(TOKENS))) for name in done])


class PacedEngine(FakeEngine):
    """An engine whose process answers at a constant rate."""

    per_s: float = STEADY_PER_S

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        pipe, far = processes.Pipe()
        processes.Process(target=answer_at_pace, args=[far, self.per_s], daemon=True).start()
        source, in_flight, exhausted = iter(requests), 0, False
        while in_flight or not exhausted:
            new: list[str] = []
            while in_flight + len(new) < WINDOW and not exhausted:
                request = next(source, ...)
                exhausted = request is ...
                if request is None or request is ...:
                    break
                new.append(request.request_id)  # type: ignore[union-attr]
            in_flight += len(new)
            if new:
                pipe.send(new)
            for name, text, ids in pipe.recv():
                in_flight -= 1
                now_s = self._order.clock.now_s()
                yield Completion(
                    request_id=name,
                    worker=self._order.worker,
                    engine_generation=0,
                    window_requests=WINDOW,
                    sent_at_s=now_s,
                    finished_at_s=now_s,
                    output_tokens=TOKENS,
                    text=text,
                    output_token_ids=ids,
                )
        pipe.send(None)


def open_paced(per_s: float) -> Any:
    """Replacement of `worker_module.open_engine`."""
    PacedEngine.per_s = per_s
    return lambda order, sizes, setup, hooks, **_: PacedEngine(order, hooks, window=WINDOW)


@dataclass
class Flow:
    """The evaluation as its workers see it."""

    dispatcher: Dispatcher
    writer: PartWriter
    base: WorkOrder
    generations: dict[str, int] = field(default_factory=dict)

    def order(self, worker: str) -> WorkOrder:
        """Return the configuration of one worker."""
        return replace(self.base, open=replace(self.base.open, worker=worker))


class Counting:
    """A worker that counts its exchanges and records the time of its last answer."""

    def __init__(self, worker: Exchanger) -> None:
        self._worker = worker
        self.calls = 0
        self.answered_s: list[float] = []

    def exchange(self, requests: Any, **options: Any) -> News:
        """Delegate."""
        news = self._worker.exchange(requests, **options)
        self.calls += 1
        if news.finished:
            self.answered_s.append(time.monotonic())
        return news

    def stop(self) -> None:
        """Delegate."""
        self._worker.stop()

    def close(self) -> None:
        """Delegate."""
        self._worker.close()


@dataclass(frozen=True)
class Measurement:
    """Measurements of a run with a number of workers."""

    kind: str
    workers: int
    rows: int
    rows_per_s: float
    driver_cpu_s_per_1000_rows: float
    driver_cores: float
    calls_per_s: float
    idle_tail: float


def begin(folder: Path, shards: int) -> Flow:
    """Make a closed queue of requests that differ only in their numbers."""
    spec = parse_spec(
        {
            "model": "fake",
            "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "unused"}]}},
            "engine": {"backend": "fake", "warmup": False},
        }
    )
    settings = Settings(data_dir=folder, lock_dir=folder / "locks")
    writer = PartWriter(folder, "flow", settings.flush_rows, settings.flush_interval_s)
    dispatcher = Dispatcher(spec, folder, writer.add, lambda: ...)  # type: ignore[arg-type,return-value]
    for shard in range(shards):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        ids = list(range(200))
        requests = [
            Request(
                request_id=f"request-{n:08d}",
                prompt_id=f"prompt-{n:08d}",
                occurrence=0,
                repeat_index=0,
                prompt_token_ids=ids,
                sampling={},
                rendered=f"{n}",
            )
            for n in numbers
        ]
        dispatcher.add_shard(write_part(folder, "requests", f"shard-{shard:06d}", requests), PER_SHARD)
    dispatcher.close()
    base = WorkOrder(
        open=Open(engine=spec.engine, model="fake", model_id="fake", clock=RunClock.start(), run_id="scale"),
        settings=settings,
        holder="scale",
        log_folder=folder / "logs",
    )
    return Flow(dispatcher, writer, base)


def measure(kind: str, workers: int, per_worker: int, launch: Any, folder: Path) -> Measurement:
    """Drive the workers to the end of the queue."""
    flow = begin(folder / f"{kind}-{workers}", -(-workers * per_worker // PER_SHARD))
    flow.dispatcher.workers = workers
    counted: list[Counting] = []

    def start(order: WorkOrder) -> Counting:
        counted.append(Counting(launch(order)))
        return counted[-1]

    cpu_s, ended = time.process_time(), threading.Event()
    with ThreadPoolExecutor(workers) as pool:
        driven = [pool.submit(drive_worker, flow, f"worker-{n}", launch=start) for n in range(workers)]  # type: ignore[arg-type]
        for one in driven:
            one.result()
    ended.set()
    cpu_s = time.process_time() - cpu_s
    rows = flow.dispatcher.snapshot().answered
    first_s = min(worker.answered_s[0] for worker in counted)
    last = [worker.answered_s[-1] for worker in counted]
    took_s = max(last) - first_s
    return Measurement(
        kind,
        workers,
        rows,
        rows_per_s=round(rows / took_s, 1),
        driver_cpu_s_per_1000_rows=round(1000 * cpu_s / rows, 3),
        driver_cores=round(cpu_s / took_s, 3),
        calls_per_s=round(sum(worker.calls for worker in counted) / took_s, 1),
        idle_tail=round(sum(max(last) - one for one in last) / (workers * took_s), 4),
    )


def start_ray(workers: int, per_s: float) -> Any:
    """Start a Ray cluster on this machine, and yield a launcher of paced workers."""
    import ray

    from assayline.run.ray_cluster import RayWorker, _NodeWorker
    from benchmarks import scale  # noqa: PLW0406 by its name, as the engine's process has another __main__

    class PacedNode(_NodeWorker):
        """An actor with a paced engine."""

        def __init__(self, order: WorkOrder) -> None:
            vars(worker_module)["open_engine"] = scale.open_paced(per_s)
            super().__init__(order)

    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(PacedNode).options(num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=2)
    return lambda order: RayWorker(remote.remote(order), order, lambda: True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests-per-worker", type=int, default=1_500)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    per_s = BUSY_PER_S if options.busy else STEADY_PER_S
    counts = [BUSY_WORKERS] if options.busy else options.workers
    vars(worker_module)["open_engine"] = open_paced(per_s)
    kind = "ray actors" if options.ray else "threads"
    launch = start_ray(max(counts), per_s) if options.ray else Worker
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for workers in counts:
            rows.append(measure(kind, workers, options.requests_per_worker, launch, Path(folder)))
            print("  ".join(f"{name} {value}" for name, value in asdict(rows[-1]).items()), flush=True)
    print(json.dumps({"benchmark": "scale", "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
