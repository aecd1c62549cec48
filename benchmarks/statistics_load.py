"""Part `load` of `benchmarks.statistics`: intervals of latency percentiles and of throughput, by the SQL.

Latencies are the sojourn times of a stationary M/M/1 queue, which are exponential: its load is the arrival rate, as it
serves one request a second on average.
"""

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np

from assayline.store.database import apply_schema
from assayline.store.metrics import ensure_metrics

Dice = np.random.Generator
Row = dict[str, Any]
RUNS = 200
WARM = 5_000
"""Requests before those of a run with bursts."""
PERCENTILES = (0.5, 0.95, 0.99)
LOADS = ((0.0, False), (0.5, False), (0.8, False), (0.9, False), (0.5, True), (0.8, True))
"""Loads, and whether requests come in bursts (gamma, coefficient of variation 3)."""


def draw_queue(dice: Dice, load: float, requests: int, *, has_bursts: bool = False) -> np.ndarray:
    """Draw runs × requests sojourn times (Lindley); with a load of 0 they are independent."""
    waited = np.where(dice.random(RUNS) < load, dice.exponential(1 / (1 - load), RUNS), 0)
    found = np.empty((requests + has_bursts * WARM, RUNS))
    for one in found:
        one[:] = waited + dice.standard_exponential(RUNS)
        gaps = dice.gamma(1 / 9, 9, RUNS) if has_bursts else dice.standard_exponential(RUNS)
        waited = np.maximum(0, one - gaps / load) if load else 0 * waited
    return np.ascontiguousarray(found[-requests:].T)


def store_runs(began: np.ndarray, ended: np.ndarray, arrival: str = "poisson") -> duckdb.DuckDBPyConnection:
    """Return a database with these runs × requests, of which each sends at `began`, and their metrics."""
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    runs, requests = ended.shape
    drawn = {"run_id": np.repeat(np.arange(runs), requests), "request": np.tile(np.arange(requests), runs)}
    connection.register("drawn", drawn | {"began": began.ravel(), "ended": ended.ravel()})
    connection.execute(
        """
        create temp table answers as select run_id::varchar as run_id, request, began, ended from drawn;
        insert into raw.runs (run_id, name, prompt_set, model, spec_hash, spec_json, assayline_version, host_name,
            attempt, state, started_at)
        select distinct run_id, '', '', '', '', '{}', '', '', 1, 'completed', now() from answers;
        insert into raw.requests (run_id, request_id, prompt_id, occurrence, repeat_index, sampling_json)
        select run_id, request, 'p', 0, 0, '{}' from answers;
        insert into raw.completions (run_id, request_id, worker, engine_generation, window_requests, arrived_at_s,
            sent_at_s, finished_at_s, output_tokens)
        select run_id, request, 'w', 0, 1, began, began, ended, 1 from answers;
        """
    )
    query = "insert into raw.loads (run_id, arrival, warmup_s, cooldown_s) select run_id, ?, 0, 0 from raw.runs"
    connection.execute(query, [arrival])
    ensure_metrics(connection)
    return connection


def measure_latency(dice: Dice) -> Iterator[Row]:
    """Share of 200 runs a cell whose interval holds the true percentile, and of runs that have an interval."""
    for (load, has_bursts), requests in itertools.product(LOADS, (2_000, 10_000)):
        latencies = draw_queue(dice, load, requests, has_bursts=has_bursts)
        began = np.broadcast_to(np.arange(requests, dtype=float), latencies.shape)
        found = store_runs(began, began + latencies).execute(
            "select replace(statistic, 'p', '')::double / 100 as percentile, low, high from metric_values "
            "where metric = 'e2e_s'"
        )
        rows = np.array([[np.nan if each is None else each for each in row] for row in found.fetchall()], float)
        row: Row = {"load": f"{load:.0%}{', bursts' * has_bursts}", "requests": requests}
        pooled = draw_queue(dice, load, 20_000, has_bursts=True) if has_bursts else None
        for percentile in PERCENTILES:
            low, high = rows[np.isclose(rows[:, 0], percentile), 1:].T
            given = ~np.isnan(low)
            true = -math.log(1 - percentile) / (1 - load) if pooled is None else np.quantile(pooled, percentile)
            holds = ((low <= true) & (true <= high))[given]
            share = f"{holds.mean():.1%}" if given.any() else "–"
            row[f"p{100 * percentile:.0f}: holds, given"] = f"{share}, {given.mean():.1%}"
        yield row


def measure_rates(dice: Dice) -> Iterator[Row]:
    """Coverage of the interval of throughput in an open loop, ten requests a second: 200 runs a cell.

    Two rates: half as many or half as many more, for about 300 requests.
    """
    for arrivals in ("Poisson", "bursts (gamma, cv 3)", "two rates"):
        row: Row = {"arrivals": arrivals}
        for requests in (2_000, 10_000):
            gaps = dice.standard_exponential((RUNS, requests)) / 10
            if arrivals == "two rates":
                changes = np.cumsum(dice.random((RUNS, requests)) < 1 / 300, axis=1) + dice.integers(0, 2, (RUNS, 1))
                gaps = gaps * np.where(changes % 2, 0.5, 1.5)
            elif arrivals != "Poisson":
                gaps = dice.gamma(1 / 9, 9 / 10, (RUNS, requests))
            ended = np.cumsum(gaps, axis=1)
            connection = store_runs(ended, ended)
            found = connection.execute(
                "select run_id::int as run, high / value - 1 as half_share from metric_values "
                "where metric = 'requests_per_s' and high is not null"
            ).fetchnumpy()
            rate = requests / ended[found["run"], -1]
            row[f"{requests:,} requests"] = float((abs(rate - 10) <= found["half_share"] * rate).mean())
        yield row


SLOTS = 32


def draw_closed(dice: Dice, requests: int, *, changes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draw when runs × requests began and ended in 32 slots, of 1 s each on average (gamma, cv 0.5).

    With changes, all that is sent takes 1.3 s or 0.7 s on average, each for about 40 s.
    """
    began, ended = (np.empty((RUNS, requests)) for _ in range(2))
    for run in range(RUNS):
        turns = np.cumsum(dice.exponential(40, 200)) if changes else np.array([np.inf])
        first, free = int(dice.integers(2)), [0.0] * SLOTS
        for request, service in enumerate(dice.gamma(4, 0.25, requests).tolist()):
            began[run, request] = at = heapq.heappop(free)
            is_slow = (first + int(np.searchsorted(turns, at))) % 2
            ended[run, request] = at + service * ((1.3 if is_slow else 0.7) if changes else 1)
            heapq.heappush(free, ended[run, request])
    return began, ended


def measure_closed_loops(dice: Dice) -> Iterator[Row]:
    """Mean throughput of a closed loop over the true rate, and coverage of its interval: 200 runs a cell."""
    for speed, changes in (("one speed", False), ("two speeds", True)):
        true = SLOTS * ((1 / 1.3 + 1 / 0.7) / 2 if changes else 1.0)
        for requests in (300, 1_000, 4_000):
            connection = store_runs(*draw_closed(dice, requests, changes=changes), arrival="concurrency")
            found = connection.execute(
                "select value as requests_per_s, high / value - 1 as half_share from metric_values "
                "where metric = 'requests_per_s' and high is not null"
            ).fetchnumpy()
            rate, half = found["requests_per_s"], found["half_share"]
            row: Row = {"speed": speed, "requests": requests, "rate / true rate": float(rate.mean() / true)}
            yield row | {"interval holds": float((abs(rate - true) <= half * rate).mean()), "given": len(rate) / RUNS}
