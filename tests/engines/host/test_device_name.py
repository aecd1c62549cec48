"""The name of the device that an engine runs on: a label, for which no engine that is open may end."""

import sys
from types import SimpleNamespace
from typing import NoReturn

import pytest

from assayline.engines.devices.claims import name_cpu
from assayline.engines.host.vllm import rows


class Nameless:
    """A platform of a plugin's that says only what kind it is: vLLM's base class raises this for the rest."""

    device_type = "npu"

    def get_device_name(self) -> NoReturn:
        raise NotImplementedError


class Sliced:
    """vLLM's platform on a MIG slice: it asks NVML by a number that the slice does not have."""

    device_type = "cuda"

    def get_device_name(self) -> NoReturn:
        raise NVMLError_InvalidArgument


class NVMLError_InvalidArgument(Exception):
    """As in vLLM's own copy of pynvml, which shares no base with another's."""


class Processor:
    """vLLM's platform of a CPU, whose own name for it is "cpu"."""

    device_type = "cpu"


@pytest.mark.parametrize(("platform", "name"), [(Nameless(), "npu"), (Sliced(), "cuda"), (Processor(), name_cpu())])
def test_a_device_has_the_name_that_can_be_had(platform, name, monkeypatch):
    monkeypatch.setattr(rows, "list_gpus", list)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(platforms=sys.modules["vllm.platforms"]))
    assert rows._device_name() == name and name != "cpu"


def test_device_name_is_the_drivers_when_vllm_cannot_tell_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=Sliced()))
    monkeypatch.setattr(rows, "list_gpus", lambda: ["MIG-77"])
    monkeypatch.setattr(rows, "name_gpu", {"MIG-77": "NVIDIA H100 MIG 1g.10gb"}.get)
    assert rows._device_name() == "NVIDIA H100 MIG 1g.10gb"
