"""The NVIDIA GPUs of this machine, queried through the driver's library, which needs no context on a device.

The library's Python module, `pynvml`, comes with vLLM's CUDA build (package nvidia-ml-py). Without it, and without a
driver, there are no GPUs. A GPU is named as in CUDA_VISIBLE_DEVICES: by its index, or by its UUID, which may be that of
a MIG slice. Values that a driver does not report, such as the memory of single processes, are None.
"""

import contextlib
import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG slice of one."""

    visible: str
    """Its name in CUDA_VISIBLE_DEVICES."""
    label: str
    """Its index among the GPUs that this process sees; a slice's UUID."""
    uuid: str
    """The same in every process, whichever GPUs the process sees."""

    @property
    def is_slice(self) -> bool:
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process, with the bytes of a device's or the machine's memory that it uses; None if they are unknown."""

    pid: int
    name: str
    used_bytes: int | None

    def __str__(self) -> str:
        used = "unknown" if self.used_bytes is None else f"{self.used_bytes >> 20} MiB"
        return f"process {self.pid} ({self.name}, {used})"


def list_gpus() -> list[str]:
    """Return the GPUs that this process may use, with MIG slices in place of their GPU."""
    present = _ask(_list_present) or []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return list(itertools.takewhile(lambda name: name != "-1", names))  # CUDA ends its list at the first -1


def identify_gpus(names: list[str]) -> list[Gpu]:
    """Return the GPUs that have these names in CUDA_VISIBLE_DEVICES: indices, UUIDs or the beginnings of UUIDs."""
    return _ask(lambda nvml: [_identify(nvml, name) for name in names]) or [Gpu(name, name, name) for name in names]


def name_gpu(gpu: str) -> str | None:
    """Return the GPU's product name."""
    return _ask(lambda nvml: _text(nvml.nvmlDeviceGetName(_find(nvml, gpu)))) or None


def read_driver_version() -> str | None:
    return _ask(lambda nvml: _text(nvml.nvmlSystemGetDriverVersion())) or None


def read_cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver runs, as major and minor version."""
    number = _ask(lambda nvml: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))  # 12040 is 12.4
    return None if number is None else (number // 1000, number % 1000 // 10)


def read_free_bytes(gpu: str) -> int | None:
    """Return the free bytes of its memory."""
    return _ask(lambda nvml: int(nvml.nvmlDeviceGetMemoryInfo(_find(nvml, gpu)).free))


def list_processes(gpu: str) -> list[MemoryHolder]:
    """Return the processes that compute on it."""

    def list_them(nvml: Any) -> list[MemoryHolder]:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(_find(nvml, gpu))
        return [MemoryHolder(entry.pid, _name_process(nvml, entry.pid), entry.usedGpuMemory) for entry in found]

    return _ask(list_them) or []


THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's ClocksEventReasons, by its names for them."""

TEMPERATURE_GPU, CLOCK_SM, CLOCK_MEMORY = 0, 1, 2
"""NVML's numbers for sensors and clocks."""


SENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "utilization_share": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "memory_used_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "memory_total_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total),
    "power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "energy_joules": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    "temperature_c": lambda nvml, gpu: int(nvml.nvmlDeviceGetTemperature(gpu, TEMPERATURE_GPU)),
    "sm_clock_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, CLOCK_SM)),
    "memory_clock_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, CLOCK_MEMORY)),
    "throttle_reasons": lambda nvml, gpu: name_reasons(_read_throttle_bits(nvml, gpu)),
}
"""Readings by the columns of `DeviceSample`, from the driver's library and its handle of a GPU or a MIG slice."""


def read_sensors(driver: Any | None, gpu: str) -> dict[str, Any]:
    """Read all sensors of a GPU now; None for each that is missing or does not answer, as most of a MIG slice.

    `hold_driver` yields the `driver`; without one, all are None.
    """

    def read(sensor: Callable[[Any, Any], Any]) -> Any | None:
        return _answer(driver, lambda nvml: sensor(nvml, _find(nvml, gpu)))

    return {column: read(sensor) for column, sensor in SENSORS.items()}


@contextlib.contextmanager
def hold_driver() -> Iterator[Any | None]:
    """Hold the driver's library open while the block runs, since opening it is slow. Yields None without a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def name_reasons(bits: int) -> str:
    """Return the reasons for reduced clocks, comma-separated; unnamed bits as a hexadecimal number."""
    named = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_REASONS)
    return ",".join([*named, *([hex(rest)] if rest else [])])


def _read_throttle_bits(nvml: Any, gpu: Any) -> int:
    """Read the bits by their newer name, or by the older one for drivers before 535 and their modules."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (nvml.NVMLError, AttributeError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def can_ask() -> bool:
    """Return whether `pynvml` is installed, which finds GPUs."""
    return importlib.util.find_spec("pynvml") is not None


def _ask(question: Callable[[Any], Answer]) -> Answer | None:
    """Open the driver for one question."""
    with hold_driver() as driver:
        return _answer(driver, question)


def _answer(driver: Any | None, question: Callable[[Any], Answer]) -> Answer | None:
    """Return the driver's answer; None without a driver, or if it or the GPU or the module has none."""
    if driver is None:
        return None
    try:
        return question(driver)
    except (driver.NVMLError, AttributeError):
        return None


def _list_present(nvml: Any) -> list[str]:
    return [name for index in range(nvml.nvmlDeviceGetCount()) for name in _list_slices(nvml, index) or [str(index)]]


def _list_slices(nvml: Any, index: int) -> list[str]:
    """Return the UUIDs of a GPU's MIG slices; none if it is not divided or cannot be."""
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if current else 0)
    except nvml.NVMLError:
        return []
    found = []
    for place in places:
        with contextlib.suppress(nvml.NVMLError):  # a place may be empty
            found.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))))
    return found


def _find_index(nvml: Any, gpu: str) -> int | None:
    """Return the index of a GPU given by its UUID, or the beginning of it."""
    for index in range(nvml.nvmlDeviceGetCount()):
        if _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))).startswith(gpu):
            return index
    return None


def _identify(nvml: Any, name: str) -> Gpu:
    index = int(name) if name.isdigit() else _find_index(nvml, name)
    try:
        uuid = _text(nvml.nvmlDeviceGetUUID(_find(nvml, name)))
    except nvml.NVMLError:
        uuid = name
    return Gpu(name, name if index is None else str(index), uuid)


def _find(nvml: Any, gpu: str) -> Any:
    """Return NVML's handle of a GPU. CUDA accepts the beginning of a UUID, NVML does not."""
    index = int(gpu) if gpu.isdigit() else _find_index(nvml, gpu)
    if index is not None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return nvml.nvmlDeviceGetHandleByUUID(gpu)  # a MIG slice's; NVML refuses unknown ones


def _name_process(nvml: Any, pid: int) -> str:
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError:
        return "unknown"  # it has ended, or runs in another container


def _text(value: str | bytes) -> str:
    """Decode the answers of older releases of the module, which are bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
