"""Query times over many runs: ten million requests in a thousand runs.

    python -m benchmarks.many_runs [--runs 1000] [--requests 10000] [--folder FOLDER]

The runs are synthetic (`invented_runs.py`), and their metrics are stored in batches. Times are CPU seconds, which vary
least on a busy machine:

- `question`: queries of the tables in `main`, over all runs;
- `comparison`: each macro that compares two runs or two configurations; every fiftieth run is of one configuration;
- `page`: the metrics printed at the end of a run (`read_metric_table`) and its report (`compose_run`),
  computed for one run among all others: the median over three runs.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psutil

from assayline.report.make import compose_run
from assayline.store.database import Connection, connect
from assayline.store.metrics import ensure_metrics, read_metric_table, store_metrics
from benchmarks.invented_runs import CONFIGURATIONS, invent_runs

MIB = 2**20
QUESTIONS = {
    "p95 of TTFT by day": """
        select date_trunc('day', started_at) as day, median(value)
        from metric_value where metric = 'ttft_s' and statistic = 'p95' group by day order by day
    """,
    "accuracy over time, with intervals": """
        select started_at, value, low, high from metric_value where metric = 'accuracy' order by started_at
    """,
    "tokens per second by setting": """
        select config_id, median(value), min(value), max(value)
        from metric_value where metric = 'output_tokens_per_s' group by config_id order by 2 desc
    """,
    "runs that lost time to failures": """
        select run_id, value from metric_value where metric = 'lost_s' and value > 0 order by value desc
    """,
    "the share of each night that was recovery": """
        select started_at, recovery_s / duration_s from run where recovery_s > 0 order by started_at
    """,
    "repeats of each configuration": "select config_id, count(*) from run where obstacle is null group by config_id",
    "a history": "from history((select name from run order by started_at limit 1))",
    "the failed requests of a run": """
        select error_kind, count(*) from request
        where run_id = getvariable('newest') and status = 'error' group by error_kind
    """,
}


def clock(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the second call: the first one reads the file."""
    work()
    started = time.process_time()
    work()
    return time.process_time() - started


def _fetch(connection: Connection, query: str, *values: str) -> list[Any]:
    return connection.execute(query, list(values)).fetchall()


def time_questions(connection: Connection) -> dict[str, float]:
    """Return CPU seconds by question."""
    connection.execute("set variable newest = (select max(run_id) from run)")
    return {name: clock(partial(_fetch, connection, query)) for name, query in QUESTIONS.items()}


def time_comparisons(connection: Connection) -> dict[str, float]:
    """Return CPU seconds of each macro that compares two runs or configurations."""
    query = (
        "select distinct function_name from duckdb_functions() where function_type = 'table_macro' and not internal "
        "and parameters[1] = 'candidate' order by function_name"
    )
    runs = connection.execute("select run_id, config_id from runs order by run_id").fetchall()
    first, other = runs[0], runs[min(CONFIGURATIONS, len(runs) - 1)]
    found = {}
    for (macro,) in connection.execute(query).fetchall():
        sides = (first[1], runs[1][1]) if macro == "compare_configs" else (first[0], other[0])
        call = f"from {macro}(?, ?)"
        found[macro] = clock(partial(_fetch, connection, call, *sides))
    return found


def time_pages(connection: Connection, run_ids: list[str]) -> dict[str, float]:
    """Return median CPU seconds of the output of one run."""

    def numbers(run_id: str) -> None:
        store_metrics(connection, [run_id])
        read_metric_table(connection, run_id)

    def report(run_id: str) -> None:
        compose_run(connection, run_id, None, Path())

    return {
        name: statistics.median(clock(partial(read, run_id)) for run_id in run_ids)
        for name, read in (("numbers", numbers), ("report", report))
    }


def measure(folder: Path, runs: int, requests: int) -> dict[str, Any]:
    """Run the benchmark on a new database in `folder`."""
    path = folder / "many.duckdb"
    with connect(path, 10) as connection:
        invent_runs(connection, runs, requests)
    bare_mib = path.stat().st_size / MIB
    started = time.process_time()
    with connect(path, 10) as connection:
        ensure_metrics(connection)
        stored_s = time.process_time() - started
        counts = "select (select count(*) from measured_runs), (select count(*) from metric_values)"
        [(measured, values)] = connection.execute(counts).fetchall()

    def open_ours() -> None:
        with connect(path, 10, read_only=True):
            pass

    opening_s = clock(open_ours) - clock(lambda: duckdb.connect(path, read_only=True).close())
    with connect(path, 10) as connection:
        run_ids = [run_id for (run_id,) in connection.execute("select run_id from runs order by run_id").fetchall()]
        return {
            "benchmark": "many_runs",
            "runs": runs,
            "requests": runs * requests,
            "measured_runs": measured,
            "metric_values": values,
            "store_cpu_s_per_run": stored_s / runs,
            "database_mib": path.stat().st_size / MIB,
            "database_mib_without_metrics": bare_mib,
            "opening_cpu_s": opening_s,
            "question_cpu_s": time_questions(connection),
            "comparison_cpu_s": time_comparisons(connection),
            "page_cpu_s": time_pages(connection, run_ids[-3:]),
            "duckdb": duckdb.__version__,
            "cores": len(os.sched_getaffinity(0)),
            "memory_mib": round(psutil.virtual_memory().total / MIB),
        }


def print_found(found: dict[str, Any]) -> None:
    print(f"{found['requests']:,} requests in {found['runs']:,} runs; DuckDB {found['duckdb']}, {found['cores']} cores")
    print(f"Database {found['database_mib']:,.0f} MiB, {found['database_mib_without_metrics']:,.0f} without metrics")
    print(f"Storing a run's metrics: {found['store_cpu_s_per_run']:.3f} CPU-s; opening: {found['opening_cpu_s']:.3f}")
    for kind in ("question", "comparison", "page"):
        for name, cpu_s in found[f"{kind}_cpu_s"].items():
            print(f"{kind}: {name}: {cpu_s:.3f} CPU-s")


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return {name: rounded(cell) for name, cell in value.items()} if isinstance(value, dict) else value


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="number of runs, at least 10")
    parser.add_argument("--requests", type=int, default=10_000, help="requests per run, at least 10")
    parser.add_argument("--folder", type=Path, help="folder of the database, 4 GB by default (default: temporary)")
    options = parser.parse_args(arguments)
    if options.runs < 10 or options.requests < 10:
        parser.error("--runs and --requests must be 10 or more")
    folder = Path(tempfile.mkdtemp(prefix="assayline-many-runs-", dir=options.folder))
    try:
        found = measure(folder, options.runs, options.requests)
    finally:
        shutil.rmtree(folder)
    print_found(found)
    print(json.dumps(rounded(found)))


if __name__ == "__main__":
    main()
