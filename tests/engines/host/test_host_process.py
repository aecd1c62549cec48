"""An engine host's process, before any engine is in it: it starts alone and never outlives its worker."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from engine_helpers import ROOT, living_members, start_python, wait_until_gone

from assayline.engines.process import HostProcess
from assayline.errors import EngineError

PARENT = """
import os, sys, time
from pathlib import Path
from assayline.engines.process import HostProcess
host = HostProcess(os.environ, Path(sys.argv[1]), print)
print(host.pid, flush=True)
time.sleep(600)
"""

FORKING = """
import os, sys, time
from assayline.engines.host.channel import Channel
channel = Channel(int(sys.argv[1]))
if os.fork() == 0:
    time.sleep(600)
os.kill(os.getpid(), 9)
"""


SERVING = """
import sys
from assayline.clock import RunClock
from assayline.engines.host.__main__ import make_core
from assayline.engines.host.server import process
from assayline.engines.messages import Open
from assayline.spec.engine import ServerSpec
order = Open(backend="server", model="model", clock=RunClock.start(), server=ServerSpec())
process._serve = lambda *_: print(sorted({"vllm", "torch"} & sys.modules.keys()), flush=True)
make_core(order)
server = process.ServeProcess(order)
server._process.join()
"""


def test_a_server_is_forked_from_a_host_without_vllm() -> None:
    """Importing vLLM initialises CUDA where a MIG slice is visible, and a fork of that process could not use it."""
    with start_python(SERVING) as host:
        assert host.communicate()[0] == "[]\n"


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def host(tmp_path: Path, lines: list[str]) -> HostProcess:
    return HostProcess(dict(os.environ), tmp_path / "logs" / "host.log", lines.append)


def test_a_killed_parent_takes_its_host_with_it(tmp_path: Path) -> None:
    with start_python(PARENT, tmp_path / "host.log") as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert [process.pid for process in living_members(group)] == [group]
        parent.kill()
    assert wait_until_gone(group, 10)


def test_the_death_of_a_host_is_seen_at_once_though_what_it_forked_lives() -> None:
    """vLLM forks its engine core wherever no device is in use."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", FORKING, str(theirs.fileno())]
        host = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        try:
            ours.settimeout(60)
            assert ours.recv(1) == b""
            assert host.wait(10) == -signal.SIGKILL and len(living_members(host.pid)) == 1
        finally:
            os.killpg(host.pid, signal.SIGKILL)


def test_a_host_that_does_not_move_is_killed_with_its_group(host: HostProcess) -> None:
    os.kill(host.pid, signal.SIGSTOP)
    assert living_members(host.pid)
    host.kill()
    host.kill()
    assert living_members(host.pid) == [] and host.exit_code == -signal.SIGKILL


def test_a_death_is_told_with_the_signals_name_and_the_end_of_the_log(host: HostProcess, lines: list[str]) -> None:
    log = ROOT / host.log_path
    with open(log, "a") as file:
        file.writelines(f"line {number}\n" for number in range(50))
    os.kill(host.pid, signal.SIGTERM)
    told = r"(?s)died of signal SIGTERM\. The end of its log, \S+host\.log:.*line 49"
    with pytest.raises(EngineError, match=told) as caught:
        for _ in range(100):
            assert host.receive(0.1) is None
    assert "line 3\n" not in str(caught.value)
    assert lines == [f"line {number}" for number in range(50)]
    with pytest.raises(EngineError, match="died of signal SIGTERM"):
        host.send("anything")
    host.kill()
    with pytest.raises(EngineError, match="died of signal SIGTERM"):
        host.send("anything")


def test_silence_is_none_and_costs_no_more_than_was_asked(host: HostProcess) -> None:
    started = time.monotonic()
    assert host.receive(0.05) is None
    assert time.monotonic() - started < 5
    assert host.exit_code is None and not host.wait(0.01)
    assert psutil.Process(host.pid).ppid() == os.getpid()
    host.kill()
