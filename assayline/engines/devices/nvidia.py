"""The NVIDIA GPUs of this machine, asked through the driver's own library, which needs no context on a device.

The library's Python module, `pynvml`, comes with vLLM's CUDA build (package nvidia-ml-py). Without it, and without a
driver, there are no GPUs. A GPU is named as in CUDA_VISIBLE_DEVICES: by its index, or by its UUID, which may be that of
a MIG slice. What a driver does not tell, such as the memory of single processes, is None.
"""

import contextlib
import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    name: str
    used_bytes: int | None


def list_gpus() -> list[str]:
    """The GPUs that this process may use; of one that is cut into MIG slices, its slices."""
    present = _ask(_list_present) or []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return list(itertools.takewhile(lambda name: name != "-1", names))  # CUDA ends its list at the first -1


def name_unit(gpu: str) -> str:
    """One name for a GPU, whether it was given by its index or by its UUID; a MIG slice has its UUID alone."""
    index = None if gpu.isdigit() else _ask(lambda nvml: _find_index(nvml, gpu))
    return (gpu if index is None else str(index)).replace("/", "_")  # as MIG slices of old drivers have it


def name_gpu(gpu: str) -> str | None:
    """What kind of GPU it is."""
    return _ask(lambda nvml: _text(nvml.nvmlDeviceGetName(_find(nvml, gpu)))) or None


def read_free_bytes(gpu: str) -> int | None:
    """How much of its memory is free."""
    return _ask(lambda nvml: int(nvml.nvmlDeviceGetMemoryInfo(_find(nvml, gpu)).free))


def list_processes(gpu: str) -> list[GpuProcess]:
    """Who computes on it."""

    def list_them(nvml: Any) -> list[GpuProcess]:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(_find(nvml, gpu))
        return [GpuProcess(entry.pid, _name_process(nvml, entry.pid), entry.usedGpuMemory) for entry in found]

    return _ask(list_them) or []


def can_ask() -> bool:
    """Whether the module is installed that GPUs are found by."""
    return importlib.util.find_spec("pynvml") is not None


def _ask(question: Callable[[Any], Answer]) -> Answer | None:
    """What the driver answers; None where there is none, or where it does not know."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        try:
            return question(nvml)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None


def _list_present(nvml: Any) -> list[str]:
    return [name for index in range(nvml.nvmlDeviceGetCount()) for name in _list_slices(nvml, index) or [str(index)]]


def _list_slices(nvml: Any, index: int) -> list[str]:
    """UUIDs of a GPU's MIG slices; none of one that is whole, or that has no such thing."""
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
    """The index of a GPU given by its UUID, or the beginning of it."""
    for index in range(nvml.nvmlDeviceGetCount()):
        if _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))).startswith(gpu):
            return index
    return None


def _find(nvml: Any, gpu: str) -> Any:
    """NVML's handle of a GPU. CUDA takes the beginning of a UUID for all of it, NVML does not."""
    index = int(gpu) if gpu.isdigit() else _find_index(nvml, gpu)
    if index is not None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return nvml.nvmlDeviceGetHandleByUUID(gpu)  # a MIG slice's; NVML refuses what it does not know


def _name_process(nvml: Any, pid: int) -> str:
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError:
        return "unknown"  # it has ended, or runs in another container


def _text(value: str | bytes) -> str:
    """Older releases of the module answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
