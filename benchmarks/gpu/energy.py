"""(e) Tokens/s, inter-token latency and energy per token against the number of seats, next to ML.ENERGY's.

Energy is from the GPU's energy counter, or from its power sampled ten times a second. Idle power is measured for some
seconds with an open engine without requests. Joules per output token are reported with and without it. ML.ENERGY's
requests are chats, whose lengths differ; here all answers have the same length.
"""

import contextlib
import threading
import time
from functools import partial
from types import ModuleType
from typing import Any

from assayline.engines.process import engine_environment
from benchmarks.gpu.setup import GRAPH_SIZES, Row, Setup, SkipPart, Tell
from benchmarks.streaming import Ours

THEIRS = ("their_output_tokens_per_s", "their_itl_median_ms", "their_joules_per_output_token")
ML_ENERGY = {
    8: (1070, 7.3, 0.455),
    16: (1954, 7.9, 0.263),
    32: (3391, 8.9, 0.165),
    64: (5147, 11.5, 0.119),
    128: (7037, 16.5, 0.095),
    256: (9010, 26.1, 0.077),
    512: (9806, 47.4, 0.070),
    768: (9603, 62.9, 0.071),
}
"""ML.ENERGY's figures by seats: vLLM, Llama-3.1-8B in bf16, one H100, lm-arena-chat; read on 2026-11-26."""

PROMPT_TOKENS, ANSWER_TOKENS = 64, 96
LEAST_REQUESTS = 64
IDLE_S = 5.0
POWER_INTERVAL_S = 0.1


class EnergyMeter:
    """Energy used by a GPU so far, in joules."""

    def __init__(self, nvml: ModuleType, gpu: str) -> None:
        """`nvml` is pynvml, not yet initialised. Raises SkipPart if the driver reports neither energy nor power."""
        self._nvml = nvml
        nvml.nvmlInit()
        by_index = gpu.isdigit()
        self._handle = nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if by_index else nvml.nvmlDeviceGetHandleByUUID(gpu)
        self.source = "energy counter"
        self._joules, self._stop = 0.0, threading.Event()
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except nvml.NVMLError:
            self.source = "power, integrated"
            try:
                self._read_watts()
            except nvml.NVMLError as error:
                raise SkipPart(f"the driver reports neither energy nor power: {error}") from None
            threading.Thread(target=self._integrate, daemon=True).start()

    def read_joules(self) -> float:
        """Return joules since an arbitrary start."""
        if self.source == "energy counter":
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000  # mJ
        return self._joules

    def close(self) -> None:
        """Stop the measurement."""
        self._stop.set()
        self._nvml.nvmlShutdown()

    def _read_watts(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000  # mW

    def _integrate(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(POWER_INTERVAL_S):
            now, watts = time.monotonic(), self._read_watts()
            self._joules += watts * (now - before)
            before = now


def measure_curve(setup: Setup, tell: Tell) -> None:
    """Record one row per number of seats, on one engine of the largest shape."""
    shape = setup.shapes[-1]
    seats = [each for each in ML_ENERGY if setup.is_cuda or each <= shape.seats]
    args = setup.make_args(shape, max_num_seqs=seats[-1], kv_cache_memory_bytes=2 * shape.cache_bytes)
    if "compilation_config" in args:
        sizes = sorted({*GRAPH_SIZES, *seats})
        args["compilation_config"] = {**args["compilation_config"], "cudagraph_capture_sizes": sizes}
    folder = setup.folder / "curve"
    folder.mkdir(parents=True)
    env = engine_environment(setup.make_settings(folder.name), setup.device_env, {})
    with contextlib.ExitStack() as stack:
        meter = open_meter(setup, stack)
        ours = stack.enter_context(
            contextlib.closing(Ours(setup.build_model(shape), 8, env, folder / "ours.log", args))
        )
        ours.measure(make_equal(seats[-1]))  # not measured: it warms up
        idle = spend(meter, lambda: time.sleep(IDLE_S)) if meter else None
        for each in seats:
            ours.set_window(each)
            joules, seconds, measured = spend(meter, partial(ours.measure, make_equal(max(2 * each, LEAST_REQUESTS))))
            row: Row = {"shape": shape.name, "seats": each, **dict(zip(THEIRS, ML_ENERGY[each], strict=True))}
            row["output_tokens_per_s"] = round(measured.output_tokens_per_s, 1)
            row["itl_median_ms"] = round(1e3 * measured.itl_median_s, 2)
            if meter and idle:
                row |= {"source": meter.source, **describe_energy(idle, (joules, seconds, measured))}
            tell(row)


def open_meter(setup: Setup, stack: contextlib.ExitStack) -> EnergyMeter | None:
    """Open the meter of the first GPU; None without a GPU, or with a driver that reports nothing."""
    with contextlib.suppress(SkipPart):
        if setup.is_cuda:
            import pynvml

            return stack.enter_context(contextlib.closing(EnergyMeter(pynvml, setup.gpus[0])))
    return None


def make_equal(count: int) -> list[Row]:
    """Make different prompts with answers of the same length."""
    sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": ANSWER_TOKENS}
    return [
        {"prompt_token_ids": [5 + (number + place) % 1000 for place in range(PROMPT_TOKENS)], "sampling": sampling}
        for number in range(count)
    ]


def spend(meter: Any, work: Any) -> tuple[float, float, Any]:
    """Return joules, seconds and the result of `work`; 0 J without a meter."""
    joules, started = meter.read_joules() if meter else 0.0, time.monotonic()
    result = work()
    return (meter.read_joules() if meter else 0.0) - joules, time.monotonic() - started, result


def describe_energy(idle: tuple[float, float, Any], spent: tuple[float, float, Any]) -> Row:
    """Compute watts, and joules per output token."""
    idle_w = idle[0] / idle[1]
    joules, seconds, measured = spent
    tokens = measured.output_tokens
    return {
        "output_tokens": tokens,
        "output_tokens_per_s": round(measured.output_tokens_per_s, 1),
        "idle_w": round(idle_w, 1),
        "working_w": round(joules / seconds, 1),
        "joules_per_output_token": round(joules / tokens, 5),
        "joules_per_output_token_above_idle": round((joules - idle_w * seconds) / tokens, 5),
    }
