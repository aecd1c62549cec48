"""(b) Real out-of-memory failures in the middle of a run: recovery, and whether the memory is freed.

Two ways on a GPU: a KV cache so large that a step at max concurrency does not fit next to it, and another process that
allocates the free memory once the engine is warm. On a CPU, the engine's address space is limited instead.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from assayline.engines.devices.nvidia import read_free_bytes
from assayline.engines.devices.watch import SLACK_BYTES, DeviceMemory
from assayline.records import EngineEvent
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from benchmarks.gpu.runs import describe_run, run_spec
from benchmarks.gpu.setup import Row, Setup, Shape, SkipPart, Tell
from benchmarks.process_tree import find_host

WINDOW = 256
PROMPT_TOKENS = 500
GPU_STEP_TOKENS = 2**17
"""A step processes the prompts of all requests in flight: 4 GiB of activations in the small shape."""

ROOM_BYTES = 2560 * 2**20
"""Bytes that an oversized KV cache leaves next to weights and context: less than the step, more than half of it."""

CONTEXT_BYTES = 2**30
"""Memory of the CUDA context and kernels."""

BALLAST_ROOM_BYTES = 300 * 2**20
BALLAST = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
ballast = torch.empty(max(free - int(sys.argv[1]), 0), dtype=torch.uint8, device="cuda")
print("taken", flush=True)
sys.stdin.read()
"""
ADDRESS_ROOMS = (0.7, 0.5, 0.3)
"""Shares of the peak growth that a limited CPU engine may grow beyond its warm size, tried in turn until an engine runs
out of memory: requests that arrive slowly are processed in several steps, none of which may need that much."""


def measure_memory(setup: Setup, tell: Tell) -> None:
    """Record one row per way."""
    shape = setup.shapes[0]
    if not setup.is_cuda:
        tell(limit_address_space(setup, shape))
        return
    tell(crowd_out(setup, shape))
    tell(fill_from_outside(setup, shape))


def crowd_out(setup: Setup, shape: Shape) -> Row:
    """Use a cache that leaves too little memory for the first step at max concurrency."""
    free = read_free_bytes(setup.gpus[0])
    if free is None:
        raise SkipPart("the driver does not report free memory")
    cache = free - shape.weight_bytes - CONTEXT_BYTES - ROOM_BYTES
    args = make_args(setup, shape, kv_cache_memory_bytes=cache)
    return run_and_describe(setup, "cache too large", shape, args, setup.make_settings("crowded"))


def fill_from_outside(setup: Setup, shape: Shape) -> Row:
    """Let another process allocate nearly all free memory once the engine is warm, and keep it."""
    args = make_args(setup, shape)
    del args["kv_cache_memory_bytes"]  # vLLM then measures a step's memory, and returns it to the device
    ballasts: list[subprocess.Popen[str]] = []

    def fill(event: EngineEvent) -> None:
        if event.event == "warmed_up" and not ballasts:
            command = [sys.executable, "-c", BALLAST, str(BALLAST_ROOM_BYTES)]
            ballasts.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert ballasts[0].stdout is not None and ballasts[0].stdout.readline() == "taken\n"

    try:
        settings = setup.make_settings("ballast").model_copy(update={"engine_memory_wait_s": 2.0})
        return run_and_describe(setup, "another process's ballast", shape, args, settings, fill)
    finally:
        for ballast in ballasts:
            ballast.kill()
            ballast.wait(10)


def limit_address_space(setup: Setup, shape: Shape) -> Row:
    """On a CPU: measure the growth without a limit, then run with a limit that is too small."""
    args = make_args(setup, shape, dtype="float32")
    watched = Watched()
    free = setup.make_settings("unlimited")
    run_spec(make_spec(setup, shape, args), free, watched.on_event)
    growth = watched.peak_bytes - watched.warm_bytes
    row: Row = {}
    for room in ADDRESS_ROOMS:
        limit = watched.warm_bytes + int(room * growth)
        limited = setup.make_settings(f"limited-{room}").model_copy(update={"engine_memory_limit_bytes": limit})
        row = run_and_describe(setup, "address space limited", shape, args, limited)
        if row["deaths"]:
            break
    return row


def run_and_describe(
    setup: Setup,
    way: str,
    shape: Shape,
    args: Row,
    settings: Settings,
    on_event: Any = lambda event: None,
    spec: EvalSpec | None = None,
) -> Row:
    """Run `spec`, or long prompts at max concurrency, and describe requests, engines and memory."""
    memory = DeviceMemory(setup.gpus[:1])
    started = time.monotonic()
    run_id = run_spec(spec or make_spec(setup, shape, args), settings, on_event)
    seconds = time.monotonic() - started
    back_after_s = time.monotonic()
    is_back = memory.wait_until_back(20, lambda: False)
    described = describe_run(settings, run_id)
    return {
        "way": way,
        "deaths": sum(engine["failure_kind"] is not None for engine in described["engines"]),
        "seconds": round(seconds, 1),
        "memory_is_back": is_back,
        "memory_back_after_s": round(time.monotonic() - back_after_s, 2),
        "slack_mib": SLACK_BYTES >> 20,
        **described,
    }


def make_args(setup: Setup, shape: Shape, **changes: Any) -> Row:
    """Return arguments for steps as large as max concurrency, with a quick start."""
    args = setup.make_args(
        shape, **{"max_num_seqs": WINDOW, "max_num_batched_tokens": GPU_STEP_TOKENS, "enforce_eager": True, **changes}
    )
    args.pop("compilation_config", None)
    return args


def make_spec(setup: Setup, shape: Shape, args: Row) -> Any:
    """Make a spec with four times max concurrency of prompts of `PROMPT_TOKENS`, with short outputs."""
    rows = [
        {"prompt": f"{number:06}" * (PROMPT_TOKENS // 6)} for number in range(4 * WINDOW if setup.is_cuda else WINDOW)
    ]
    return parse_spec(
        {
            "name": "memory",
            "model": str(setup.build_model(shape)),
            "prompts": {"source": {"kind": "inline", "rows": rows}},
            "sampling": {"temperature": 0, "max_tokens": 8, "min_tokens": 8},
            "engine": {"device": setup.device, "max_concurrency": WINDOW, "order": "given", "args": args},
        }
    )


class Watched:
    """Address space of the run's engine when it is warm, and its peak."""

    def __init__(self) -> None:
        self.warm_bytes = self.peak_bytes = 0

    def on_event(self, event: EngineEvent) -> None:
        """Start watching when the engine is warm."""
        if event.event != "warmed_up":
            return
        host = find_host(os.getpid())
        assert host is not None, "the engine that is warm has a process"
        self.warm_bytes = read_peak_bytes(host.pid)
        threading.Thread(target=self._watch, args=[host.pid], daemon=True).start()

    def _watch(self, pid: int) -> None:
        with contextlib.suppress(OSError, KeyError):  # it has ended
            while True:
                self.peak_bytes = max(self.peak_bytes, read_peak_bytes(pid))
                time.sleep(0.01)


def read_peak_bytes(pid: int) -> int:
    """Return the peak address space of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmPeak"].split()[0]) * 1024


def describe_engines(row: Row) -> str:
    """Summarize the engines of a run for the page."""
    return "**no engine failed: nothing is shown.** " * (row.get("deaths") == 0) + ", then ".join(
        f"{engine['window_requests']} in flight: " + (engine["failure_kind"] or f"{engine['ok_requests']} answers")
        for engine in row["engines"]
    )
