"""The fork server: what it forks is a host like any other, and whoever it does not suit has none of it."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_helpers import wait_until_gone

from assayline.engines import fork_server
from assayline.engines.environment import DEFAULTS
from assayline.engines.fork_server import ForkServer, begin_fork_server, keep_imports
from assayline.engines.process import HostProcess

ENV = {**DEFAULTS, **os.environ}


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has no such block."""
    monkeypatch.setattr(fork_server, "_users", 0)
    monkeypatch.setattr(fork_server, "_server", None)
    yield
    assert fork_server._server is None


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return path.read_text()


@pytest.mark.vllm
def test_a_forked_host_lives_and_dies_as_a_started_one(tmp_path: Path) -> None:
    server = ForkServer(ENV, tmp_path / "imports")
    asked = []
    assert server.wait_until_ready(600, lambda: asked.append(1)) and asked
    locks = tmp_path / "locks"
    locks.mkdir()
    hosts = [
        HostProcess({**ENV, "ASSAYLINE_DEVICE_LOCKS": str(locks / name)}, tmp_path / name, print, server)
        for name in ("0", "1", "2")
    ]
    for number, host in enumerate(hosts):
        assert host.exit_code is None
        assert psutil.Process(host.pid).ppid() == server.pid
        assert os.getsid(host.pid) == host.pid, "it has a session of its own"
        assert str(host.pid) in wait_for(locks / f"{number}.engine"), "its own environment counts"
    assert hosts[0].started_s == server.started_s < hosts[1].started_s, "the first one waited for the imports"

    psutil.Process(hosts[0].pid).kill()
    assert hosts[0].wait(20) and hosts[0].exit_code == -9 and "SIGKILL" in hosts[0].describe_death()
    hosts[1]._connection.close()
    assert wait_until_gone(hosts[1].pid, 20), "without its worker it ends itself"
    assert hosts[2].exit_code is None and server.is_alive

    psutil.Process(server.pid).kill()
    assert hosts[2].wait(20) and hosts[2].exit_code == -9, "hosts end with their server"
    assert wait_until_gone(hosts[2].pid, 20)
    late = HostProcess(ENV, tmp_path / "late", print, server)
    assert psutil.Process(late.pid).ppid() == os.getpid(), "without a server a host is started"
    for host in [*hosts, late]:
        host.kill()
    server.close()
    assert not (tmp_path / "imports").exists()


def test_only_an_environment_that_imports_alike_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer({"PATH": "/nowhere", "LOST": "1"}, tmp_path / "imports")
    try:
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
        monkeypatch.delenv("LOST", raising=False)
        kept = {"PATH": "/nowhere"}
        assert server.suits({**kept, "LOST": "1"})
        assert server.suits(kept), "this process has lost it, too"
        assert server.suits({**kept, "PREFECT_API_URL": "http://127.0.0.1:1/api"}), "and has got that"
        assert server.suits({**kept, "ASSAYLINE_DEVICE_LOCKS": "a"}), "hosts read it anew"
        assert not server.suits({**kept, "VLLM_CPU_KVCACHE_SPACE": "1"})
        assert not server.suits({"PATH": "/elsewhere"})
    finally:
        server.close()


def test_blocks_share_a_server_and_the_last_one_ends_it(tmp_path: Path, nothing_kept: None) -> None:
    assert begin_fork_server(ENV, tmp_path / "a") is None, "nobody wants one"
    with keep_imports():
        with keep_imports():
            server = begin_fork_server(ENV, tmp_path / "a")
            assert server is not None and server is begin_fork_server(ENV, tmp_path / "b")
            assert begin_fork_server({**ENV, "VLLM_X": "1"}, tmp_path / "b") is None
        assert server.is_alive
        subprocess.run(["kill", "-9", str(server.pid)], check=True)
        assert not server.wait_until_ready(600, lambda: None), "it is gone"
        another = begin_fork_server(ENV, tmp_path / "b")
        assert another is not None and another is not server and another.is_alive
    assert not another.is_alive
    assert list(tmp_path.iterdir()) == []


def test_waiting_ends_when_its_caller_says_so(tmp_path: Path) -> None:
    server = ForkServer(ENV, tmp_path / "imports")

    def stop() -> None:
        raise InterruptedError

    try:
        with pytest.raises(InterruptedError):
            server.wait_until_ready(600, stop)
        assert not server.wait_until_ready(0, lambda: None)
    finally:
        server.close()
