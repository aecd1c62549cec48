"""What a part, a row and a name cost the loader, and, on paper, what a thousand GPUs need; for `benchmarks.scale`."""

import heapq
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from assayline.evaluation.prepare import choose_size
from assayline.records import Completion
from assayline.store.database import connect
from assayline.store.ingest import load_parts
from assayline.store.parts import list_part_names, write_part

GPUS, PROMPTS, PROMPTS_PER_S = 1_000, 100_000_000, 10
PARTS_PER_FLUSH = 3
"""Answers, and telemetry of the engine and of the device; of events there are few."""


def measure_load(folder: Path, parts: int, rows: int) -> float:
    """CPU seconds to load so many parts of so many rows."""
    run_dir = folder / f"load-{parts}-{rows}"
    ids = list(range(100))
    for part in range(parts):
        answers = [
            Completion(f"{part}-{n}", "worker-0", 0, 8, finished_at_s=1.0, text="an answer", output_token_ids=ids)
            for n in range(rows)
        ]
        write_part(run_dir, "completions", f"part-{part:06d}", answers)
    with connect(run_dir / "load.duckdb", 10) as connection:
        connection.execute("set threads = 1")
        before = time.process_time()
        load_parts(connection, "scale", run_dir)
        return time.process_time() - before


def median_load(folder: Path, parts: int, rows: int, tries: int = 3) -> float:
    """The median of some."""
    return statistics.median(measure_load(folder / str(number), parts, rows) for number in range(tries))


def simulate(part_s: float, row_s: float, listing_s: float) -> list[dict[str, float]]:
    """What a loader needs for a thousand GPUs, by how long a worker gathers rows for a part. Arithmetic."""
    rows_per_s = GPUS * PROMPTS_PER_S
    found = []
    for flush_s in (2.0, GPUS / 50, 60.0, 300.0):
        parts_per_s = PARTS_PER_FLUSH * GPUS / flush_s
        parts = parts_per_s * PROMPTS / rows_per_s
        found.append(
            {
                "flush_s": flush_s,
                "parts_per_s": parts_per_s,
                "parts": parts,
                "loader_cores": parts_per_s * part_s + rows_per_s * row_s,
                "one_listing_s": parts * listing_s,
            }
        )
    return found


def simulate_tail(workers: int, sizes: list[int], *, largest_first: bool) -> float:
    """Share of all workers' time in which they are idle at the end, each claiming the next shard when it has none.

    A request takes a log-normal time, of which a worker has 64 at once.
    """
    dice = random.Random(1)
    costs = [sum(dice.lognormvariate(0, 1) for _ in range(size)) / 64 for size in sizes]
    order = sorted(range(len(sizes)), key=lambda shard: -sizes[shard]) if largest_first else range(len(sizes))
    free_s = [0.0] * workers
    for shard in order:
        heapq.heapreplace(free_s, free_s[0] + costs[shard])
    return 1 - sum(free_s) / (len(free_s) * max(free_s))


def compare_tails(prompts: int = 20_000) -> list[dict[str, float]]:
    """Idle tails of shards that are all alike, and of shards as runs of several workers have them."""
    found = []
    for workers in (4, 16, 64):
        alike, grown = [256] * (prompts // 256), [choose_size(0, 256, workers)]
        while sum(grown) < prompts:
            grown.append(choose_size(sum(grown), 256, workers))
        found.append(
            {
                "workers": workers,
                "prompts": prompts,
                "shards": len(grown),
                "alike": round(simulate_tail(workers, alike, largest_first=False), 4),
                "grown": round(simulate_tail(workers, grown, largest_first=False), 4),
                "grown_largest_first": round(simulate_tail(workers, grown, largest_first=True), 4),
            }
        )
    return found


def time_listing(folder: Path, names: int = 20_000) -> float:
    """Seconds a name."""
    parts = folder / "listing" / "parts" / "completions"
    parts.mkdir(parents=True)
    for name in range(names):
        os.close(os.open(parts / f"worker-{name:08d}-0000000000000000-000000.parquet", os.O_CREAT))
    return _time(lambda: list_part_names(folder / "listing", "completions")) / names


def _time(do: Callable[[], object]) -> float:
    started = time.process_time()
    do()
    return time.process_time() - started
