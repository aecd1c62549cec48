"""Stores for the tests of places, and of runs on them: one server of each kind for all tests of a file."""

from collections.abc import Iterator

import pytest
from store_kit import Proxy, make_bucket, serving, use_store


@pytest.fixture(scope="module")
def moto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving("moto", tmp_path_factory.mktemp("stores") / "moto") as port:
        make_bucket(port, "bucket")
        yield port


@pytest.fixture(scope="module")
def localbucket_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving("localbucket", tmp_path_factory.mktemp("stores") / "localbucket") as port:
        make_bucket(port, "bucket")
        yield port


@pytest.fixture
def proxy(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Before moto; this process and those that it starts speak to it."""
    hurting = Proxy(moto_port)
    use_store(hurting.port, monkeypatch)
    yield hurting
    hurting.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A place in the bucket that no other test has."""
    return f"s3://bucket/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture(params=["moto", "localbucket"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, prefix: str) -> str:
    """A prefix in each of the two servers."""
    use_store(request.getfixturevalue(f"{request.param}_port"), monkeypatch)
    return prefix
