"""(e) Energy per token, from the GPU's energy counter, or from its power sampled ten times a second.

Idle power is measured for some seconds with an open engine without requests. Then a pass of the pipeline is measured,
from its first request to its metrics. Joules per output token are reported with and without idle power.
"""

import contextlib
import threading
import time
from types import ModuleType
from typing import Any

from benchmarks.gpu.setup import Row, Setup, Shape, SkipPart, Tell
from benchmarks.gpu.throughput import plan_spec
from benchmarks.overhead import SteppingEngine, measure_pipeline, write_prompts

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


def measure_energy(setup: Setup, tell: Tell) -> None:
    """Record one row per shape."""
    if not setup.is_cuda:
        raise SkipPart("no GPU to read energy from")
    import pynvml

    with contextlib.closing(EnergyMeter(pynvml, setup.gpus[0])) as meter:
        for shape in setup.shapes:
            tell(measure_shape(setup, shape, meter))


def measure_shape(setup: Setup, shape: Shape, meter: EnergyMeter) -> Row:
    """Measure idle power, then a pass."""
    folder = setup.folder / f"energy-{shape.name}"
    folder.mkdir(parents=True)
    settings = setup.make_settings(folder.name)
    write_prompts(folder / "prompts.jsonl", shape.requests)
    spec = plan_spec(setup, shape, folder / "prompts.jsonl", "given", {})
    stepping = SteppingEngine(spec, settings, setup.device_env, folder / "pipeline.log")
    with contextlib.closing(stepping.engine):
        measure_pipeline(spec, settings, stepping)  # not measured: it warms up
        idle = spend(meter, lambda: time.sleep(IDLE_S))
        spent = spend(meter, lambda: measure_pipeline(spec, settings, stepping)[0])
    return {"shape": shape.name, "source": meter.source, **describe_energy(idle, spent)}


def spend(meter: Any, work: Any) -> tuple[float, float, Any]:
    """Return joules, seconds and the result of `work`."""
    joules, started = meter.read_joules(), time.monotonic()
    result = work()
    return meter.read_joules() - joules, time.monotonic() - started, result


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
