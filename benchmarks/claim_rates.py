"""Claims per second of several processes on one run: in a folder, and in an object store on this machine."""

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from assayline.evaluation.shards.queue import ShardQueue
from assayline.places.home import attach, open_client, place_of
from assayline.runs.leases import Lease, Watch
from benchmarks.place_calls import read_log

processes = multiprocessing.get_context("forkserver")


def claim_all(run_dir: Path, name: str, results: Any, environment: dict[str, str]) -> None:
    """Claims until nothing is left; tells how many, and in what time."""
    os.environ.update(environment)
    lease = Lease(run_dir, name, 60.0)
    lease.begin()
    queue = ShardQueue(run_dir, lease, Watch(run_dir, 60.0))
    started, count = time.monotonic(), 0
    while queue.claim() is not None:
        count += 1
    results.put((count, time.monotonic() - started))
    lease.end()


def measure_claims(
    run_dir: Path, shards: int = 2_000, claimers: int = 4, environment: dict[str, str] | None = None
) -> float:
    """Claims per second of all claimers together."""
    place, queue = place_of(run_dir), ShardQueue(run_dir)
    queue.reset()
    (run_dir / "parts" / "requests").mkdir(parents=True)
    for shard in range(shards):
        place.note(f"parts/requests/shard-{shard:06d}.parquet")
    queue.close(shards)
    results = processes.Queue()
    started = [
        processes.Process(target=claim_all, args=[run_dir, f"w-{n}", results, environment or {}])
        for n in range(claimers)
    ]
    for process in started:
        process.start()
    counts = [results.get() for _ in started]
    assert sum(count for count, _ in counts) == shards, "each shard once"
    return shards / max(took_s for _, took_s in counts)


def has_store() -> bool:
    """Whether a server of a store, and its client, are installed."""
    return find_spec("localbucket") is not None and find_spec("obstore") is not None


@contextlib.contextmanager
def serving_store(folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """An object store on this machine, with a bucket; the environment that finds it, which this process has, and its
    log.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / f"localbucket-{port}.log"
    (folder / f"stored-{port}" / "bucket").mkdir(parents=True)
    with open(log, "w") as out:
        command = [sys.executable, "-m", "localbucket", "--port", str(port), str(folder / f"stored-{port}")]
        server = subprocess.Popen(command, stdout=out, stderr=out)
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_REGION": "us-east-1",
    }
    os.environ.update(environment)
    open_client.cache_clear()
    try:
        yield environment, log
    finally:
        server.kill()
        server.wait()


def measure_store_claims(folder: Path) -> tuple[float, float]:
    """Claims per second, and all HTTP requests per claim, on an object store; both 0 where localbucket is missing."""
    if not has_store():
        return 0.0, 0.0
    with serving_store(folder) as (environment, log):
        run_dir, shards = folder / "store-claims", 400
        attach(run_dir, "s3://bucket/claims")
        claims_per_s = measure_claims(run_dir, shards, environment=environment)
        asked = read_log(log, "claims")
        del asked["PUT parts/requests"]  # which filled the queue
    return claims_per_s, asked.total() / shards
