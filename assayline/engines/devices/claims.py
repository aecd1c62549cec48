"""The devices of this machine, and claims on them, so that two workers never share one.

On CUDA a device is a GPU, or all GPUs of one engine; without CUDA, it is an equal share of the CPU's cores, because
every vLLM CPU engine would otherwise bind to the same first core. A claim is an exclusive `flock` on a file per GPU or
core, held open for as long as the worker lives; the kernel releases it however the worker dies. So runs that divide the
machine differently do not overlap either. A GPU's file is named after its UUID, since a process in a control group sees
only its own GPU, as number 0. All users of the machine share the folder of these files.

Claims that wait are served in the order in which they came: each has a ticket, a locked file in the same folder.
"""

import contextlib
import fcntl
import importlib.metadata
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from assayline.engines.devices.nvidia import Gpu, can_ask, identify_gpus, list_gpus
from assayline.engines.devices.watch import end_orphans, locks_variable
from assayline.errors import DeviceError
from assayline.words import count

CLAIM_POLL_INTERVAL_S = 0.5
WITHOUT_MODULE = " GPUs are found by the package nvidia-ml-py, which is not installed; vLLM's CUDA build brings it."
KFD = Path("/dev/kfd")
"""Device file of AMD's compute driver."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that an engine runs on, and the environment that binds the engine to it."""

    name: str
    env: dict[str, str]
    units: tuple[str, ...] = ()
    """GPUs or cores that no other device may have at the same time."""
    orphans: tuple[str, ...] = ()
    """Processes of a killed worker that were still running on it, and were ended when it was claimed."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs of the device, named as in CUDA_VISIBLE_DEVICES; none on a CPU."""
        return tuple(gpu for gpu in self.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu)


def cuda_driver_answers() -> bool:
    """Return whether an NVIDIA driver answers here and shows at least one GPU."""
    return bool(list_gpus())


def list_devices(kind: str, workers: int, gpus_per_worker: int = 1, whole_machine: bool = True) -> list[Device]:
    """Return the devices for `workers` engines. `kind` is cpu, cuda, or auto (cuda if a driver answers).

    Raises DeviceError if this machine has fewer. If the workers are spread over a cluster (`whole_machine` false), one
    is enough.
    """
    kind = _choose_kind(kind)
    devices = _group_all_gpus(gpus_per_worker) if kind == "cuda" else _share_cores(workers, gpus_per_worker)
    is_blind = kind == "cuda" and not can_ask()
    if len(devices) < (workers if whole_machine else 1):
        noun = "GPU" if kind == "cuda" else "core"
        here = len(list_gpus()) if kind == "cuda" else len(os.sched_getaffinity(0))
        raise DeviceError(
            f"The spec asks for {count(workers, 'engine')} with {count(gpus_per_worker, noun)} each; this machine has "
            f"{count(here, noun)}. hint: lower `workers` or the parallel sizes in engine.args"
            f"{', or check nvidia-smi and CUDA_VISIBLE_DEVICES' * (kind == 'cuda')}.{WITHOUT_MODULE * is_blind}"
        )
    return devices


def count_workers(kind: str, gpus_per_worker: int = 1) -> int:
    """Count the engines that fit this machine: one per group of GPUs, or one on all its cores."""
    kind = _choose_kind(kind)
    return max(1, len(_group_all_gpus(gpus_per_worker))) if kind == "cuda" else 1


def _choose_kind(kind: str) -> str:
    """Resolve `auto`: cuda if a driver answers, else cpu. Raises DeviceError if vLLM would use an AMD GPU."""
    if kind == "cpu":
        return kind
    if cuda_driver_answers():
        return "cuda"
    if _has_amd_gpu():
        raise DeviceError(
            "This machine has an AMD GPU; assayline claims NVIDIA GPUs only. hint: start `vllm serve` on the AMD GPU "
            "and set engine.backend: server and engine.server.url, or install vLLM's CPU build and set "
            "engine.device: cpu."
        )
    return "cpu" if kind == "auto" else kind


def _has_amd_gpu() -> bool:
    """Return whether torch is a ROCm build, or is a CUDA build on a machine with an AMD GPU. Torch is not imported."""
    try:
        source = Path(str(importlib.metadata.distribution("torch").locate_file("torch/version.py"))).read_text("utf-8")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return False
    builds = re.findall(r"^(cuda|hip)\b[^=\n]*= *'", source, re.MULTILINE)
    return "hip" in builds or ("cuda" in builds and KFD.exists())


@contextlib.contextmanager
def claim_device(
    devices: list[Device],
    lock_dir: Path,
    wait_s: float,
    holder: str = "",
    on_wait: Callable[[str], object] = str,
) -> Iterator[Device]:
    """Hold the first free device of `devices` while the block runs, and end orphans of its earlier holders.

    `holder` names this claim to other processes that want the device: `run ID (NAME)`. While all are taken, or others
    wait for them since before, `on_wait` gets the names of both every half second; an error that it raises ends the
    wait. Raises DeviceError if that takes longer than `wait_s` seconds, or if the folder of locks is not writable.
    """
    deadline = time.monotonic() + wait_s
    named = f"{holder}, process {os.getpid()}" if holder else f"process {os.getpid()}"
    ticket: Path | None = None
    with contextlib.ExitStack() as queue:
        while True:
            ahead = _list_waiting(lock_dir, ticket)
            promised = {unit for _, units in ahead for unit in units}
            left = [device for device in devices if promised.isdisjoint(device.units)]
            if claimed := _try_claim(left, lock_dir, named):
                break
            holders = "; ".join(f"{d.name} by {_holder(lock_dir, d)}" for d in devices)
            if ahead:
                holders += f". Earlier in the queue: {'; '.join(name for name, _ in ahead)}"
            if time.monotonic() >= deadline:
                raise DeviceError(
                    f"Every device is taken: {holders}. hint: wait for that run or stop it, or set "
                    "ASSAYLINE_DEVICE_WAIT_S (seconds), and this one waits."
                )
            ticket = ticket or _take_ticket(lock_dir, devices, named, queue)
            on_wait(holders)
            time.sleep(CLAIM_POLL_INTERVAL_S)
    device, locks = claimed
    with locks:
        paths = [lock_dir / f"{unit}.lock" for unit in device.units]
        yield replace(device, env={**device.env, **locks_variable(paths)}, orphans=tuple(end_orphans(paths)))


def _take_ticket(lock_dir: Path, devices: list[Device], named: str, queue: contextlib.ExitStack) -> Path:
    """Write a ticket, with its place in its name and the devices that it waits for, until `queue` is closed."""
    ticket = lock_dir / f"{time.time_ns()}-{os.urandom(4).hex()}.ticket"
    unlocked = ticket.with_suffix(".new")
    _try_lock(unlocked, queue, "\n".join([*{unit for device in devices for unit in device.units}, named]))
    queue.callback(ticket.unlink, missing_ok=True)
    return unlocked.rename(ticket)


def _list_waiting(lock_dir: Path, ticket: Path | None) -> list[tuple[str, list[str]]]:
    """Return the names and the devices of the tickets before this one. Those of killed processes are removed."""
    waiting = []
    for path in sorted(lock_dir.glob("*.ticket")):
        if path == ticket:
            break
        with contextlib.suppress(OSError), open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                *units, name = lock.read().split("\n")
                waiting.append((name, units))
            else:
                path.unlink()
    return waiting


def _try_claim(devices: list[Device], lock_dir: Path, named: str) -> tuple[Device, contextlib.ExitStack] | None:
    try:
        _make_folder(lock_dir)
        for device in devices:
            with contextlib.ExitStack() as locks:
                if all(_try_lock(lock_dir / f"{unit}.lock", locks, named) for unit in device.units):
                    return device, locks.pop_all()
    except OSError as error:
        raise DeviceError(
            f"Cannot lock a device in {lock_dir}: {error}. hint: run `chmod 1777 {lock_dir} && chmod 666 "
            f"{lock_dir}/*.lock` as the owner of these files, or set ASSAYLINE_LOCK_DIR to a folder that every user "
            "of this machine can write."
        ) from error
    return None


def _make_folder(lock_dir: Path) -> None:
    """Make the folder of locks unless it exists. Every user may create files in it and delete their own."""
    lock_dir.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        lock_dir.mkdir()
        lock_dir.chmod(0o1777)


def _open_lock(path: Path) -> int:
    """Open a lock file for reading and writing; create it for every user if it is missing.

    An existing file is opened without O_CREAT, which kernels refuse for another user's file in such a folder.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL)
            os.fchmod(made, 0o666)  # whatever the umask
            return made


def _try_lock(path: Path, locks: contextlib.ExitStack, named: str) -> bool:
    lock = locks.enter_context(open(_open_lock(path), "r+", encoding="utf-8", errors="replace"))  # noqa: SIM115 - held
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    lock.truncate(0)
    lock.write(f"{named}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    lock.flush()
    locks.callback(lock.truncate, 0)  # a file that names a holder is held, unless its holder was killed
    return True


def _holder(lock_dir: Path, device: Device) -> str:
    """Return the holders of the device or of parts of it, as their locks name them."""
    holders = set()
    for unit in device.units:
        with contextlib.suppress(OSError):
            holders.add((lock_dir / f"{unit}.lock").read_text(encoding="utf-8", errors="replace"))
    return " and ".join(sorted(holders - {""})) or "an unknown process"


def _group_all_gpus(size: int) -> list[Device]:
    gpus = identify_gpus(list_gpus())
    return [_group_gpus(gpus[i : i + size]) for i in range(0, len(gpus) - size + 1, size)]


def _group_gpus(gpus: list[Gpu]) -> Device:
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.visible for gpu in gpus)}
    if any(gpu.is_slice for gpu in gpus):
        # Importing vLLM initialises CUDA if it sees a slice, and no process forked after that can use it.
        env["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    units = tuple(f"cuda-{gpu.uuid.replace('/', '_')}" for gpu in gpus)  # slices of old drivers have slashes
    return Device("-".join(["cuda", *(gpu.label.replace("/", "_") for gpu in gpus)]), env, units)


def _share_cores(workers: int, parts: int = 1) -> list[Device]:
    """Return equal shares of the cores that this process may use, in the form that vLLM's CPU backend expects.

    Each share has `parts` groups of cores, one per process of an engine whose model is split.
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
    """Return the processor's name and the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {cores} cores"
    return f"cpu, {cores} cores"
