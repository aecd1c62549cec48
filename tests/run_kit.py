"""Runs on the fake engine for the tests of resuming and rebuilding: begun, left in the middle, looked at."""

import atexit
import functools
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from record_kit import completion_of

from assayline.evaluation.begin import Evaluation, RunResult, begin_evaluation
from assayline.evaluation.drive import Listener, drive_worker
from assayline.evaluation.order import heaviest_first, read_shard
from assayline.records import EngineEvent, Request
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.parts import list_parts, write_part

FAKE = {"backend": "fake"}


def work(evaluation: Evaluation, index: int = 0) -> int:
    """Lets a worker answer all that there is; how much that was."""
    return drive_worker(evaluation, f"worker-{index}", Listener()).answered_requests


@functools.cache
def _reader() -> duckdb.DuckDBPyConnection:
    atexit.register(_reader.cache_clear)
    return duckdb.connect()


def query(settings: Settings, sql: str) -> list[tuple[Any, ...]]:
    """What people read with a client of theirs: to one that is there a file is attached in half the time."""
    connection = _reader()
    connection.execute(f"attach '{settings.database_path}' as looked_at (read_only)")
    try:
        connection.execute("use looked_at")
        return connection.execute(sql).fetchall()
    finally:
        connection.execute("use memory")
        connection.execute("detach looked_at")


def vanish(evaluation: Evaluation) -> None:
    """What the kernel does when a flow's process is killed."""
    evaluation.lock.release()


def answer_some(evaluation: Evaluation, *counts: int) -> list[str]:
    """As a killed worker leaves it: of the first shard the first `counts[0]` requests are answered, and so on."""
    shards = sorted(list_parts(evaluation.run_dir, "requests"), key=heaviest_first)
    ids = []
    for count, shard in zip(counts, shards, strict=False):
        requests: list[Request] = list(read_shard(shard))[:count]
        write_part(
            evaluation.run_dir,
            "completions",
            f"killed-{shard.stem}",
            [completion_of(request.request_id, text="early", finish_reason="stop") for request in requests],
        )
        ids += [request.request_id for request in requests]
    write_part(evaluation.run_dir, "engine_events", "killed", [EngineEvent("worker-0", 1, 3, "opened", 0.1, 0.1)])
    return ids


def lose_answers(evaluation: Evaluation, count: int) -> None:
    """As if so many stored answers had got lost."""
    evaluation.writer.flush()
    [part, *others] = [part for part in list_parts(evaluation.run_dir, "completions") if "prepare" not in part.name]
    table = pa.concat_tables([pq.read_table(each, partitioning=None) for each in (part, *others)])
    for each in (part, *others):
        each.unlink()
    pq.write_table(table.slice(count), part.with_name("left.parquet"))


def begin_and_vanish(spec: EvalSpec, settings: Settings, *counts: int) -> Evaluation:
    """A run that was prepared, answered so far, and killed."""
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    answer_some(evaluation, *counts)
    vanish(evaluation)
    return evaluation


def complete(spec: EvalSpec, settings: Settings, resume: str = "auto") -> RunResult:
    """A run from its beginning, or from where it was left, to its end."""
    evaluation = begin_evaluation(spec, settings, resume)
    counts = evaluation.prepare()
    if not evaluation.is_answered:
        work(evaluation)
    return evaluation.finish(counts)


def settings_in(folder: Path) -> Settings:
    """Settings whose folders are in this one, quick to load and to write."""
    return Settings(data_dir=folder / "data", lock_dir=folder / "locks", flush_interval_s=0.2, load_interval_s=0.5)


def copy_run(run_dir: Path, settings: Settings) -> Path:
    """A run's folder and its database, copied to where a test may change them; the run's new folder."""
    data_dir = run_dir.parents[1]
    shutil.copytree(data_dir, settings.data_dir, dirs_exist_ok=True)
    return settings.data_dir / run_dir.relative_to(data_dir)


def list_runs(settings: Settings) -> list[str]:
    return sorted(path.name for path in (settings.data_dir / "runs").glob("*"))


def part_of(evaluation: Evaluation, table: str, name: str) -> Path:
    return evaluation.run_dir / "parts" / table / f"{name}.parquet"
