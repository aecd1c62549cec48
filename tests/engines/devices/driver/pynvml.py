"""A driver's library, as nvidia-ml-py shows it: the GPUs are what FAKE_GPUS says as JSON; unset, there is no driver.

As the real one it refuses everything before `nvmlInit`, counts openings, and has one class of error per reason.
"""

import json
import os
from types import SimpleNamespace
from typing import Any

opened = 0


class NVMLError(Exception):
    """The base of all."""


class NVMLError_LibraryNotFound(NVMLError): ...


class NVMLError_Uninitialized(NVMLError): ...


class NVMLError_InvalidArgument(NVMLError): ...


class NVMLError_NotFound(NVMLError): ...


class NVMLError_NotSupported(NVMLError): ...


class NVMLError_GpuIsLost(NVMLError): ...


class NVMLError_FunctionNotFound(NVMLError): ...


def nvmlInit() -> None:
    global opened
    if "FAKE_GPUS" not in os.environ:
        raise NVMLError_LibraryNotFound
    opened += 1


def nvmlShutdown() -> None:
    global opened
    _gpus()
    opened -= 1


def nvmlSystemGetDriverVersion() -> bytes:
    _gpus()
    return b"570.86.15"


def nvmlDeviceGetCount() -> int:
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    if index >= len(_gpus()):
        raise NVMLError_InvalidArgument
    return _gpus()[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    for gpu in _gpus():
        for part in (gpu, *gpu.get("slices", [])):
            if part["uuid"] == uuid:
                return part
    raise NVMLError_NotFound


def nvmlDeviceGetName(handle: Any) -> str:
    return str(_known(handle, "name"))


def nvmlDeviceGetUUID(handle: Any) -> str:
    return str(handle["uuid"])


def nvmlDeviceGetMigMode(handle: Any) -> list[int]:
    return [int(_known(handle, "is_cut"))] * 2


def nvmlDeviceGetMaxMigDeviceCount(handle: Any) -> int:
    return 7 if handle else 0


def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, index: int) -> Any:
    if index >= len(handle["slices"]):
        raise NVMLError_NotFound
    return handle["slices"][index]


def nvmlDeviceGetMemoryInfo(handle: Any) -> Any:
    free = _known(handle, "free")
    total = handle.get("total", free)
    return SimpleNamespace(free=free, total=total, used=total - free)


def nvmlDeviceGetUtilizationRates(handle: Any) -> Any:
    return SimpleNamespace(gpu=_known(handle, "busy_percent"), memory=0)


def nvmlDeviceGetPowerUsage(handle: Any) -> int:
    """Milliwatts."""
    return int(_known(handle, "milliwatts"))


def nvmlDeviceGetTotalEnergyConsumption(handle: Any) -> int:
    """Millijoules since the driver was loaded."""
    return int(_known(handle, "millijoules"))


def nvmlDeviceGetTemperature(handle: Any, sensor: int) -> int:
    if sensor != 0:
        raise NVMLError_InvalidArgument
    return int(_known(handle, "temperature"))


def nvmlDeviceGetClockInfo(handle: Any, clock: int) -> int:
    """MHz: 0 of the graphics engine, 1 of the multiprocessors, 2 of the memory, 3 of the video engines."""
    return int(_known(handle, "clocks")[clock])


def nvmlDeviceGetCurrentClocksEventReasons(handle: Any) -> int:
    if handle.get("driver_before_535"):
        raise NVMLError_FunctionNotFound
    return int(_known(handle, "reasons"))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: Any) -> int:
    return int(_known(handle, "reasons"))


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _known(handle, "processes")]


def nvmlSystemGetProcessName(pid: int) -> str:
    _gpus()
    if pid < 100:
        raise NVMLError_NotFound
    return f"program-{pid}"


def _known(handle: Any, counter: str) -> Any:
    _gpus()
    if any(gpu["uuid"] == handle["uuid"] and gpu.get("is_lost") for gpu in _gpus()):
        raise NVMLError_GpuIsLost
    if counter not in handle:
        raise NVMLError_NotSupported
    return handle[counter]


def _gpus() -> list[dict[str, Any]]:
    if not opened:
        raise NVMLError_Uninitialized
    return list(json.loads(os.environ["FAKE_GPUS"]))
