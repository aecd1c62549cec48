"""Processes that prepare media, with images that end them."""

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from run_kit import PATIENCE_S, plain_request, start_python

from assayline.clock import RunClock
from assayline.engines.host.core import Prepared
from assayline.engines.host.vllm import preparers
from assayline.engines.host.vllm.preparers import LARGE_BYTES, NAME, Pipe, Preparers
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request
from assayline.spec.engine import EngineSpec

LARGE = 2**24
MEETING = multiprocessing.get_context("fork").Barrier(3)
ORDER = Open(engine=EngineSpec(), model="m", clock=RunClock.start(), has_media=True)


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Imported before the first fork; collecting the file does not need it."""
    return pytest.importorskip("torch")


class OddError(Exception):
    """Cannot be read back: its class wants two arguments, and pickle has one. (Dask's pickles would do without.)"""

    def __new__(cls, what: str, why: str) -> "OddError":
        return super().__new__(cls, what, why)

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, {why}")


def make_prepare(order: Open, config: Any) -> Callable[[Request], Prepared[dict[str, Any]]]:
    assert config == "a configuration"

    def prepare(request: Request) -> Prepared[dict[str, Any]]:
        match request.request_id:
            case "meeting":
                MEETING.wait(PATIENCE_S)
            case "cut":
                raise MediaError("truncated", kind="prompt_too_long")
            case "odd":
                raise OddError("no", "reason")
            case "ended":
                raise EOFError("the picture ends early")
            case "large":
                return Prepared({"pixels": np.zeros(LARGE, np.uint8)}, {"images": 1})
            case "echo":
                return Prepared({"ids": request.prompt_token_ids}, {"images": 1})
            case "fatal":
                time.sleep(0.2)  # until another request waits behind it
                os._exit(9)
        return Prepared({"process": os.getpid()}, {"images": 1})

    return prepare


HERE: Prepared[dict[str, Any]] = Prepared({}, {})
"""The outcome in the engine's own process."""


class Asking:
    """Stand-in for an engine: submits, and waits for what the pool's threads pass on."""

    def __init__(self, count: int) -> None:
        self.preparers = Preparers(ORDER, make_prepare, count)
        self.preparers.begin("a configuration", lambda request: HERE, ThreadPoolExecutor(1))
        self._asked: dict[str, Future[Prepared[dict[str, Any]]]] = {}

    def submit(self, request: Request | str, name: str = "one") -> None:
        request = plain_request(request) if isinstance(request, str) else request
        self._asked[name] = self.preparers.submit(request)

    def collect(self) -> dict[str, Any]:
        asked, self._asked = self._asked, {}
        return {name: one.exception(PATIENCE_S) or one.result() for name, one in asked.items()}

    def ask(self, request_id: str) -> Any:
        self.submit(request_id)
        return self.collect()["one"]


def test_preparers_return_each_outcome_and_one_image_kills_at_most_two_processes():
    asking = Asking(3)
    for number in range(3):
        asking.submit("meeting", str(number))
    asked = asking.collect()
    assert len({one.form["process"] for one in asked.values()} - {os.getpid()}) == 3
    assert {one.columns["images"] for one in asked.values()} == {1}
    cut = asking.ask("cut")
    assert isinstance(cut, MediaError) and cut.kind == "prompt_too_long" and "truncated" in str(cut)
    odd = asking.ask("odd")
    assert isinstance(odd, RuntimeError) and "OddError: no, reason" in str(odd)
    ended = asking.ask("ended")
    assert isinstance(ended, EOFError), "of a picture, and not of the process"
    fatal = asking.ask("fatal")
    assert isinstance(fatal, MediaError) and "2 processes died that prepared its media" in str(fatal)
    assert asking.ask("good").columns == {"images": 1}, "one is left"
    assert asking.ask("fatal") is HERE, "the last one died: the engine's own process prepares"
    assert asking.ask("good") is HERE


def test_requests_that_wait_behind_a_fatal_one_are_not_blamed():
    asking = Asking(3)
    for number in range(9):
        asking.submit("fatal" if number == 0 else "good", str(number))
    found = asking.collect()
    assert isinstance(found.pop("0"), MediaError)
    assert all(isinstance(one, Prepared) for one in found.values())


def test_processes_that_are_killed_between_requests_are_nobodys_fault():
    asking = Asking(3)
    for child in multiprocessing.active_children():
        if child.name == NAME:
            child.kill()
            child.join()
    assert asking.ask("good") is HERE
    assert not multiprocessing.active_children()


def test_a_long_request_and_a_long_outcome_pass_each_other():
    asking = Asking(1)
    long = [1] * 10**6
    for number in range(4):
        asking.submit(plain_request("echo", prompt_token_ids=long), str(number))
    found = asking.collect()
    assert [len(one.form["ids"]) for one in found.values()] == [10**6] * 4


KILLED = """
import multiprocessing, os, signal, sys
sys.path[:0] = sys.argv[1].split(":")
from test_preparers import Asking
asking = Asking(2)
asking.submit("large")
held = asking.collect()
for number in range(8):
    asking.submit("large", str(number))
pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
lines = [line.strip() for pid in pids for line in open(f"/proc/{pid}/maps")]
print(*pids, any("/dev/shm/" in line and not line.endswith("(deleted)") for line in lines), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_preparers_of_a_killed_engine_end_and_leave_no_memory():
    with start_python(KILLED, ":".join(sys.path)) as engine:
        *pids, has_named_memory = engine.communicate()[0].split()
    assert len(pids) == 3 and has_named_memory == "False"
    for pid in map(int, pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(PATIENCE_S)


@pytest.fixture
def pipe() -> Iterator[tuple[Pipe, Pipe]]:
    ours, theirs = Pipe.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def carry(pipe: tuple[Pipe, Pipe], what: Any) -> Any:
    ours, theirs = pipe
    theirs.send(what)
    return ours.receive()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64", "uint8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (2, 3, 5), (3, LARGE_BYTES)])
def test_receive_returns_a_tensor_with_its_type_shape_and_values(torch, pipe, dtype, shape):
    count = int(np.prod(shape))
    tensor = (torch.arange(count) % 3).to(getattr(torch, dtype)).reshape(shape)
    found = carry(pipe, {"pixels": [tensor]})["pixels"][0]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found, tensor)


def test_receive_returns_views_and_slices_as_what_they_show(torch, pipe):
    grid = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    sent = {"turned": grid.T, "every second": grid[:, ::2], "mark": slice(0, torch.tensor(1), None)}
    found = carry(pipe, sent)
    assert torch.equal(found["turned"], grid.T) and torch.equal(found["every second"], grid[:, ::2])
    assert found["mark"].stop.item() == 1
    found["turned"] += 1  # an engine may write to what it is given


@pytest.mark.parametrize("room", [100_000, 2**20])
def test_receive_returns_large_content_that_later_content_leaves_alone(monkeypatch, room):
    """With little room, only the first of two pieces is in shared memory."""
    monkeypatch.setattr(preparers, "MEMORY_BYTES", room)
    ours, theirs = Pipe.pair()
    found = [carry((ours, theirs), [np.full(LARGE_BYTES, n + m, np.uint8) for m in (0, 9)]) for n in range(3)]
    assert [[set(one.tolist()) for one in pair] for pair in found] == [[{n}, {n + 9}] for n in range(3)]
    ours.close()
    theirs.close()
