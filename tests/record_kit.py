"""Records and small helpers for tests of everything but engines."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from assayline.clock import RunClock
from assayline.evaluation.dispatcher import Dispatcher
from assayline.evaluation.drive import Listener, WorkerReport, drive_worker
from assayline.evaluation.worker import Worker, WorkOrder
from assayline.records import Completion, EngineEvent, Request
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.parts import PartWriter, count_rows, list_parts, write_part

ROOT = Path(__file__).resolve().parents[1]


def request_of(number: int, prompt_token_ids: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    ids, name = [*prompt_token_ids], f"{number:05d}"
    return Request(
        request_id=f"request-{name}",
        prompt_id=f"prompt-{name}",
        occurrence=0,
        repeat_index=0,
        prompt_token_ids=ids,
        sampling=sampling,
        rendered=f"say {number}",
    )


def completion_of(request_id: str, **values: Any) -> Completion:
    return Completion(request_id=request_id, worker="worker-0", engine_generation=0, window_requests=8, **values)


def write_shards(run_dir: Path, shards: int, per_shard: int, **sampling: Any) -> list[str]:
    """Shards of numbered requests; their ids."""
    numbers = iter(range(shards * per_shard))
    ids = []
    for shard in range(shards):
        requests = [request_of(next(numbers), **sampling) for _ in range(per_shard)]
        write_part(run_dir, "requests", f"shard-{shard:06d}", requests)
        ids += [request.request_id for request in requests]
    return ids


def rows_of(run_dir: Path, table: str) -> list[dict[str, Any]]:
    return [row for part in list_parts(run_dir, table) for row in pq.read_table(part).to_pylist()]


def fake_spec(**changes: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}}
    return parse_spec({"model": "fake", "prompts": prompts, "engine": {"backend": "fake"}, **changes})


class Work:
    """What an evaluation has for its workers, without the evaluation: every shard in the folder, read to the end."""

    def __init__(self, run_dir: Path, settings: Settings, *, is_closed: bool = True, **changes: Any) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.spec = fake_spec(**changes)
        self.writer = PartWriter(run_dir, "flow", settings.flush_rows, settings.flush_interval_s)
        self.dispatcher = Dispatcher(self.spec, run_dir, self.writer.add, lambda: pytest.fail("no chat is rendered"))
        self.generations: dict[str, int] = {}
        self.attempt = 1
        self.sent_before = 0
        self.clock = RunClock.start()
        self.notes: list[str] = []
        self.events: list[EngineEvent] = []
        for part in list_parts(run_dir, "requests"):
            self.add(part)
        if is_closed:
            self.dispatcher.close()

    def add(self, part: Path) -> None:
        self.dispatcher.add_shard(part, count_rows(part))

    def order(self, worker: str) -> WorkOrder:
        return WorkOrder(
            run_id="run",
            spec=self.spec,
            settings=self.settings,
            model=self.spec.model,
            model_id="fake-id",
            model_args={},
            clock=self.clock,
            worker=worker,
            attempt=self.attempt,
            sent_before=self.sent_before,
            first_generation=self.generations.get(worker, 0),
            log_folder=self.run_dir / "logs",
        )

    def drive(self, worker: str = "worker-0", launch: Any = Worker) -> WorkerReport:
        """Drives a worker to its end, and writes what is left."""
        listener = Listener(self.notes.append, self.notes.append, on_event=self.events.append)
        with self.writer:
            return drive_worker(self, worker, listener, launch)  # type: ignore[arg-type]

    def start(self, worker: str = "worker-0", launch: Any = Worker) -> threading.Thread:
        """The same in a daemon thread: a worker that does not end must not keep the tests from ending."""
        thread = threading.Thread(target=self.drive, args=[worker, launch], daemon=True)
        thread.start()
        return thread


def start_python(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """A second Python process; talk to it by its standard streams."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
