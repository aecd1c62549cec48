"""What is refused before a model loads, because it would fail after minutes of loading."""

import shutil
import sys
from types import SimpleNamespace

import pytest

from assayline.engines.host.vllm import rows
from assayline.errors import DeviceError


def install_torch(monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    torch = SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(rows, "read_driver_version", lambda: "535.183.01")


def test_check_driver_refuses_a_torch_for_a_newer_cuda(monkeypatch):
    install_torch(monkeypatch, "13.0")
    monkeypatch.setattr(rows, "read_cuda_version", lambda: (12, 2))
    with pytest.raises(DeviceError, match=r"built for CUDA 13\.0, but the NVIDIA driver 535\.183\.01 runs CUDA 12\.2"):
        rows._check_driver()


@pytest.mark.parametrize(("wheel", "driver"), [("12.8", (12, 2)), ("12.8", (13, 0)), ("13.0", None), (None, (12, 2))])
def test_check_driver_accepts_what_may_run(monkeypatch, wheel, driver):
    """Within a major version, CUDA's minor versions run on each other's drivers."""
    install_torch(monkeypatch, wheel)
    monkeypatch.setattr(rows, "read_cuda_version", lambda: driver)
    rows._check_driver()


@pytest.mark.parametrize(
    ("args", "mib", "is_refused"),
    [
        ({"tensor_parallel_size": 2}, 64, True),
        ({"pipeline_parallel_size": 2}, 64, True),
        ({"tensor_parallel_size": 2}, 8192, False),
        ({}, 64, False),
    ],
)
def test_check_shared_memory_refuses_a_containers_default_for_a_split_model(monkeypatch, args, mib, is_refused):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=mib << 20))
    if not is_refused:
        rows._check_shared_memory(args)
        return
    with pytest.raises(DeviceError, match=r"64 MiB, too little for a model split over 2 processes.*--shm-size"):
        rows._check_shared_memory(args)
