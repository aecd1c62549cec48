"""Devices: which there are, and claiming one so that two workers never share it.

On CUDA a device is a GPU, or as many as an engine spans; on a machine without, it is an equal share of the CPU's cores,
because every vLLM CPU engine would otherwise bind to the same first core. A claim is an exclusive `flock` on a file per
GPU or core, held open for as long as the worker lives; the kernel releases it however the worker dies. So runs that cut
the machine up differently do not overlap either.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.engines.devices.nvidia import can_ask, list_gpus, name_unit
from assayline.engines.devices.orphans import end_orphans, locks_variable
from assayline.errors import DeviceError

CLAIM_POLL_INTERVAL_S = 0.5
WITHOUT_MODULE = " GPUs are found by the package nvidia-ml-py, which is not installed; vLLM's CUDA build brings it."


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that an engine runs on, and the environment that binds the engine to it."""

    name: str
    env: dict[str, str]
    units: tuple[str, ...] = ()
    """What no other device may have at the same time: GPUs or cores."""
    orphans: tuple[str, ...] = ()
    """Processes that a killed worker had left on it and that were ended when it was claimed."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, named as in CUDA_VISIBLE_DEVICES; none on a CPU."""
        return tuple(gpu for gpu in self.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu)


def cuda_driver_answers() -> bool:
    """Whether an NVIDIA driver answers here and shows at least one GPU."""
    return bool(list_gpus())


def list_devices(kind: str, workers: int, gpus_per_worker: int = 1, whole_machine: bool = True) -> list[Device]:
    """The devices for `workers` engines. `kind` is cpu, cuda, or auto (cuda if a driver answers).

    Raises DeviceError when this machine has fewer than that; where the workers are spread over a cluster
    (`whole_machine` false), one is enough.
    """
    if kind == "auto":
        kind = "cuda" if cuda_driver_answers() else "cpu"
    devices = _group_all_gpus(gpus_per_worker) if kind == "cuda" else _share_cores(workers, gpus_per_worker)
    is_blind = kind == "cuda" and not can_ask()
    if len(devices) < (workers if whole_machine else 1):
        raise DeviceError(
            f"The spec asks for {workers} workers with {gpus_per_worker} {kind} device(s) each; this machine shows "
            f"{len(devices)} such device(s). Lower `workers`, or check nvidia-smi and CUDA_VISIBLE_DEVICES."
            + WITHOUT_MODULE
            * is_blind
        )
    return devices


def count_workers(kind: str, gpus_per_worker: int = 1) -> int:
    """How many engines this machine has devices for: as many groups of GPUs as there are, or one on its cores."""
    if kind == "auto":
        kind = "cuda" if cuda_driver_answers() else "cpu"
    return max(1, len(_group_all_gpus(gpus_per_worker))) if kind == "cuda" else 1


@contextlib.contextmanager
def claim_device(devices: list[Device], lock_dir: Path, wait_s: float) -> Iterator[Device]:
    """Holds the first free device of `devices` for as long as the block runs, rid of orphans of earlier holders.

    Raises DeviceError if all are taken for longer than `wait_s` seconds.
    """
    lock_dir.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    while (claimed := _try_claim(devices, lock_dir)) is None:
        if time.monotonic() >= deadline:
            holders = ", ".join(f"{d.name} by process {_holder(lock_dir, d)}" for d in devices)
            raise DeviceError(
                f"Every device is taken: {holders}. Wait for that run or stop it; "
                "ASSAYLINE_DEVICE_WAIT_S (seconds) makes this one wait."
            )
        time.sleep(CLAIM_POLL_INTERVAL_S)
    device, locks = claimed
    with locks:
        paths = [lock_dir / f"{unit}.lock" for unit in device.units]
        yield replace(device, env={**device.env, **locks_variable(paths)}, orphans=tuple(end_orphans(paths)))


def _try_claim(devices: list[Device], lock_dir: Path) -> tuple[Device, contextlib.ExitStack] | None:
    for device in devices:
        with contextlib.ExitStack() as locks:
            if all(_try_lock(lock_dir / f"{unit}.lock", locks) for unit in device.units):
                return device, locks.pop_all()
    return None


def _try_lock(path: Path, locks: contextlib.ExitStack) -> bool:
    lock = locks.enter_context(open(path, "a+"))  # noqa: SIM115 - held by the caller
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    locks.callback(lock.truncate, 0)  # so that a file with a number in it is held, unless its holder was killed
    return True


def _holder(lock_dir: Path, device: Device) -> str:
    """The processes that hold the device or a part of it, as they wrote it into their locks."""
    holders = set()
    for unit in device.units:
        with contextlib.suppress(OSError):
            holders.add((lock_dir / f"{unit}.lock").read_text())
    return " and ".join(sorted(holders - {""})) or "unknown"


def _group_all_gpus(size: int) -> list[Device]:
    gpus = list_gpus()
    return [_group_gpus(gpus[i : i + size]) for i in range(0, len(gpus) - size + 1, size)]


def _group_gpus(gpus: list[str]) -> Device:
    names = [name_unit(gpu) for gpu in gpus]
    return Device(
        f"cuda-{'-'.join(names)}", {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}, tuple(f"cuda-{n}" for n in names)
    )


def _share_cores(workers: int, parts: int = 1) -> list[Device]:
    """Equal shares of the cores that this process may use, as vLLM's CPU backend wants to be told.

    Each has `parts` groups of cores, for the processes of an engine whose model is split.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < workers * parts:
        return []
    size = len(cores) // (workers * parts)
    shares = [cores[i * size * parts : (i + 1) * size * parts] for i in range(workers)]
    return [
        Device(
            f"cpu-{'-'.join(map(str, (share[0], share[-1])))}",
            {
                "VLLM_CPU_OMP_THREADS_BIND": "|".join(
                    ",".join(map(str, share[i : i + size])) for i in range(0, len(share), size)
                ),
                "OMP_NUM_THREADS": str(size),
            },
            tuple(f"cpu-{core}" for core in share),
        )
        for share in shares
    ]


def name_cpu() -> str:
    """The processor's name, and how many cores of it this process may use."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {cores} cores"
    return f"cpu, {cores} cores"
