"""Real memory failures of real vLLM, and what is left of a run after them: everything.

The address space of the engine's process is limited (the setting engine_memory_limit_bytes), or its control group is:
then torch's own allocator fails inside a forward pass, or the kernel kills the process. Long prompts make a step's
activations grow with the window, so that a wide one dies and a narrower one lives. How such deaths are told from
others is in recovery/test_causes.py; that vLLM's server loses no request by one, in test_vllm_engines.py.
"""

import contextlib
import itertools
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from engine_kit import ROOT, Asker
from host_kit import HOSTS
from run_kit import PATIENCE_S, Work

from assayline.engines.devices.claims import cuda_driver_answers
from assayline.records import EngineEvent, Request
from assayline.run.worker import Worker, WorkOrder
from assayline.settings import Settings
from assayline.store.parts import list_parts, write_part

pytestmark = pytest.mark.vllm

PROMPT_TOKENS = 216
WINDOW = 512
ARGS = {
    "max_model_len": 256, "max_num_seqs": WINDOW, "max_num_batched_tokens": 2**18, "dtype": "float32",
    "enforce_eager": True, "kv_cache_memory_bytes": 2**29, "enable_prefix_caching": False,
}  # fmt: skip
SAMPLING = {"temperature": 0, "max_tokens": 12}
ADDRESS_ROOM = 0.7
"""What the setting's limit leaves beyond a warm engine, of what the undisturbed window took. A quarter of that window
takes a quarter of it, and each thread's arena its share."""

KERNEL_ROOM = 0.2
"""What the kernel leaves to a window of half the size: less than the cache of its requests and one step take."""

TRIES = 3
"""A window that is fed slowly is answered in several steps, of which none may take what a limit forbids."""


Notice = Callable[[str, str, Mapping[str, Any]], None]
"""Gets an event's name, message and details."""


class Noticed(Worker):
    """A worker that tells of its engine's events in its own thread."""

    def __init__(self, order: WorkOrder, notice: Notice) -> None:
        self._notice = notice
        super().__init__(order)

    def _record(self, row: EngineEvent) -> None:
        super()._record(row)
        self._notice(row.event, row.message or "", row.details)


@dataclass
class Run:
    """A worker's run of the same requests in a folder of its own."""

    folder: Path
    settings: Settings
    model: Path
    requests: list[Request]

    def work(self, notice: Notice = lambda event, message, details: None, **engine: Any) -> None:
        """Answers the requests; `notice` hears of events in the worker's thread, before its engine goes on."""
        write_part(self.folder, "requests", "shard-000000", self.requests)
        engine = {"max_concurrency": WINDOW, "args": ARGS, **engine}
        work = Work(self.folder, self.settings, model=str(self.model), sampling=SAMPLING, engine=engine)
        work.drive(launch=lambda order: Noticed(order, notice))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for part in list_parts(self.folder, table) for row in pq.read_table(part).to_pylist()]

    def texts(self) -> dict[str, str]:
        rows = self.rows("completions")
        assert sorted(row["request_id"] for row in rows) == sorted(r.request_id for r in self.requests), "once each"
        assert all(row["error_kind"] is None for row in rows)
        return {row["request_id"]: row["text"] for row in rows}

    def events(self, name: str) -> list[dict[str, Any]]:
        """The engines' events of this name, in their order."""
        rows = sorted(self.rows("engine_events"), key=lambda row: row["at_s"])
        return [row for row in rows if row["event"] == name]

    def details(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(row["details_json"]) for row in self.events(name)]

    def deaths(self) -> list[str]:
        """Return the recorded details of each crash."""
        return [row["message"] for row in self.events("failed")]

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
    address_growth: int
    """What the whole window takes beyond that."""
    growth: int
    """What the whole window takes beyond the warm engine's memory that no file backs."""


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Path, asker: Asker, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    run = run_of(long_requests(asker), tiny_model, tmp_path_factory.mktemp("undisturbed"))
    warm: dict[str, int] = {}
    peak = {"VmPeak": 0, "RssAnon": 0}

    def watch(host: int) -> None:
        with contextlib.suppress(OSError, KeyError):  # it has ended
            while True:
                sizes = read_sizes(host)
                peak.update({name: max(size, sizes[name]) for name, size in peak.items()})
                time.sleep(0.01)

    def measure(event: str, *_: Any) -> None:
        if event == "warmed_up":
            warm.update(read_sizes(HOSTS.newest))
            threading.Thread(target=watch, args=[HOSTS.newest], daemon=True).start()

    run.work(measure)
    growth = {name: size - warm[name] for name, size in peak.items()}
    assert min(growth.values()) > 100 * 2**20, "a step of the whole window takes memory that shows"
    return Undisturbed(run.texts(), run.requests, tiny_model, warm["VmPeak"], growth["VmPeak"], growth["RssAnon"])


def read_sizes(pid: int) -> dict[str, int]:
    """Sizes of a process's memory, in bytes."""
    lines = [line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmPeak", "RssAnon")}


CHILD = """
import os, pickle, sys
from pathlib import Path
os.environ.pop("FORKED_HOSTS", None)  # its engines are in its control group
sys.path.insert(0, "tests"), sys.path.insert(0, "tests/engines")
from host_kit import forking_hosts
from test_out_of_memory import Run
run, limit = pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
room, growth = int(sys.argv[3]), int(sys.argv[4])
(limit.parent / "cgroup.procs").write_text(str(os.getpid()))
windows, warm = [], []

def limit_memory(event, message, details):
    if event == "opened":
        windows.append(details["window_requests"])
    if event == "failed" and "SIGKILL" in message:
        limit.write_text(str(warm[0] + growth))
    if event == "warmed_up" and len(windows) == 2:
        sizes = dict(line.split() for line in (limit.parent / "memory.stat").read_text().splitlines())
        warm.append(int(sizes["total_rss" if "total_rss" in sizes else "anon"]))
        limit.write_text(str(warm[0] + room))

with forking_hosts():
    run.work(limit_memory)
"""
"""The first engine has the setting's limit alone. The second one has the kernel's too: what worker and warm engine have
that no file backs, as a group can take file pages away, and less than its window takes. Those after it may have what
the whole window took: the cache's pages are touched one after another, however small a window is."""


@pytest.fixture(scope="module")
def limited(undisturbed: Undisturbed, memory_limit: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose first engine meets the setting's limit, and one after it the kernel's."""
    limit = undisturbed.address_space + int(ADDRESS_ROOM * undisturbed.address_growth)
    for _ in range(TRIES):
        folder = tmp_path_factory.mktemp("limited")
        run = run_of(undisturbed.requests, undisturbed.model, folder, engine_memory_limit_bytes=limit)
        if memory_limit is None:
            run.work()
        else:
            run_below(memory_limit, run, folder, undisturbed.growth)
        if len(run.deaths()) > (memory_limit is not None):
            break
    return run


def run_below(memory_limit: Path, run: Run, folder: Path, growth: int) -> None:
    """The run, by a worker in the control group."""
    memory_limit.write_text("-1" if memory_limit.name == "memory.limit_in_bytes" else "max")
    (folder / "given").write_bytes(pickle.dumps(run))
    rooms = [str(int(KERNEL_ROOM * growth)), str(growth)]
    worker = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder / "given"), str(memory_limit), *rooms],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert worker.returncode == 0, worker.stderr


def test_a_window_that_does_not_fit_is_halved_until_it_does_and_no_text_changes(undisturbed, limited):
    """torch's allocator fails in the forward pass. Every request is answered once, by engines that were halved until
    one lived."""
    print("\n".join(limited.history()))
    assert limited.texts() == undisturbed.texts
    failed, opened = limited.details("failed"), limited.details("opened")
    assert "DefaultCPUAllocator: can't allocate memory" in limited.deaths()[0]
    assert {death["kind"] for death in failed} == {"host_oom"}
    windows = [row["window_requests"] for row in limited.rows("completions")]
    sizes = [details["window_requests"] for details in opened]
    assert len(sizes) == len(failed) + 1 and sizes[0] == WINDOW
    assert all(after <= before // 2 for before, after in itertools.pairwise(sizes))
    assert set(windows) <= set(sizes)
    answered = 0
    for window, death in zip(sizes, failed, strict=False):
        answered += windows.count(window)
        # Less than the window where a step began before it was filled, as another test held this process up.
        assert window // 4 < death["in_flight_requests"] <= window
        assert answered + death["in_flight_requests"] <= WINDOW, "nothing of what was lost is kept"


def test_an_engine_that_the_kernel_kills_for_memory_is_followed_by_a_smaller_one(limited, memory_limit):
    """A SIGKILL without a word: the control group's count of kills tells what it was."""
    if memory_limit is None:
        pytest.skip("this machine's memory control groups cannot be written, so the kernel cannot be made to kill")
    assert "died of signal SIGKILL" in limited.deaths()[1]
    assert limited.details("failed")[1]["kind"] == "host_oom"
    before, after = (details["window_requests"] for details in limited.details("opened")[1:3])
    assert after <= before // 2


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
def test_a_gpu_that_another_process_fills_is_gone_on_with_in_smaller_windows(tiny_model, asker, tmp_path):
    """A real torch.OutOfMemoryError: once the engine is warm, another process takes all but a little of the memory."""
    requests = long_requests(asker)
    args = {name: value for name, value in ARGS.items() if name != "kv_cache_memory_bytes"}
    engine = {"device": "cuda", "args": {**args, "gpu_memory_utilization": 0.3}}
    free = run_of(requests, tiny_model, tmp_path / "free")
    free.work(**engine)
    run = run_of(requests, tiny_model, tmp_path / "full", engine_memory_wait_s=2)
    ballasts: list[subprocess.Popen[str]] = []

    def fill(event: str, *_: Any) -> None:
        if event == "warmed_up" and not ballasts:
            command = [sys.executable, "-c", BALLAST, str(ROOM_MIB)]
            ballasts.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert ballasts[0].stdout is not None and ballasts[0].stdout.readline() == "loaded\n"

    try:
        run.work(fill, **engine)
    finally:
        for ballast in ballasts:
            ballast.kill()
            ballast.wait(PATIENCE_S)
    print("\n".join(run.history()))
    assert run.texts() == free.texts()
    assert "device_oom" in {death["kind"] for death in run.details("failed")}
