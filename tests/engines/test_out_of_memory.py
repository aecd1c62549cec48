"""Real memory failures of real vLLM, and what is left of a run after them: everything.

The address space of the engine's process is limited (the setting engine_memory_limit_bytes), or its control group is:
then torch's own allocator fails inside a forward pass, or the kernel kills the process. Long prompts make a step's
activations grow with the window, so that a wide one dies and a narrower one lives.
"""

import itertools
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from engine_helpers import ROOT, Asker

from assayline.clock import RunClock
from assayline.engines.devices import cuda_driver_answers
from assayline.records import EngineEvent, Request
from assayline.settings import Settings
from assayline.shards import ShardQueue
from assayline.spec_file import parse_spec
from assayline.store.parts import list_parts, write_part
from assayline.worker import WorkOrder, run_worker

pytestmark = pytest.mark.vllm

PROMPT_TOKENS = 216
WINDOW = 512
ARGS = {
    "max_model_len": 256,
    "max_num_seqs": WINDOW,
    "max_num_batched_tokens": 2**18,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**29,
    "enable_prefix_caching": False,
}
SAMPLING = {"temperature": 0, "max_tokens": 12}
ROOM_BYTES = 550 * 2**20
"""What a limit leaves beyond a warm engine: a window of 512 takes twice as much, one of 128 half."""


@dataclass
class Run:
    """A worker's run of the same requests in a folder of its own."""

    folder: Path
    settings: Settings
    model: Path
    requests: list[Request]

    def order(self, **engine: Any) -> WorkOrder:
        queue = ShardQueue(self.folder)
        queue.reset()
        write_part(self.folder, "requests", "shard-000000", self.requests)
        queue.close()
        spec = parse_spec(
            {
                "model": str(self.model),
                "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "unused"}]}},
                "sampling": SAMPLING,
                "engine": {"window": WINDOW, "args": ARGS, **engine},
            }
        )
        return WorkOrder(
            "run", self.folder, spec, self.settings, str(self.model), "tiny", {}, RunClock.start(), "worker-0"
        )

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for part in list_parts(self.folder, table) for row in pq.read_table(part).to_pylist()]

    def texts(self) -> dict[str, str]:
        rows = self.rows("completions")
        assert sorted(row["request_id"] for row in rows) == sorted(r.request_id for r in self.requests), "once each"
        assert all(row["error_kind"] is None for row in rows)
        return {row["request_id"]: row["text"] for row in rows}

    def history(self) -> list[str]:
        """The engines' events as a person reads them."""
        rows = sorted(self.rows("engine_events"), key=lambda row: row["at_s"])
        return [
            f"{row['at_s']:6.1f} s  engine {row['engine_generation']}  {row['event']}  "
            + (row["message"] or "").partition("\n")[0]
            for row in rows
        ]


def long_requests(asker: Asker) -> list[Request]:
    questions = itertools.cycle([asker.ids_of(row["question"]) for row in asker.rows])
    requests = []
    for _ in range(WINDOW):
        ids: list[int] = []
        while len(ids) < PROMPT_TOKENS:
            ids += next(questions)
        requests.append(asker.send(ids[-PROMPT_TOKENS:], **SAMPLING))
    return requests


def run_of(requests: list[Request], model: Path, folder: Path, **settings: Any) -> Run:
    folders = {"data_dir": folder / "data", "lock_dir": folder / "locks"}
    return Run(folder / "run", Settings(**folders, flush_interval_s=0.2, **settings), model, requests)


@dataclass
class Undisturbed:
    """Texts without any limit, and the engine's memory once it is warm, in bytes."""

    texts: dict[str, str]
    requests: list[Request]
    model: Path
    address_space: int
    anonymous: int
    """What no file backs: a control group cannot take it away, and may have none of a library that others use."""


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Path, asker: Asker, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    run = run_of(long_requests(asker), tiny_model, tmp_path_factory.mktemp("undisturbed"))
    sizes: dict[str, int] = {}

    def measure(event: EngineEvent) -> None:
        if event.event == "warmed_up":
            hosts = [p for p in psutil.Process().children() if "assayline.engines.host" in p.cmdline()]
            host = max(hosts, key=lambda process: process.create_time())  # other tests keep engines open
            for line in Path(f"/proc/{host.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("VmPeak", "RssAnon"):
                    sizes[name] = int(value.split()[0]) * 1024

    run_worker(run.order(), lambda _: None, lambda _: None, measure)
    return Undisturbed(run.texts(), run.requests, tiny_model, sizes["VmPeak"], sizes["RssAnon"])


def assert_recovered(run: Run, undisturbed: Undisturbed, how: str) -> None:
    """Every request answered once, with the text of an undisturbed run, by engines that were halved until one lived."""
    print("\n".join(run.history()))
    assert run.texts() == undisturbed.texts
    events = sorted(run.rows("engine_events"), key=lambda row: row["at_s"])
    failed = [json.loads(row["details_json"]) for row in events if row["event"] == "failed"]
    assert failed and {death["kind"] for death in failed} == {"host_oom"}
    assert failed[0]["in_flight_requests"] > WINDOW - 10, "hardly anything had finished"
    windows = [row["window_requests"] for row in run.rows("completions")]
    assert windows.count(WINDOW) <= WINDOW - failed[0]["in_flight_requests"], "and nothing of what was lost is kept"
    assert how in next(row["message"] for row in events if row["event"] == "failed")
    opened = [json.loads(row["details_json"])["window_requests"] for row in events if row["event"] == "opened"]
    assert len(opened) == len(failed) + 1 and opened[0] == WINDOW
    assert all(after <= before // 2 for before, after in itertools.pairwise(opened))
    assert set(windows) <= set(opened)


def test_a_window_that_does_not_fit_is_halved_until_it_does_and_no_text_changes(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """torch's allocator fails in the forward pass."""
    limit = undisturbed.address_space + ROOM_BYTES
    run = run_of(undisturbed.requests, undisturbed.model, tmp_path, engine_memory_limit_bytes=limit)
    run_worker(run.order(), lambda _: None, lambda _: None)
    assert_recovered(run, undisturbed, "DefaultCPUAllocator: can't allocate memory")


CHILD = """
import os, pickle, sys
from pathlib import Path
from assayline.worker import run_worker
Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
run_worker(pickle.loads(Path(sys.argv[1]).read_bytes()), print, str)
"""
WORKER_BYTES = 300 * 2**20


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of this test's own, where the machine lets us make one."""
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = parent / f"assayline-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        if limit_file(group):
            yield group
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("this machine's memory control groups cannot be written, so the kernel cannot be made to kill")


def limit_file(group: Path) -> Path | None:
    files = [group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()]
    return files[0] if files else None


def test_an_engine_that_the_kernel_kills_for_memory_is_followed_by_a_smaller_one(
    undisturbed: Undisturbed, tmp_path: Path, memory_group: Path
) -> None:
    """A SIGKILL without a word: the control group's count of kills tells what it was."""
    limit = limit_file(memory_group)
    assert limit is not None
    limit.write_text(str(WORKER_BYTES + undisturbed.anonymous + ROOM_BYTES))
    run = run_of(undisturbed.requests, undisturbed.model, tmp_path)
    order = tmp_path / "order"
    order.write_bytes(pickle.dumps(run.order()))
    worker = subprocess.run(
        [sys.executable, "-c", CHILD, str(order), str(memory_group)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert worker.returncode == 0, worker.stderr
    assert_recovered(run, undisturbed, "died of signal SIGKILL")


BALLAST = """
import sys, torch
keep_mib = int(sys.argv[1])
free, _ = torch.cuda.mem_get_info()
ballast = torch.empty(max(free - (keep_mib << 20), 0), dtype=torch.uint8, device="cuda")
print("loaded", flush=True)
sys.stdin.read()
"""
ROOM_MIB = 300


@pytest.mark.gpu
@pytest.mark.skipif(not cuda_driver_answers(), reason="no NVIDIA driver answers on this machine")
def test_a_gpu_that_another_process_fills_is_gone_on_with_in_smaller_windows(
    tiny_model: Path, asker: Asker, tmp_path: Path
) -> None:
    """A real torch.OutOfMemoryError: once the engine is warm, another process takes all but a little of the memory."""
    requests = long_requests(asker)
    args = {name: value for name, value in ARGS.items() if name != "kv_cache_memory_bytes"}
    engine = {"device": "cuda", "args": {**args, "gpu_memory_utilization": 0.3}}
    free = run_of(requests, tiny_model, tmp_path / "free")
    run_worker(free.order(**engine), lambda _: None, lambda _: None)
    run = run_of(requests, tiny_model, tmp_path / "full", engine_memory_wait_s=2)
    ballasts: list[subprocess.Popen[str]] = []

    def fill(event: EngineEvent) -> None:
        if event.event == "warmed_up" and not ballasts:
            command = [sys.executable, "-c", BALLAST, str(ROOM_MIB)]
            ballasts.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert ballasts[0].stdout is not None and ballasts[0].stdout.readline() == "loaded\n"

    try:
        run_worker(run.order(**engine), lambda _: None, lambda _: None, fill)
    finally:
        for ballast in ballasts:
            ballast.kill()
            ballast.wait(10)
    print("\n".join(run.history()))
    assert run.texts() == free.texts()
    failed = [json.loads(row["details_json"]) for row in run.rows("engine_events") if row["event"] == "failed"]
    assert "device_oom" in {death["kind"] for death in failed}
