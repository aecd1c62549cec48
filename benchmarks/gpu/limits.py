"""(i) A card that the weights fill, (j) every seat sampling, and (k) a start with vLLM's default arguments.

Each is a place where a GPU differs from a CPU: the share of memory that recovery lowers is given back if the KV cache
then does not fit, samplers use memory that vLLM's profiling leaves out, and kernels are compiled.
"""

import contextlib
import subprocess
import sys
import time
from typing import Any

from assayline.clock import RunClock
from assayline.engines.base import STARTING, EngineHooks, find_start_phase
from assayline.engines.client import HostedEngine
from assayline.engines.devices.nvidia import read_free_bytes
from assayline.engines.messages import Open
from assayline.engines.process import HostSetup, engine_environment
from assayline.records import EngineEvent, Request
from assayline.spec.engine import EngineSpec
from benchmarks.gpu.memory import BALLAST, BALLAST_ROOM_BYTES, make_spec, run_and_describe
from benchmarks.gpu.setup import Row, Setup, SkipPart, Tell

TIGHT_SHARE = 0.04
"""Share of the memory that a tight engine gets beyond its weights: one step of recovery takes more."""

SEATS = 1024
"""vLLM's default of max_num_seqs on GPUs of 70 GB and more."""

SAMPLING = {"temperature": 1.0, "top_p": 0.9, "logprobs": 20, "max_tokens": 64, "ignore_eos": True}


def measure_tight(setup: Setup, tell: Tell) -> None:
    """Record one row: an engine that dies once while another process holds the memory of its steps."""
    if not setup.is_cuda:
        raise SkipPart("a KV cache on a CPU is not measured against the rest of the memory")
    shape = setup.shapes[-1]
    free = read_free_bytes(setup.gpus[0])
    if free is None:
        raise SkipPart("the driver does not report free memory")
    args = setup.make_args(
        shape, enforce_eager=True, gpu_memory_utilization=round(shape.weight_bytes / free + TIGHT_SHARE, 2)
    )
    for name in ("kv_cache_memory_bytes", "compilation_config"):
        args.pop(name, None)
    ballasts: list[subprocess.Popen[str]] = []

    def fill_and_free(event: EngineEvent) -> None:
        if event.event == "failed":
            for ballast in ballasts:
                ballast.kill()
                ballast.wait(10)
        elif event.event == "warmed_up" and not ballasts:
            command = [sys.executable, "-c", BALLAST, str(BALLAST_ROOM_BYTES)]
            ballasts.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert ballasts[0].stdout is not None and ballasts[0].stdout.readline() == "taken\n"

    try:
        settings = setup.make_settings("tight")
        row = run_and_describe(setup, "weights fill the card", shape, args, settings, fill_and_free)
    finally:
        for ballast in ballasts:
            ballast.kill()
    tell(row)
    if not row["deaths"] or row["answered"] != row["requests"] or row["context_tokens"] != [args["max_model_len"]]:
        raise RuntimeError("no engine died, a request has no answer, or the context was shortened")


def measure_sampler(setup: Setup, tell: Tell) -> None:
    """Record one row: as many requests as seats, with top-p and log-probabilities, at vLLM's share of the memory."""
    shape = setup.shapes[0]
    seats = SEATS if setup.is_cuda else shape.seats
    args = setup.make_args(shape, max_num_seqs=seats)
    for name in ("kv_cache_memory_bytes", "gpu_memory_utilization") if setup.is_cuda else ():
        args.pop(name, None)
    spec = make_spec(setup, shape, args)
    spec = spec.model_copy(
        update={
            "sampling": SAMPLING,
            "engine": spec.engine.model_copy(update={"max_concurrency": seats}),
        }
    )
    row = run_and_describe(setup, f"top-p at {seats} seats", shape, args, setup.make_settings("sampler"), spec=spec)
    tell({**row, "deaths": row["deaths"] or None})  # an engine that lives is what is wanted
    if row["answered"] != row["requests"]:
        raise RuntimeError("a request has no answer")


def measure_start(setup: Setup, tell: Tell) -> None:
    """Record one row: seconds of each phase of a start with vLLM's default arguments, and of the first request."""
    shape = setup.shapes[0]
    args = {"load_format": "dummy", "dtype": "bfloat16", **({} if setup.is_cuda else setup.make_args(shape))}
    phases: list[tuple[str, float]] = [(STARTING, time.monotonic())]

    def note(line: str) -> None:
        phase = find_start_phase(line)
        if phase and phase != phases[-1][0]:
            phases.append((phase, time.monotonic()))

    settings = setup.make_settings("start")
    spec = EngineSpec.model_validate({"device": setup.device, "args": args})
    order = Open(engine=spec, model=str(setup.build_model(shape)), clock=RunClock.start(), run_id="start")
    host = HostSetup(engine_environment(settings, setup.device_env, {}), setup.folder / "start.log")
    with contextlib.closing(HostedEngine(order, host, EngineHooks(on_log=note))) as engine:
        ready = time.monotonic()
        spent: dict[str, float] = {}
        for (phase, began), (_, ended) in zip(phases, [*phases[1:], ("", ready)], strict=True):
            spent[phase] = round(spent.get(phase, 0.0) + ended - began, 1)
        first_s = engine.warm_up(make_request())
        details: dict[str, Any] = dict(engine.facts.details)
    tell(
        {
            "shape": shape.name,
            "start_s": round(ready - phases[0][1], 1),
            "phases_s": spent,
            "first_request_s": round(first_s, 1),
            **{name: details.get(name) for name in ("model_runner", "has_flashinfer", "is_compiled", "max_num_seqs")},
        }
    )


def make_request() -> Request:
    """Make a request that samples with top-p, which FlashInfer compiles a kernel for."""
    return Request(
        request_id="first", prompt_id="p", occurrence=0, repeat_index=0, prompt_token_ids=[5] * 64, sampling=SAMPLING
    )


def describe_phases(row: Row) -> str:
    """Format the phases of a start for the page."""
    return ", ".join(f"{phase} {seconds:g}" for phase, seconds in row["phases_s"].items())
