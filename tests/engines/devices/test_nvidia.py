"""GPU details from the driver, values that it lacks, and processes that use GPU memory."""

import sys
from pathlib import Path
from typing import Any

import pytest

from assayline.engines.devices import watch
from assayline.engines.devices.claims import list_devices
from assayline.engines.devices.nvidia import MemoryHolder, list_gpus, list_processes, name_gpu, read_free_bytes
from assayline.engines.devices.watch import DeviceMemory
from assayline.errors import DeviceError

GIB = 2**30
BIG = {"uuid": "GPU-3f5a", "name": "Big GPU", "free": 70 * GIB, "processes": [[200, 9 * GIB], [7, None]],
       "slices": [{"uuid": "MIG-77", "name": "Big GPU MIG 1g", "free": GIB}]}  # fmt: skip
DUMB = {"uuid": "GPU-9c01"}


def test_a_gpu_is_found_by_index_by_uuid_and_by_the_beginning_of_one(show_gpus):
    show_gpus(DUMB, BIG)
    assert [name_gpu(gpu) for gpu in ("1", "GPU-3f5a", "GPU-3f", "MIG-77")] == ["Big GPU"] * 3 + ["Big GPU MIG 1g"]
    assert (read_free_bytes("GPU-3f"), read_free_bytes("MIG-77")) == (70 * GIB, GIB)
    assert name_gpu("2") is None and name_gpu("GPU-none") is None and name_gpu("MIG-none") is None


def test_nvidia_values_are_none_if_the_driver_lacks_them(show_gpus):
    show_gpus(DUMB)
    assert list_gpus() == ["0"]
    assert (name_gpu("0"), read_free_bytes("0"), list_processes("0")) == (None, None, [])


def test_processes_are_named_as_far_as_the_driver_can(show_gpus):
    show_gpus(BIG)
    assert list_processes("0") == [MemoryHolder(200, "program-200", 9 * GIB), MemoryHolder(7, "unknown", None)]


def test_the_driver_is_closed_after_each_question_even_one_that_it_refuses(show_gpus):
    show_gpus(BIG, DUMB)
    for gpu in ("0", "1", "5"):
        read_free_bytes(gpu)
        list_processes(gpu)
    assert sys.modules["pynvml"].opened == 0


def test_without_a_driver_or_its_module_there_are_no_gpus(no_driver, monkeypatch):
    assert list_gpus() == [] and name_gpu("0") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert list_gpus() == [], "nobody is there to make them visible"
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "pynvml.py").exists()])
    monkeypatch.delitem(sys.modules, "pynvml")
    assert list_gpus() == [] and read_free_bytes("0") is None
    with pytest.raises(DeviceError, match=r"nvidia-ml-py, which is not installed"):
        list_devices("cuda", 1)


def test_memory_is_back_when_about_as_much_is_free_as_before(show_gpus, monkeypatch):
    waits: list[float] = []
    show_gpus(BIG, DUMB)
    held = DeviceMemory(("0", "1"))

    def free_more(seconds: float) -> None:
        waits.append(seconds)
        show_gpus({**BIG, "free": (10 + 20 * len(waits)) * GIB}, DUMB)

    monkeypatch.setattr(watch.time, "sleep", free_more)
    show_gpus({**BIG, "free": 10 * GIB}, DUMB)
    assert held.wait_until_back(60.0, lambda: False) and len(waits) == 3
    show_gpus({**BIG, "free": 10 * GIB}, DUMB)
    assert not held.wait_until_back(60.0, lambda: True), "a stop ends the wait"
    show_gpus()
    assert held.wait_until_back(0.0, lambda: False), "a driver that has gone silent keeps nobody waiting"


def test_the_largest_holders_are_named(show_gpus):
    busy: dict[str, Any] = {**BIG, "processes": [[7, None], [300, GIB], [301, 2 * GIB], [302, 3 * GIB]]}
    show_gpus(busy)
    assert DeviceMemory(("0",)).describe_holders() == (
        "Memory is held by process 302 (program-302, 3072 MiB), process 301 (program-301, 2048 MiB), "
        "process 300 (program-300, 1024 MiB)."
    )
    show_gpus(DUMB)
    assert DeviceMemory(("0",)).describe_holders() == ""
