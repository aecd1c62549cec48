"""Databases to report on: runs of every sad kind."""

from collections.abc import Iterator

import pytest
from row_kit import Sad

from assayline.settings import Settings


@pytest.fixture
def sad(settings: Settings) -> Iterator[Sad]:
    yield Sad(settings)
