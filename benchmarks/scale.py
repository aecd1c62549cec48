"""What the pipeline costs around many engines, and what breaks first when there are a thousand.

    python -m benchmarks.scale [--workers 1 4 16] [--requests-per-worker 1500]

Workers are processes with the fake engine, which sleeps instead of computing, so that sixteen fit on a small machine:
60 rows/s each, if nothing else held them up. Claims, leases, part files and the loader into DuckDB are the real ones.

- `rows/s`, `parts/s`: of all workers together, from the first answer to the last.
- `loader CPU s per million rows`: of the thread that loads parts while the workers write them.
- `idle tail`: share of all workers' time between their own last answer and that of the last one.
- `flow`: CPU seconds per second of a thread that shows how far the run is, as the flow does.
- Calls: what a worker asks of the run's folder, a second and a shard, and the names that its lists tell; and what the
  flow and its loader do.
- HTTP requests: of four workers that answer 1,200 requests in an object store, by the server's log.
- Looks: HTTP requests of an idle worker beside 16, 100 and 1,000 others.
- `claims/s`: of four processes that claim 2,000 shards of a folder and answer none; and 400 of an object store, by
  localbucket, a server in Python on this machine, with the HTTP requests that a claim takes.

Then, from a load of many small parts and of few large ones, what a part costs and what a row does; and from these what
1,000 GPUs with 10 prompts/s each need for 100 million prompts. That part is arithmetic, and says so. Last, the
idle tail by the sizes of shards: a simulation, counted.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from assayline.clock import RunClock
from assayline.engines.fake import FakeEngine
from assayline.evaluation import opening
from assayline.evaluation import worker as worker_module
from assayline.evaluation.crew import Crew
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.progress import Tally
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.shards.throttle import Throttle
from assayline.places.home import attach
from assayline.records import Request
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.ingest import load_parts
from assayline.store.parts import count_table, list_part_names, write_part
from benchmarks.claim_rates import has_store, measure_claims, measure_store_claims, serving_store
from benchmarks.idle_looks import measure_looks
from benchmarks.loader_costs import GPUS, PROMPTS, PROMPTS_PER_S, compare_tails, median_load, simulate, time_listing
from benchmarks.place_calls import count_calls, read_calls, read_log, save_calls, total_calls, total_names

PER_SHARD = 25
WINDOW, OUTPUT_TOKENS, STEP_S = 12, 10, 0.02
WORKER_TABLES = ("completions", "telemetry", "device_telemetry", "engine_events")
POLL_INTERVAL_S = 0.5
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["assayline.evaluation.worker"])
FLOW_CALLS: Counter[str] = Counter()
"""Of this process, once it counts."""


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
    calls_per_worker_s: float
    calls_per_shard: float
    names_per_worker_s: float
    """Told by lists."""
    flow_calls_per_s: float
    """Of that thread and the loader."""
    flow_names_per_s: float
    calls: dict[str, int]
    """Of all workers, by method and folder."""
    flow_calls: dict[str, int]


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


def work(order: WorkOrder, calls: Path, environment: dict[str, str]) -> None:
    """A worker's process."""
    os.environ.update(environment)
    counts = count_calls()
    opening.open_engine = lambda opened, sizes, setup, hooks, **_: FakeEngine(  # type: ignore[assignment]
        opened.clock, worker=opened.worker, window=WINDOW, step_s=STEP_S, hooks=hooks
    )
    worker_module.run_worker(order, lambda _: None, lambda _: None)
    save_calls(counts, calls)


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
    run_dir, calls = folder / f"workers-{workers}", folder / f"calls-{workers}"
    fill(run_dir, workers * per_worker // PER_SHARD)
    started = [
        processes.Process(target=work, args=[order_of(run_dir, f"worker-{n}"), calls, {}]) for n in range(workers)
    ]
    ended, flow_cpu_s, cpu_s = threading.Event(), list[float](), list[float]()
    with connect(run_dir / "scale.duckdb", 10) as connection:

        def load() -> None:
            while not ended.wait(1.0):
                load_parts(connection, "scale", run_dir)
            load_parts(connection, "scale", run_dir)
            cpu_s.append(time.thread_time())

        load_parts(connection, "scale", run_dir)  # the requests, which are no part of this
        connection.execute("set threads = 1")
        FLOW_CALLS.clear()
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
        flow_calls = Counter(FLOW_CALLS)
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
    asked = read_calls(calls)
    return Measurement(
        workers,
        rows,
        rows_per_s=rows / took_s,
        parts_per_s=parts / took_s,
        loader_cpu_s_per_million_rows=cpu_s[0] / rows * 1e6,
        idle_tail=tail,
        flow_cores=flow_cpu_s[0] / took_s,
        calls_per_worker_s=total_calls(asked) / workers / took_s,
        calls_per_shard=total_calls(asked) / (rows / PER_SHARD),
        names_per_worker_s=total_names(asked) / workers / took_s,
        flow_calls_per_s=total_calls(flow_calls) / took_s,
        flow_names_per_s=total_names(flow_calls) / took_s,
        calls=dict(asked),
        flow_calls=dict(flow_calls),
    )


def measure_store_run(folder: Path, workers: int = 4, per_worker: int = 300) -> tuple[dict[str, int], float]:
    """HTTP requests of some workers that answer a queue in a store, by method and folder, and the seconds it took."""
    with serving_store(folder) as (environment, log):
        run_dir = folder / "store-run"
        attach(run_dir, "s3://bucket/asked")
        fill(run_dir, workers * per_worker // PER_SHARD)
        before, started_s = read_log(log, "asked"), time.monotonic()
        started = [
            processes.Process(
                target=work,
                args=[
                    replace(order_of(folder / f"store-{n}" / "asked", f"worker-{n}"), url="s3://bucket/asked"),
                    folder / "store-calls",
                    environment,
                ],
            )
            for n in range(workers)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        took_s = time.monotonic() - started_s
        asked = read_log(log, "asked") - before
        assert count_table(run_dir, "completions") == workers * per_worker, "0 lost, 0 twice"
    return dict(asked), took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests-per-worker", type=int, default=1_500)
    known = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("workers  requests    rows/s   parts/s   loader CPU s per million rows   idle tail   flow")
        count_calls(FLOW_CALLS)
        found = []
        for workers in known.workers:
            one = measure(workers, known.requests_per_worker, folder)
            found.append(one)
            print(
                f"{one.workers:7}  {one.requests:8}  {one.rows_per_s:8.0f}  {one.parts_per_s:8.1f}  "
                f"{one.loader_cpu_s_per_million_rows:30.1f}  {one.idle_tail:10.3f}  "
                f"{one.flow_cores:5.3f}"
            )
        print("Calls of the folder: a worker's per second and per shard, and names told; the flow's and its loader's")
        for one in found:
            print(
                f"{one.workers:7}  {one.calls_per_worker_s:6.1f}  {one.calls_per_shard:6.1f}  "
                f"{one.names_per_worker_s:8.0f}   {one.flow_calls_per_s:6.1f}  {one.flow_names_per_s:8.0f}"
            )
        store_run, store_s = measure_store_run(folder) if has_store() else ({}, 0.0)
        print(f"HTTP requests of 4 workers with 48 shards on a store, in {store_s:.0f} s: {sum(store_run.values())}")
        for what, times in sorted(store_run.items(), key=lambda pair: -pair[1]):
            print(f"{times:8}  {what}")
        looks = {others: measure_looks(folder, others) for others in (16, 100, 1_000)} if has_store() else {}
        print("HTTP requests of an idle worker's first look, of five that find nothing, and of two after a death")
        for others, asked in looks.items():
            print(f"{others:7}  " + "  ".join(f"{sum(counts.values()):6}" for counts in asked.values()))
        claims_per_s = measure_claims(folder / "claims")
        store_claims_per_s, requests_per_claim = measure_store_claims(folder)
        print(f"claims/s, four processes: folder {claims_per_s:,.0f}, object store {store_claims_per_s:,.0f}")
        print(f"HTTP requests of all kinds per claim on the store: {requests_per_claim:.1f}")
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
            "idle_looks": looks,
            "store_run": {"seconds": store_s, "requests": store_run},
            "claims_per_s": claims_per_s,
            "store_claims_per_s": store_claims_per_s,
            "store_requests_per_claim": requests_per_claim,
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
