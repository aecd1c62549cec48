"""What the pipeline costs around many engines, and what breaks first when there are a thousand.

    python -m benchmarks.scale [--workers 1 4 16] [--requests-per-worker 1500]

Workers are processes with the fake engine, which sleeps instead of computing, so that sixteen fit on a small machine:
60 rows/s each, if nothing else held them up. Claims, leases, part files and the loader into DuckDB are the real ones.

- `rows/s`, `parts/s`: of all workers together, from the first answer to the last.
- `loader CPU s per million rows`: of the thread that loads parts while the workers write them.
- `idle tail`: share of all workers' time between their own last answer and that of the last one.
- `flow`: CPU seconds per second of a thread that shows how far the run is, as the flow does.
- `claims/s`: of four processes that claim 2,000 shards and answer none.

Then, from a load of many small parts and of few large ones, what a part costs and what a row does; and from these what
1,000 GPUs with 10 prompts/s each need for 100 million prompts. That part is arithmetic, and says so. Last, the
idle tail by the sizes of shards: a simulation, counted.
"""

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assayline.evaluation.crew import Crew
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.shards.throttle import Throttle
from assayline.runs.leases import Lease, Watch

from assayline.clock import RunClock
from assayline.engines.fake import FakeEngine
from assayline.evaluation import opening
from assayline.evaluation import worker as worker_module
from assayline.evaluation.progress import Tally
from assayline.records import Request
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.ingest import load_parts
from assayline.store.parts import list_part_names, write_part
from benchmarks.loader_costs import GPUS, PROMPTS, PROMPTS_PER_S, compare_tails, median_load, simulate, time_listing

PER_SHARD = 25
WINDOW, OUTPUT_TOKENS, STEP_S = 12, 10, 0.02
WORKER_TABLES = ("completions", "telemetry", "device_telemetry", "engine_events")
POLL_INTERVAL_S = 0.5
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["assayline.evaluation.worker"])


@dataclass(frozen=True)
class Measurement:
    """A run of so many workers."""

    workers: int
    requests: int
    rows_per_s: float
    parts_per_s: float
    loader_cpu_s_per_million_rows: float
    idle_tail: float
    flow_cores: float
    """CPU seconds per second of the thread that shows how far the run is."""


def fill(run_dir: Path, shards: int) -> None:
    """A closed queue of requests that differ in their numbers alone."""
    queue = ShardQueue(run_dir)
    queue.reset()
    for shard in range(shards):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        sampling = {"max_tokens": OUTPUT_TOKENS}
        requests = [Request(f"request-{n:08d}", f"prompt-{n:08d}", 0, 0, [n % 997], sampling, f"{n}") for n in numbers]
        write_part(run_dir, "requests", f"shard-{shard:06d}", requests)
    queue.close(shards)


def order_of(run_dir: Path, name: str) -> WorkOrder:
    """One worker's order."""
    spec = parse_spec(
        {
            "model": "fake",
            "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "unused"}]}},
            "engine": {"backend": "fake"},
            "shard_requests": PER_SHARD,
        }
    )
    settings = Settings(data_dir=run_dir, lock_dir=run_dir / "locks")
    return WorkOrder("scale", run_dir, spec, settings, "fake", "fake", {}, RunClock.start(), name)


def work(order: WorkOrder) -> None:
    """A worker's process."""
    opening.open_engine = lambda opened, sizes, setup, hooks, **_: FakeEngine(  # type: ignore[assignment]
        opened.clock, worker=opened.worker, window=WINDOW, step_s=STEP_S, hooks=hooks
    )
    worker_module.run_worker(order, lambda _: None, lambda _: None)


def show_progress(run_dir: Path, ended: threading.Event, cpu_s: list[float]) -> None:
    """What a flow does beside the loader."""
    tally, crew, looks = Tally(run_dir), Crew(run_dir, 60.0), Throttle()
    while not ended.wait(POLL_INTERVAL_S):
        if looks.is_due():
            with looks:
                tally.count()
                crew.look()
    cpu_s.append(time.thread_time())


def measure(workers: int, per_worker: int, folder: Path) -> Measurement:
    """Runs so many workers, and loads what they write meanwhile."""
    run_dir = folder / f"workers-{workers}"
    fill(run_dir, workers * per_worker // PER_SHARD)
    started = [processes.Process(target=work, args=[order_of(run_dir, f"worker-{n}")]) for n in range(workers)]
    ended, flow_cpu_s, cpu_s = threading.Event(), list[float](), list[float]()
    with connect(run_dir / "scale.duckdb", 10) as connection:

        def load() -> None:
            while not ended.wait(1.0):
                load_parts(connection, "scale", run_dir)
            load_parts(connection, "scale", run_dir)
            cpu_s.append(time.thread_time())

        load_parts(connection, "scale", run_dir)  # the requests, which are no part of this
        connection.execute("set threads = 1")
        threads = [
            threading.Thread(target=load),
            threading.Thread(target=show_progress, args=[run_dir, ended, flow_cpu_s]),
        ]
        for one in [*threads, *started]:
            one.start()
        for process in started:
            process.join()
        ended.set()
        for thread in threads:
            thread.join()
        query = "select count(*), count(distinct request_id), min(sent_at_s), max(finished_at_s) from completions"
        [(rows, requests, first_s, last_s)] = connection.execute(query).fetchall()
        ends = [
            end
            for (end,) in connection.execute("select max(finished_at_s) from completions group by worker").fetchall()
        ]
    assert rows == requests == workers * per_worker // PER_SHARD * PER_SHARD, "0 lost, 0 twice"
    took_s = last_s - first_s
    parts = sum(len(list_part_names(run_dir, table)) for table in WORKER_TABLES)
    tail = sum(last_s - end for end in ends) / (len(ends) * took_s)
    return Measurement(
        workers,
        rows,
        rows_per_s=rows / took_s,
        parts_per_s=parts / took_s,
        loader_cpu_s_per_million_rows=cpu_s[0] / rows * 1e6,
        idle_tail=tail,
        flow_cores=flow_cpu_s[0] / took_s,
    )


def claim_all(run_dir: Path, name: str, results: Any) -> None:
    """Claims until nothing is left, and reports how many shards it claimed, in how many seconds."""
    lease = Lease(run_dir, name, 60.0)
    lease.begin()
    queue = ShardQueue(run_dir, lease, Watch(run_dir, 60.0))
    started, count = time.monotonic(), 0
    while queue.claim() is not None:
        count += 1
    results.put((count, time.monotonic() - started))
    lease.end()


def measure_claims(run_dir: Path, shards: int = 2_000, claimers: int = 4) -> float:
    """Claims per second of all claimers together."""
    queue, parts = ShardQueue(run_dir), run_dir / "parts" / "requests"
    queue.reset()
    parts.mkdir(parents=True)
    for shard in range(shards):
        (parts / f"shard-{shard:06d}.parquet").touch()
    queue.close(shards)
    results = processes.Queue()
    started = [processes.Process(target=claim_all, args=[run_dir, f"w-{n}", results]) for n in range(claimers)]
    for process in started:
        process.start()
    counts = [results.get() for _ in started]
    assert sum(count for count, _ in counts) == shards, "each shard once"
    return shards / max(took_s for _, took_s in counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests-per-worker", type=int, default=1_500)
    known = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("workers  requests    rows/s   parts/s   loader CPU s per million rows   idle tail   flow")
        found = []
        for workers in known.workers:
            one = measure(workers, known.requests_per_worker, folder)
            found.append(one)
            print(
                f"{one.workers:7}  {one.requests:8}  {one.rows_per_s:8.0f}  {one.parts_per_s:8.1f}  "
                f"{one.loader_cpu_s_per_million_rows:30.1f}  {one.idle_tail:10.3f}  "
                f"{one.flow_cores:5.3f}"
            )
        claims_per_s = measure_claims(folder / "claims")
        print(f"claims/s, four processes: {claims_per_s:,.0f}")
        small_s, large_s = median_load(folder, 400, 20), median_load(folder, 4, 2_000)  # 8,000 rows each
        part_s = (small_s - large_s) / (400 - 4)
        row_s = (large_s - 4 * part_s) / 8_000
        listing_s = time_listing(folder)
        costs = f"a part {part_s * 1e3:.2f} ms of CPU, a row {row_s * 1e6:.1f} µs"
        print(f"{costs}, a name in a listing {listing_s * 1e6:.2f} µs")
        simulated = simulate(part_s, row_s, listing_s)
        print(f"\nOn paper: {GPUS:,} GPUs, {PROMPTS_PER_S} prompts/s each, {PROMPTS:,} prompts")
        print("flush s   parts/s        parts   loader's cores   one listing s")
        for row in simulated:
            print(
                f"{row['flush_s']:7.0f}  {row['parts_per_s']:8.1f}  {row['parts']:11,.0f}  "
                f"{row['loader_cores']:15.2f}  {row['one_listing_s']:14.1f}"
            )
        result = {
            "workers": [asdict(one) for one in found],
            "claims_per_s": claims_per_s,
            "part_cpu_ms": part_s * 1e3,
            "row_cpu_us": row_s * 1e6,
            "listing_us_per_name": listing_s * 1e6,
            "simulated": simulated,
        }
        tails = compare_tails()
        print("\nOn paper: idle tail of shards of 256, of shards that grow, and of these with the largest first")
        for tail in tails:
            print(
                f"{tail['workers']:3} workers, {tail['prompts']:,} prompts: {tail['alike']:.4f}, {tail['grown']:.4f}, "
                f"{tail['grown_largest_first']:.4f} ({tail['shards']} shards)"
            )
        print(json.dumps({**result, "tails": tails}))


if __name__ == "__main__":
    main()
