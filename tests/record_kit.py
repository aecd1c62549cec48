"""Records and small helpers for tests of everything but engines."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from assayline.clock import RunClock
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.shards.queue import ShardQueue
from assayline.records import Completion, Request
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.parts import list_parts, write_part

ROOT = Path(__file__).resolve().parents[1]


def request_of(number: int, prompt_token_ids: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    ids, name = [*prompt_token_ids], f"{number:05d}"
    return Request(f"request-{name}", f"prompt-{name}", 0, 0, ids, sampling, f"say {number}")


def completion_of(request_id: str, **values: Any) -> Completion:
    return Completion(request_id, "worker-0", 0, 8, **values)


def fill_queue(run_dir: Path, shards: int, per_shard: int, **sampling: Any) -> list[str]:
    """A closed queue of numbered requests; their ids."""
    queue = ShardQueue(run_dir)
    queue.reset()
    numbers = iter(range(shards * per_shard))
    ids = []
    for shard in range(shards):
        requests = [request_of(next(numbers), **sampling) for _ in range(per_shard)]
        write_part(run_dir, "requests", f"shard-{shard:06d}", requests)
        ids += [request.request_id for request in requests]
    queue.close()
    return ids


def rows_of(run_dir: Path, table: str) -> list[dict[str, Any]]:
    return [row for part in list_parts(run_dir, table) for row in pq.read_table(part).to_pylist()]


def fake_spec(**changes: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}}
    return parse_spec({"model": "fake", "prompts": prompts, "engine": {"backend": "fake"}, **changes})


def order_of(run_dir: Path, settings: Settings, worker: str = "worker-0", **changes: Any) -> WorkOrder:
    return WorkOrder("run", run_dir, fake_spec(**changes), settings, "fake", "fake-id", {}, RunClock.start(), worker)


def start_python(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """A second Python process; talk to it by its standard streams."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
