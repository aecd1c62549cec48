"""Databases to report on: invented runs, and runs of every sad kind."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from row_kit import Sad

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assayline.settings import Settings  # noqa: E402
from examples import two_weeks  # noqa: E402


@pytest.fixture(scope="session")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The two nights of examples/two_weeks.py."""
    folder = tmp_path_factory.mktemp("weeks")
    nights = tuple(night for night in two_weeks.NIGHTS if night.benchmark_id is None)
    return Settings(data_dir=folder, database=two_weeks.make_database(folder, nights))


@pytest.fixture
def sad(settings: Settings) -> Iterator[Sad]:
    yield Sad(settings)
