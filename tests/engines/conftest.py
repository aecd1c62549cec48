"""Engines that many tests share: opening one takes seconds."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_helpers import Asker, Control, Reference, open_engine

from assayline.engines.client import OfflineEngine


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
) -> Iterator[OfflineEngine]:
    """Continuous, 8 running sequences, the window that follows from it."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with closing(open_engine(tiny_model, log, session_control)) as opened:
        yield opened


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)
