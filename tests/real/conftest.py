"""The real model's engines start as a user's do, with all cores."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def forked_hosts() -> None:
    """Start engines as processes of their own."""


@pytest.fixture(autouse=True)
def single_threads() -> None:
    """Leave the number of threads to vLLM."""
