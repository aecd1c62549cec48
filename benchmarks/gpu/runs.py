"""Evaluations without Prefect, in this process or in a separate process that can be killed.

    python -m benchmarks.gpu.runs SPEC.json DATA_FOLDER [GATE]

runs or resumes the spec and prints one line of JSON. With GATE, a path, it waits with a warm engine until the file
exists, so that several processes can start together.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assayline.records import EngineEvent
from assayline.run.begin import begin_evaluation
from assayline.run.drive import LOG, drive_worker
from assayline.run.watch import RunReport
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.manifest import AUTO
from benchmarks.gpu.setup import Row

ROOT = Path(__file__).resolve().parents[2]
GATE_S = 300.0
GATE_POLL_S = 0.05


def run_spec(spec: EvalSpec, settings: Settings, on_event: Callable[[EngineEvent], None] = lambda event: None) -> str:
    """Complete an evaluation, resuming an unfinished one. Return the run's id. Errors are raised."""
    evaluation = begin_evaluation(spec, settings, AUTO)
    counts: list[Any] = []
    preparing = threading.Thread(target=lambda: counts.append(evaluation.prepare()))
    preparing.start()
    try:
        report = RunReport(LOG)
        report.hear = lambda worker, log, event: on_event(event)  # type: ignore[method-assign]
        drive_worker(evaluation, "worker-0", LOG, report)
        preparing.join()
        return evaluation.finish(counts[0]).run_id
    except BaseException:
        evaluation.abandon("failed")
        raise


def start_run(spec: Row, folder: Path, gate: Path | None = None) -> subprocess.Popen[str]:
    """Start the evaluation in a separate process, which can be killed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "benchmarks.gpu.runs", str(folder / "spec.json"), str(folder)]
    command += [] if gate is None else [str(gate)]
    with (folder / "run.log").open("a") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)


def query(settings: Settings, sql: str, *values: Any) -> list[Row]:
    """Query the run's database."""
    with connect(settings.database_path, 30, read_only=True) as connection:
        found = connection.execute(sql, list(values))
        names = [column[0] for column in found.description or []]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def describe_run(settings: Settings, run_id: str) -> Row:
    """Return the integrity of a run and the history of its engines."""
    [counts] = query(
        settings,
        "select is_sound, count(*) as requests, count(*) filter (where completions.error_kind is null) as answered "
        "from request_integrity join completions using (run_id) where run_id = ? group by is_sound",
        run_id,
    )
    engines = query(
        settings,
        "select engine_generation as engine, ending, failure_kind, "
        "left(split_part(failure_message, chr(10), 1), 160) as failure_message, max_concurrency as window_requests, "
        "max_num_batched_tokens, gpu_memory_utilization, ok_requests, round(recovery_s, 2) as recovery_s, "
        "round(lost_s, 2) as lost_s from engine where run_id = ? order by engine_generation",
        run_id,
    )
    contexts = query(
        settings,
        "select distinct (details_json ->> '$.max_model_len')::integer as tokens from raw.engine_events "
        "where run_id = ? and event = 'opened' order by tokens",
        run_id,
    )
    return {**counts, "engines": engines, "context_tokens": [context["tokens"] for context in contexts]}


def list_parts(folder: Path) -> int:
    """Count the part files with answers of the runs in a data folder."""
    return len(list(folder.glob("data/runs/*/parts/completions/*.parquet")))


def wait_at(gate: Path, folder: Path) -> Callable[[EngineEvent], None]:
    """Wait for the gate with the first warm engine, which the file `warm` in the run's folder signals."""

    def wait(event: EngineEvent) -> None:
        if event.event != "warmed_up":
            return
        (folder / "warm").touch()
        until = time.monotonic() + GATE_S
        while not gate.exists() and time.monotonic() < until:
            time.sleep(GATE_POLL_S)

    return wait


def open_gate(gate: Path, folders: list[Path], runs: list[subprocess.Popen[str]]) -> None:
    """Open the gate when all runs are warm, or one of them has ended."""
    while not all((folder / "warm").exists() for folder in folders) and all(run.poll() is None for run in runs):
        time.sleep(GATE_POLL_S)
    gate.touch()


def main() -> None:
    folder, gate = Path(sys.argv[2]), sys.argv[3:]
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks", flush_interval_s=0.3, device_wait_s=20)
    spec = parse_spec(json.loads(Path(sys.argv[1]).read_text()))
    run_id = run_spec(spec, settings, wait_at(Path(gate[0]), folder)) if gate else run_spec(spec, settings)
    print(json.dumps({"run_id": run_id, **describe_run(settings, run_id)}), flush=True)


if __name__ == "__main__":
    main()
