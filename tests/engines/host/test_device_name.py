"""The name of the device that an engine runs on: a label, for which no engine that is open may end."""

import sys
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from assayline.engines.devices.claims import name_cpu
from assayline.engines.host.vllm import rows


class Nameless:
    """A platform of a plugin's that says only what kind it is: vLLM's base class raises this for the rest."""

    device_type = "npu"

    def get_device_name(self) -> NoReturn:
        raise NotImplementedError


class Processor:
    """vLLM's platform of a CPU, whose own name for it is "cpu"."""

    device_type = "cpu"


@pytest.mark.parametrize(("platform", "name"), [(Nameless(), "npu"), (Processor(), name_cpu())])
def test_a_device_has_the_name_that_can_be_had(platform: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(platforms=sys.modules["vllm.platforms"]))
    assert rows._device_name() == name and name != "cpu"
