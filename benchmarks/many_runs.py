"""What questions over many runs cost: every model over ten million requests in a thousand runs, and one run's page.

    python -m benchmarks.many_runs [--runs 1000] [--requests 10000] [--computed-runs 50] [--folder FOLDER]

The runs are invented (`invented_runs.py`) and their metrics kept, one run after the other as at a run's end. Then each
view that people query is read over everything, all rows and columns, as `select count(*), bit_xor(hash(view)) from
view` does; and by CPU-seconds, which a busy machine changes least:

- `kept`: over all runs, with their metrics kept. Models that are not kept are computed from all of the requests.
- `computed`: over `--computed-runs` runs, nothing kept, as it was before metrics were.
- `one run`: the rows of one run whose metrics are not kept, among all the others.
- then each macro that compares two runs, or two configurations, of which every fiftieth run is one.

`one run's page` is what a run's end prints (`read_metric_table`) and what its report is made of (`read_report`), in
seconds: the median over ten runs whose metrics are kept, and over three whose are not.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil

from assayline.report.run.rows import read_report
from assayline.store.database import Connection, connect
from assayline.store.metrics import forget_metrics, keep_metrics, list_unkept, read_kept, read_metric_table, stage_run
from benchmarks.invented_runs import CONFIGURATIONS, invent_runs

GOAL_CPU_S = 10.0
GOAL_PAGE_S = 0.2
MIB = 2**20
MORE_ARGUMENTS = {"show_flips": ", 1, 4"}
"""What a macro wants beside its two sides: here, the four prompts that lost most."""


@dataclass(frozen=True)
class ModelTime:
    """CPU-seconds of reading one model."""

    model: str
    rows: int
    kept_s: float
    one_run_s: float | None
    computed_s: float | None


def make_database(path: Path, runs: int, requests: int) -> None:
    with connect(path, 10) as connection:
        invent_runs(connection, runs, requests)


def keep_all(path: Path) -> tuple[float, int]:
    """Keeps the metrics of all runs; CPU-seconds per run, and how many were kept."""
    started = time.process_time()
    kept = 0
    with connect(path, 10) as connection:
        run_ids = list_unkept(connection)
        for run_id in run_ids:
            with stage_run(connection, run_id):
                kept += keep_metrics(connection, run_id)
    return (time.process_time() - started) / len(run_ids), kept


def list_views(connection: Connection) -> list[str]:
    """Views as people query them."""
    query = "select view_name from duckdb_views() where schema_name = 'main' and not internal order by view_name"
    return [name for (name,) in connection.execute(query).fetchall()]


def time_views(path: Path, run_id: str | None = None) -> dict[str, tuple[int, float]]:
    """Rows and CPU-seconds of each view, all columns read; of one run, those that have rows of runs."""
    found = {}
    with connect(path, 10, read_only=True) as connection:
        for view in list_views(connection):
            columns = [name for name, *_ in connection.execute(f"describe {view}").fetchall()]
            if run_id is not None and "run_id" not in columns:
                continue
            where = "" if run_id is None else f"where run_id = '{run_id}'"
            started = time.process_time()
            query = f"select count(*), bit_xor(hash(rows)) from (select * from {view} {where}) as rows"  # noqa: S608
            rows = connection.execute(query).fetchall()[0][0]
            found[view] = (int(rows), time.process_time() - started)
    return found


def time_comparisons(path: Path) -> dict[str, float]:
    """CPU-seconds of each macro that holds one run, or one configuration, against another."""
    query = (
        "select distinct function_name from duckdb_functions() where function_type = 'table_macro' and not internal "
        "and parameters[1] = 'candidate' order by function_name"
    )
    found = {}
    with connect(path, 10, read_only=True) as connection:
        runs = connection.execute("select run_id, config_id from runs order by run_id").fetchall()
        first, other = runs[0], runs[min(CONFIGURATIONS, len(runs) - 1)]
        sides = {"compare_configs": (first[1], runs[1][1])}
        for (macro,) in connection.execute(query).fetchall():
            started = time.process_time()
            more = MORE_ARGUMENTS.get(macro, "")
            connection.execute(f"from {macro}(?, ?{more})", list(sides.get(macro, (first[0], other[0])))).fetchall()
            found[macro] = time.process_time() - started
    return found


def time_pages(path: Path, run_ids: list[str], read: Callable[[Connection, str], Any], staged: bool) -> float:
    """Median seconds of what `read` shows of a run. A run whose metrics are not kept is staged, as at its end."""
    seconds = []
    with connect(path, 10) as connection:
        for run_id in run_ids:
            started = time.monotonic()
            with (stage_run if staged else read_kept)(connection, run_id):
                read(connection, run_id)
            seconds.append(time.monotonic() - started)
    return statistics.median(seconds)


def measure(folder: Path, runs: int, requests: int, computed_runs: int) -> dict[str, Any]:
    """Everything, on new databases in `folder`."""
    path, small = folder / "many.duckdb", folder / "few.duckdb"
    make_database(path, runs, requests)
    bare_mib = path.stat().st_size / MIB
    keep_s, kept = keep_all(path)
    mib = path.stat().st_size / MIB
    everything = time_views(path)
    with connect(path, 10, read_only=True) as connection:
        run_ids = [run_id for (run_id,) in connection.execute("select run_id from runs order by run_id").fetchall()]
    comparisons = time_comparisons(path)
    readers = {"numbers": read_metric_table, "report": read_report}
    pages = {name: time_pages(path, run_ids[-10:], read, staged=False) for name, read in readers.items()}
    last = run_ids[-3:]
    with connect(path, 10) as connection:
        for run_id in last:
            forget_metrics(connection, run_id)
    one_run = time_views(path, last[-1])
    computed_pages = {name: time_pages(path, last, read, staged=True) for name, read in readers.items()}
    computed: dict[str, tuple[int, float]] = {}
    if computed_runs:
        make_database(small, computed_runs, requests)
        computed = time_views(small)
    models = [
        ModelTime(name, rows, cpu_s, *(found.get(name, (0, None))[1] for found in (one_run, computed)))
        for name, (rows, cpu_s) in everything.items()
    ]
    return {
        "benchmark": "many_runs",
        "runs": runs,
        "requests": runs * requests,
        "computed_runs": computed_runs,
        "kept_runs": kept,
        "keep_cpu_s_per_run": keep_s,
        "database_mib": mib,
        "database_mib_without_kept": bare_mib,
        "models": [asdict(model) for model in models],
        "comparison_cpu_s": comparisons,
        "page_s": pages,
        "page_s_not_kept": computed_pages,
        "over_goal": [
            *(model.model for model in models if model.kept_s > GOAL_CPU_S),
            *(name for name, cpu_s in comparisons.items() if cpu_s > GOAL_CPU_S),
        ],
        "pages_over_goal": [name for name, seconds in pages.items() if seconds > GOAL_PAGE_S],
        "duckdb": duckdb.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": round(psutil.virtual_memory().total / MIB),
    }


def print_found(found: dict[str, Any]) -> None:
    print(f"{found['requests']:,} requests in {found['runs']:,} runs; DuckDB {found['duckdb']}, {found['cores']} cores")
    print(f"Database {found['database_mib']:,.0f} MiB, {found['database_mib_without_kept']:,.0f} without kept metrics")
    print(f"Keeping a run's metrics: {found['keep_cpu_s_per_run']:.2f} CPU-s\n")
    computed = f"computed, {found['computed_runs']} runs" if found["computed_runs"] else ""
    print(f"{'model':<20} {'rows':>12} {'kept, CPU-s':>12} {'one run, CPU-s':>15} {computed:>20}")
    for model in found["models"]:
        one_run, before = ("" if model[key] is None else f"{model[key]:.3g}" for key in ("one_run_s", "computed_s"))
        print(f"{model['model']:<20} {model['rows']:>12,} {model['kept_s']:>12.2f} {one_run:>15} {before:>20}")
    print()
    for name, cpu_s in found["comparison_cpu_s"].items():
        print(f"{name} of two: {cpu_s:.2f} CPU-s")
    for name, seconds in found["page_s"].items():
        print(f"one run's page, {name}: {seconds:.3f} s; {found['page_s_not_kept'][name]:.2f} s where it is not kept")
    over = ", ".join(found["over_goal"]) or "none"
    print(f"Over {GOAL_CPU_S:g} CPU-s: {over}")


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(cell) for name, cell in value.items()}
    return [rounded(cell) for cell in value] if isinstance(value, list) else value


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="at least 10")
    parser.add_argument("--requests", type=int, default=10_000, help="per run, at least 10")
    parser.add_argument("--computed-runs", type=int, default=50, help="0 leaves the comparison out")
    parser.add_argument("--folder", type=Path, help="for the databases, some 4 GB by default (default: temporary)")
    options = parser.parse_args(arguments)
    if options.runs < 10 or options.requests < 10 or options.computed_runs < 0:
        parser.error("--runs and --requests must be 10 or more, --computed-runs 0 or more")
    folder = Path(tempfile.mkdtemp(prefix="assayline-many-runs-", dir=options.folder))
    try:
        found = measure(folder, options.runs, options.requests, options.computed_runs)
    finally:
        shutil.rmtree(folder)
    print_found(found)
    print(json.dumps(rounded(found)))


if __name__ == "__main__":
    main()
