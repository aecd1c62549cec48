"""Engines that many tests share, as opening one takes seconds; and a driver that shows the GPUs that a test names."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine_kit import Asker, Control, Reference, open_engine
from server_kit import FakeServer

from assayline.engines.client import HostedEngine


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer().running() as running:
        yield running


@pytest.fixture(scope="session")
def asker(tiny_model: Path) -> Asker:
    return Asker(tiny_model)


@pytest.fixture(scope="session")
def session_control() -> Control:
    return Control()


@pytest.fixture
def control(session_control: Control) -> Iterator[Control]:
    """The shared engine's hooks, as new for each test."""
    session_control.samples.clear()
    yield session_control
    session_control.stop = False


@pytest.fixture(scope="session")
def engine(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, session_control: Control
) -> Iterator[HostedEngine]:
    """Continuous, 8 running sequences, the window that follows from it."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with closing(open_engine(tiny_model, log, session_control)) as opened:
        yield opened


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


DRIVER = Path(__file__).parent / "devices" / "driver"


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
