"""The name of the device that an engine runs on: a label, for which no engine that is open may end."""

from typing import NoReturn

import pytest

from assayline.engines.host.vllm import rows

pytestmark = pytest.mark.vllm


class Nameless:
    """A platform of a plugin's that says only what kind it is: vLLM's base class raises this for the rest."""

    device_type = "npu"

    def get_device_name(self) -> NoReturn:
        raise NotImplementedError


def test_a_platform_without_names_is_called_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import platforms

    monkeypatch.setattr(platforms, "_current_platform", Nameless())
    assert rows._device_name() == "npu"


def test_a_processor_has_its_own_name() -> None:
    assert rows._device_name() not in ("cpu", "")
