"""Devices: which there are, and claims that no other process shares."""

import contextlib
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_kit import PATIENCE_S, Work, read_line, start_python, wait_for

from assayline.engines.devices import claims as devices
from assayline.engines.devices.claims import Device, claim_device, count_workers, list_devices
from assayline.errors import DeviceError
from assayline.run import worker as worker_module

CLAIM = """
import sys
from pathlib import Path
from assayline.engines.devices.claims import claim_device, list_devices
with claim_device(list_devices("cuda", 1, int(sys.argv[2])), Path(sys.argv[1]), 0) as device:
    print(device.name, flush=True)
    sys.stdin.readline()
"""
WAIT = """
import sys
from pathlib import Path
from assayline.engines.devices.claims import Device, claim_device
def say(holders):
    print("waits", flush=True)
with claim_device([Device("cuda-0", {}, ("cuda-0",))], Path(sys.argv[1]), 60, "run K", say):
    pass
"""
NOBODY = 65534
ALONE = [Device("cuda-0", {}, ("cuda-0",))]


@pytest.fixture
def holder(gpus: None, tmp_path: Path) -> Iterator[Any]:
    """Other processes that claim the first free devices; `holder(n)` takes n GPUs at once."""
    started = []

    def hold(gpus_per_worker: int = 1) -> Any:
        process = start_python(CLAIM, tmp_path, gpus_per_worker)
        started.append(process)
        return process, read_line(process)

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_claims_that_wait_are_served_in_their_order_and_a_newcomer_after_them(tmp_path):
    """Five waiters; one of them is killed, whose ticket stays."""
    served: list[int] = []
    heard: list[str] = []

    def wait(number: int) -> None:
        with claim_device(ALONE, tmp_path, 60, f"run {number}", heard.append):
            served.append(number)

    with contextlib.ExitStack() as holding:
        holding.enter_context(claim_device(ALONE, tmp_path, 0, "first"))
        killed = start_python(WAIT, tmp_path)
        assert read_line(killed) == "waits"
        threads = [threading.Thread(target=wait, args=[number]) for number in range(5)]
        for number, thread in enumerate(threads):
            thread.start()
            wait_for(lambda number=number: len(list(tmp_path.glob("*.ticket"))) == number + 2)
        wait_for(lambda: any(re.search(r"Earlier in the queue: run K.*; run 0.*; run 3", one) for one in heard))
        killed.kill()
        killed.communicate()
        holding.close()
        with pytest.raises(DeviceError, match=r"Earlier in the queue: run"):
            claim_device(ALONE, tmp_path, 0, "newcomer").__enter__()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert served == [0, 1, 2, 3, 4]
    assert list(tmp_path.glob("*.ticket")) == []


def test_a_claim_takes_a_device_that_nobody_before_it_waits_for(tmp_path):
    other = Device("cuda-1", {}, ("cuda-1",))
    with claim_device(ALONE, tmp_path, 0), contextlib.ExitStack() as queue:
        devices._take_ticket(tmp_path, ALONE, "run 1", queue)
        with claim_device([*ALONE, other], tmp_path, 0) as device:
            assert device.name == "cuda-1"


def test_a_claim_excludes_other_processes_until_they_are_killed(holder, tmp_path):
    process, name = holder()
    alone = list_devices("cuda", 1)[:1]
    assert name == "cuda-0"
    with pytest.raises(DeviceError, match=rf"is taken: cuda-0 by process {process.pid}, since .*DEVICE_WAIT_S"):
        claim_device(alone, tmp_path, 0).__enter__()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with claim_device(alone, tmp_path, 0) as device:
        assert device.name == "cuda-0"


def test_claim_device_names_the_run_that_holds_the_device_and_since_when(tmp_path, settings):
    order = Work(tmp_path, settings, engine={"device": "cpu"}).order("worker-0")
    holder = rf"{re.escape(order.holder)}, process {os.getpid()}, since 20.{{14}} UTC"
    told = rf"Every device is taken: cpu-\S+ by {holder}\. hint: wait for that run or stop it, or set ASSAYLINE_DEVICE"
    with contextlib.ExitStack() as stack:
        worker_module.claim_device(order, stack)
        with pytest.raises(DeviceError, match=told):
            worker_module.claim_device(order, contextlib.ExitStack())
    assert [lock.read_text() for lock in settings.lock_dir.glob("*.lock")][:1] == [""]


def test_claim_device_asks_for_as_many_as_a_model_is_split_over(no_driver, tmp_path, settings):
    engine = {"device": "cuda", "args": {"tensor_parallel_size": 3, "pipeline_parallel_size": 2}}
    order = Work(tmp_path, settings, engine=engine).order("worker-0")
    with pytest.raises(DeviceError, match="asks for 1 engine with 6 GPUs each; this machine has no GPUs"):
        worker_module.claim_device(order, contextlib.ExitStack())


def test_a_gpu_is_not_shared_by_runs_that_group_gpus_differently(holder, tmp_path):
    assert holder(2)[1] == "cuda-0-1"
    assert [holder(1)[1] for _ in range(2)] == ["cuda-2", "cuda-3"], "each process gets one of its own"
    with pytest.raises(DeviceError, match="cuda-0-1 by process"):
        claim_device(list_devices("cuda", 1, 2), tmp_path, 0).__enter__()


def test_a_failed_claim_leaves_no_part_of_a_group_behind(gpus, tmp_path):
    first, second, *_ = list_devices("cuda", 1)
    pair, *_ = list_devices("cuda", 1, 2)
    with claim_device([second], tmp_path, 0):
        with pytest.raises(DeviceError):
            claim_device([pair], tmp_path, 0).__enter__()
        with claim_device([first], tmp_path, 0) as device:
            assert device.units == first.units


def test_a_message_names_holders_that_there_are(gpus, tmp_path):
    pair, *_ = list_devices("cuda", 1, 2)
    for device in list_devices("cuda", 1)[:2]:
        (tmp_path / f"{device.units[0]}.lock").touch()
    with claim_device([pair], tmp_path, 0):
        pass
    alone = list_devices("cuda", 1)[:1]
    (tmp_path / f"{alone[0].units[0]}.lock").write_text("run of a process that was killed, process 7, since then" * 3)
    with (
        claim_device(alone, tmp_path, 0),
        pytest.raises(DeviceError, match=rf"0-1 by process {os.getpid()}, since 20.{{14}} UTC\. hint"),
    ):
        claim_device([pair], tmp_path, 0).__enter__()


@pytest.mark.parametrize(("cores", "workers", "size"), [(8, 2, 4), (7, 3, 2), (2, 2, 1), (3, 1, 3)])
def test_cores_are_shared_equally_and_disjointly(monkeypatch, cores, workers, size):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4, 4 + cores)))
    shares = list_devices("cpu", workers)
    bound = [share.env["VLLM_CPU_OMP_THREADS_BIND"].split(",") for share in shares]
    assert [len(share) for share in bound] == [size] * workers
    assert {share.env["OMP_NUM_THREADS"] for share in shares} == {str(size)}
    flat = [int(core) for share in bound for core in share]
    assert len(set(flat)) == len(flat) and set(flat) <= set(range(4, 4 + cores))
    assert [unit for share in shares for unit in share.units] == [f"cpu-{core}" for core in flat]
    assert len({share.name for share in shares}) == workers


def test_cuda_raises_without_a_driver_and_auto_picks_the_cpu(no_driver):
    with pytest.raises(DeviceError, match=r"asks for 1 engine with 1 GPU each; this machine has no GPUs.*nvidia-smi"):
        list_devices("cuda", 1)
    assert "VLLM_CPU_OMP_THREADS_BIND" in list_devices("auto", 1)[0].env


def test_an_engine_on_several_gpus_gets_a_group(gpus):
    assert [device.env["CUDA_VISIBLE_DEVICES"] for device in list_devices("cuda", 2, 2)] == ["0,1", "2,3"]
    with pytest.raises(DeviceError, match="2 engines with 3 GPUs each; this machine has 4 GPUs"):
        list_devices("cuda", 2, 3)
    assert len(list_devices("cuda", 2, 3, whole_machine=False)) == 1


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1", "2", "3"]), ("2,3", ["2", "3"]), ("GPU-ab, 1", ["GPU-ab", "1"]), ("", []), ("-1", []),
        ("0,-1,1", ["0"]),
    ],
)  # fmt: skip
def test_only_visible_gpus_are_used(gpus, monkeypatch, visible, expected):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if not expected:
        assert not devices.cuda_driver_answers()
        return
    for kind in ("cuda", "auto"):
        assert [device.env for device in list_devices(kind, 1)] == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in expected]


def test_waiting_ends_when_it_was_said_to_end(tmp_path):
    began = time.monotonic()
    with claim_device(ALONE, tmp_path, 0), pytest.raises(DeviceError):
        claim_device(ALONE, tmp_path, 0.2).__enter__()
    assert time.monotonic() - began >= 0.2


def test_an_engine_whose_model_is_split_gets_groups_of_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    shares = list_devices("cpu", 2, 2)
    assert [share.env["VLLM_CPU_OMP_THREADS_BIND"] for share in shares] == ["0,1|2,3", "4,5|6,7"]
    assert [share.units for share in shares] == [
        tuple(f"cpu-{i}" for i in range(4)),
        tuple(f"cpu-{i}" for i in range(4, 8)),
    ]
    with pytest.raises(DeviceError, match="asks for 2 engines with 5 cores each; this machine has 9 cores"):
        list_devices("cpu", 2, 5)


def test_auto_is_as_many_workers_as_there_are_groups_of_gpus(gpus, monkeypatch):
    assert [count_workers("auto", size) for size in (1, 2, 3, 4, 8)] == [4, 2, 1, 1, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert count_workers("cuda") == 2
    assert count_workers("cpu", 2) == 1


def test_slices_of_a_gpu_are_devices_of_their_own(show_gpus, tmp_path):
    slices = [{"uuid": "MIG-1"}, {"uuid": "MIG-GPU-2/1/0"}]
    show_gpus({"uuid": "GPU-a", "is_cut": True, "slices": slices}, {"uuid": "GPU-b", "is_cut": False})
    found = list_devices("cuda", 3)
    assert [device.env["CUDA_VISIBLE_DEVICES"] for device in found] == ["MIG-1", "MIG-GPU-2/1/0", "1"]
    assert [device.name for device in found] == ["cuda-MIG-1", "cuda-MIG-GPU-2_1_0", "cuda-1"]
    assert [device.units for device in found] == [("cuda-MIG-1",), ("cuda-MIG-GPU-2_1_0",), ("cuda-GPU-b",)]
    assert [device.env.get("VLLM_WORKER_MULTIPROC_METHOD") for device in found] == ["spawn", "spawn", None]
    with claim_device(found[1:2], tmp_path, 0) as device:
        assert device.gpus == ("MIG-GPU-2/1/0",)


@pytest.mark.parametrize("visible", ["2", "GPU-3f5a-77", "GPU-3f"])
def test_a_gpu_is_one_unit_however_it_is_named(show_gpus, monkeypatch, visible):
    show_gpus({"uuid": "GPU-a"}, {"uuid": "GPU-b"}, {"uuid": "GPU-3f5a-77"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{visible},0")
    named, by_index = list_devices("cuda", 2)
    assert (named.name, named.units, named.env["CUDA_VISIBLE_DEVICES"]) == ("cuda-2", ("cuda-GPU-3f5a-77",), visible)
    assert by_index.units == ("cuda-GPU-a",)


def test_claim_device_keeps_gpus_apart_that_are_number_0_in_their_control_groups(show_gpus, tmp_path):
    """Slurm with ConstrainDevices: each task sees one GPU, index 0 (NVIDIA/deepops#1102, NVIDIA/nccl-tests#300)."""
    show_gpus({"uuid": "GPU-a"})
    [first] = list_devices("cuda", 1)
    show_gpus({"uuid": "GPU-b"})
    [second] = list_devices("cuda", 1)
    assert first.name == second.name == "cuda-0"
    with claim_device([first], tmp_path, 0), claim_device([second], tmp_path, 0):
        pass


def as_nobody(claim: Callable[[], object]) -> str:
    """Claim devices in a process of another user; return the error's message, or nothing."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.umask(0o077)
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            claim()
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as told:
        words = told.read()
    os.waitpid(child, 0)
    return words


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user can reach and write."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_claim_device_serves_a_second_user_of_the_machine(public):
    locks = public / "locks"
    claim = lambda: claim_device(ALONE, locks, 0).__enter__()  # noqa: E731
    with claim_device(ALONE, locks, 0):
        assert re.match(rf"DeviceError: Every device .*: cuda-0 by process {os.getpid()}, ", as_nobody(claim))
    assert as_nobody(claim) == ""
    other = [Device("cuda-1", {}, ("cuda-1",))]
    assert as_nobody(lambda: claim_device(other, locks, 0).__enter__()) == ""
    with claim_device(other, locks, 0):
        pass
    assert locks.stat().st_mode & 0o7777 == 0o1777
    assert {file.stat().st_mode & 0o777 for file in locks.iterdir()} == {0o666}


def test_claim_device_hints_at_permissions_when_another_user_owns_the_folder(public):
    locks = public / "locks"
    locks.mkdir(mode=0o755)
    words = as_nobody(lambda: claim_device(ALONE, locks, 0).__enter__())
    assert words.startswith(f"DeviceError: Cannot lock a device in {locks}: [Errno 13] Permission denied")
    assert "hint: run `chmod 1777" in words and "ASSAYLINE_LOCK_DIR" in words


@pytest.fixture
def install_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a torch with only a version file before the installed one."""

    def install(*builds: str) -> None:
        (tmp_path / "torch-2.13.0.dist-info").mkdir()
        (tmp_path / "torch-2.13.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
        (tmp_path / "torch").mkdir()
        lines = [f"{name}: Optional[str] = {'1.0' if name in builds else None!r}" for name in ("cuda", "hip", "xpu")]
        (tmp_path / "torch" / "version.py").write_text("\n".join(["__version__ = '2.13.0'", *lines]))
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.mark.parametrize(
    ("builds", "has_kfd", "is_refused"),
    [(["hip"], False, True), (["cuda"], True, True), (["cuda"], False, False), ([], True, False)],
    ids=["ROCm", "CUDA on AMD", "CUDA without a GPU", "a CPU build beside AMD graphics"],
)
def test_list_devices_takes_no_machine_with_an_amd_gpu_for_a_cpu(
    no_driver, install_torch, tmp_path, monkeypatch, builds, has_kfd, is_refused
):
    install_torch(*builds)
    monkeypatch.setattr(devices, "KFD", tmp_path if has_kfd else tmp_path / "none")
    refused = pytest.raises(DeviceError, match=r"has an AMD GPU.*hint: start `vllm serve`.*engine\.server\.url")
    for kind in ("auto", "cuda"):
        if is_refused:
            with refused:
                list_devices(kind, 1)
            with refused:
                count_workers(kind)
    if not is_refused:
        assert list_devices("auto", 1)[0].name.startswith("cpu-")
    assert list_devices("cpu", 1)[0].name.startswith("cpu-")
