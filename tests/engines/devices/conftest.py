"""A driver of which tests say what it shows, for this process and for those that it starts."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).parent / "driver"


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is installed, and finds no driver."""
    monkeypatch.setitem(sys.modules, "pynvml", None)  # undone at the end, whatever is imported meanwhile
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.syspath_prepend(DRIVER)
    monkeypatch.setenv("PYTHONPATH", str(DRIVER))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("FAKE_GPUS", raising=False)


@pytest.fixture
def show_gpus(no_driver: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on the driver shows these GPUs."""

    def show(*gpus: dict[str, Any]) -> None:
        monkeypatch.setenv("FAKE_GPUS", json.dumps(gpus))

    return show


@pytest.fixture
def gpus(show_gpus: Callable[..., None]) -> None:
    """A driver that shows four GPUs."""
    show_gpus(*({"uuid": f"GPU-{letter}", "name": "Four of a kind"} for letter in "abcd"))
