"""Errors raised before a model loads, not after minutes of loading; and a label that may not fail."""

from types import SimpleNamespace

import pytest

from assayline.engines.devices.claims import name_cpu
from assayline.engines.host.vllm.rows import check_driver, check_shared_memory, name_device
from assayline.errors import DeviceError


def test_check_driver_refuses_a_torch_for_a_newer_cuda():
    with pytest.raises(DeviceError, match=r"built for CUDA 13\.0, but the NVIDIA driver .* runs CUDA 12\.2 at most"):
        check_driver("13.0", (12, 2))


@pytest.mark.parametrize(("wheel", "driver"), [("12.8", (12, 2)), ("12.8", (13, 0)), ("13.0", None), (None, (12, 2))])
def test_check_driver_accepts_what_may_run(wheel, driver):
    """Within a major version, CUDA's minor versions run on each other's drivers."""
    check_driver(wheel, driver)


@pytest.mark.parametrize("args", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_check_shared_memory_refuses_a_containers_default_for_a_split_model(args):
    with pytest.raises(DeviceError, match=r"64 MiB, too little for a model split over 2 processes.*--shm-size"):
        check_shared_memory(args, 64 << 20)
    check_shared_memory(args, 8192 << 20)
    check_shared_memory({}, 64 << 20)


def fail() -> None:
    """Of vLLM's own copy of pynvml, whose errors share no base with another's; or a platform's that has no name."""
    raise NotImplementedError


@pytest.mark.parametrize(("kind", "name"), [("npu", "npu"), ("cuda", "cuda"), ("cpu", name_cpu())])
def test_a_device_has_the_name_that_can_be_had(kind, name, no_driver):
    assert name_device(SimpleNamespace(device_type=kind, get_device_name=fail)) == name != "cpu"


def test_name_device_asks_the_driver_when_vllm_cannot_tell_it(show_gpus):
    """vLLM asks NVML by a number that a MIG slice does not have."""
    show_gpus({"uuid": "GPU-a", "is_cut": True, "slices": [{"uuid": "MIG-77", "name": "NVIDIA H100 MIG 1g.10gb"}]})
    assert name_device(SimpleNamespace(device_type="cuda", get_device_name=fail)) == "NVIDIA H100 MIG 1g.10gb"
