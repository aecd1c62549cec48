"""An engine host's process, before any engine is in it: it starts alone and never outlives its worker."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest
from engine_kit import ROOT, living_members, start_other, wait_until_gone
from run_kit import PATIENCE_S, start_python

from assayline.engines import process as processes
from assayline.engines.messages import Channel
from assayline.engines.process import RELAYED_LINES, HostProcess
from assayline.engines.recovery.causes import classify
from assayline.errors import DeviceError, EngineError, Kind, Witness

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
from assayline.engines.host.channel import HostChannel
channel = HostChannel(int(sys.argv[1]))
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
from assayline.spec.engine import EngineSpec
order = Open(engine=EngineSpec(backend="server"), model="model", clock=RunClock.start())
make_core(order, lambda resolved: None)
process.ServeProcess(order, lambda *_: print(sorted({"vllm", "torch"} & sys.modules.keys()), flush=True))
"""


def test_a_server_is_forked_from_a_host_without_vllm():
    """Importing vLLM initialises CUDA where a MIG slice is visible, and a fork of that process could not use it."""
    with start_python(SERVING) as host:
        assert host.communicate()[0] == "[]\n"


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def host(tmp_path: Path, lines: list[str]) -> Iterator[HostProcess]:
    host = HostProcess(dict(os.environ), tmp_path / "logs" / "host.log", lines.append)
    yield host
    host.kill()


def test_a_killed_parent_takes_its_host_with_it(tmp_path):
    with start_python(PARENT, tmp_path / "host.log") as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert [process.pid for process in living_members(group)] == [group]
        parent.kill()
    wait_until_gone(group)


def test_the_death_of_a_host_is_seen_at_once_though_what_it_forked_lives():
    """vLLM forks its engine core wherever no device is in use."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", FORKING, str(theirs.fileno())]
        host = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        try:
            ours.settimeout(PATIENCE_S)
            assert ours.recv(1) == b""
            assert host.wait(PATIENCE_S) == -signal.SIGKILL and len(living_members(host.pid)) == 1
        finally:
            os.killpg(host.pid, signal.SIGKILL)


def test_a_host_that_does_not_move_is_killed_with_its_group(host):
    os.kill(host.pid, signal.SIGSTOP)
    assert living_members(host.pid)
    host.kill()
    host.kill()
    assert living_members(host.pid) == [] and host.exit_code == -signal.SIGKILL


def test_a_death_is_told_with_the_signals_name_and_the_end_of_the_log(host, lines):
    log = ROOT / host.log_path
    with open(log, "a") as file:
        file.writelines(f"line {number}\n" for number in range(50))
    os.kill(host.pid, signal.SIGTERM)
    told = r"(?s)died of signal SIGTERM\.\nThe end of its log, \S+host\.log:.*line 49"
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


def print_as(host: HostProcess, text: str) -> None:
    with open(host.log_path, "a") as log:
        log.write(text)


LARGE = "x" * 2**23
"""More than a socket holds."""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The worker's end, and the other one."""
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_receive_does_not_wait_for_the_rest_of_a_message():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(theirs).send("a message")
        sent = ours.recv(1000)
        worker = Channel(ours)
        theirs.send(sent[:9])
        assert worker.receive(0.01) is None
        theirs.send(sent[9:] + sent)
        assert [worker.receive(1), worker.receive(1), worker.receive(0)] == ["a message", "a message", None]


def test_receive_returns_what_came_before_the_end(ends):
    worker, other = ends
    other.send("Failed")
    worker.send(LARGE)
    other.close()
    with contextlib.suppress(OSError):
        worker.send("to nobody")
    assert worker.receive(1) == "Failed"
    with pytest.raises((EOFError, OSError)):
        worker.receive(1)


# torch 2.13's line that decides, as vLLM 0.32 prints it for its engine core.
# The next lines come from vLLM's server, for every stream.
OOM = "(EngineCore pid=7) ERROR 11-24 22:35:34 [core.py:1512] torch.OutOfMemoryError: CUDA out of memory. Tried to"
NOISE = '(ApiServer pid=9) ERROR 11-24 22:35:34 [serving.py:500]   File "vllm/v1/engine/async_llm.py", line 604\n'
GONE = {"exception": "EngineGoneError", "message": "vLLM's server ended", "witness": Witness.LOG}


def test_evidence_holds_the_cause_however_much_was_printed_after_it(host, lines):
    host.begin_run()
    print_as(host, "a line\n" * 1000 + f"{OOM} allocate 2.00 GiB.\n" + NOISE * 100_000)
    assert classify(host.evidence(**GONE)).kind is Kind.DEVICE_OOM
    assert any(line.startswith(OOM) for line in lines), "and it is shown, whatever else is not"
    host.kill()


def test_evidence_of_a_run_leaves_out_causes_from_the_start(host):
    print_as(host, f"{OOM}: tried something smaller\n")
    host.begin_run()
    print_as(host, NOISE)
    assert classify(host.evidence(**GONE)).kind is Kind.OTHER


def test_receive_relays_a_flood_of_lines_within_limits(host, lines, monkeypatch):
    monkeypatch.setattr(processes, "DRAIN_S", PATIENCE_S)  # on a busy machine, the rest takes longer
    print_as(host, NOISE * 60_000)  # 6 MB
    began = time.monotonic()
    for _ in range(100):
        host.receive(0.01)
    assert 1 < len(lines) <= (int(time.monotonic() - began) + 2) * (RELAYED_LINES + 1)
    host.kill()
    told = [int(line.split()[4].replace(",", "")) for line in lines if line.endswith(f"more lines in {host.log_path}")]
    shown = sum("async_llm" in line for line in lines)
    assert shown + sum(told) == 60_000


WITHOUT_REAPER = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, "tests")
from engine_kit import start_other
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here, and nobody asks for their exit codes
host = start_other(Path(sys.argv[1]), "subprocess.Popen(['sleep', '600'])")
host.kill()
print(host.exit_code)
"""


def test_kill_does_not_wait_for_zombies(tmp_path):
    """As in a container whose first process reaps nobody."""
    with start_python(WITHOUT_REAPER, tmp_path / "log") as parent:
        assert parent.communicate(timeout=PATIENCE_S)[0] == f"{-signal.SIGKILL}\n"


def test_kill_raises_with_a_hint_when_a_process_cannot_be_killed(host, monkeypatch):
    """A thread in the driver's uninterruptible sleep."""
    monkeypatch.setattr(processes, "KILL_WAIT_S", 0.2)
    monkeypatch.setattr(processes, "_signal_group", lambda group: True)
    monkeypatch.setattr(processes, "_list_members", lambda group: [psutil.Process()])
    with pytest.raises(DeviceError, match=rf"(?s)could not be killed.*{os.getpid()} \(.*hint: .*dmesg"):
        host.kill()
    host.kill()
    monkeypatch.undo()
    os.killpg(host.pid, signal.SIGKILL)
    assert host.wait(PATIENCE_S)


def test_kill_unlinks_the_shared_memory_of_the_group_alone(tmp_path):
    """Shared memory of vLLM's workers has multiprocessing's names; the process that would unlink it is killed too."""
    foreign = SharedMemory(create=True, size=4096)
    weights = Path("/dev/shm") / f"weights-{os.getpid()}"
    weights.write_bytes(bytes(4096))
    work = (
        "memory = SharedMemory(create=True, size=4096)\n"
        f"import mmap; mapped = mmap.mmap(os.open({str(weights)!r}, os.O_RDWR), 0)\n"
        "print(memory.name, flush=True)"
    )
    try:
        host = start_other(tmp_path / "log", work)
        name = host.log_path.read_text().split()[0]
        assert (Path("/dev/shm") / name).exists()
        host.kill()
        assert not (Path("/dev/shm") / name).exists()
        assert weights.exists() and (Path("/dev/shm") / foreign.name).exists()
    finally:
        weights.unlink()
        foreign.close()
        foreign.unlink()
