"""Databases to report on: runs of every sad kind."""

import pytest
from row_kit import Sad

from assayline.settings import Settings


@pytest.fixture
def sad(settings: Settings) -> Sad:
    return Sad(settings)
