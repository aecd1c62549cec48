"""Processes that prepare media, with images that end them."""

import multiprocessing
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from run_kit import plain_request

from assayline.clock import RunClock
from assayline.engines.host.core import Prepared
from assayline.engines.host.vllm.preparers import NAME, Preparers
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request

LARGE = 2**24
ORDER = Open(backend="offline", model="m", clock=RunClock.start(), has_media=True)


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


class Asking:
    """Stand-in for an engine's thread: submits, and collects when something can be read."""

    def __init__(self, count: int) -> None:
        self.preparers = Preparers(ORDER, make_prepare, count)
        self.outcomes: dict[str, Any] = {}
        self._poll = select.poll()
        self._poll.register(self.preparers, select.POLLIN)

    def submit(self, request_id: str, name: str = "one") -> bool:
        request = plain_request(request_id)
        return self.preparers.submit(request, "a configuration", partial(self.outcomes.__setitem__, name))

    def collect(self, count: int) -> dict[str, Any]:
        while len(self.outcomes) < count:
            assert self._poll.poll(30_000), f"nothing came; there are {list(self.outcomes)}"
            self.preparers.collect()
        found, self.outcomes = self.outcomes, {}
        return found

    def ask(self, request_id: str) -> Any:
        if not self.submit(request_id):
            return None
        return self.collect(1)["one"]


def test_preparers_return_each_outcome_and_one_image_kills_at_most_two_processes():
    asking = Asking(3)
    for number in range(3):
        asking.submit("good", str(number))
    asked = asking.collect(3)
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
    assert asking.ask("fatal") is None, "the last one died: the engine's own process is to prepare"
    assert asking.submit("good") is False


def test_large_outcomes_are_read_elsewhere_and_hold_nobody_up():
    asking = Asking(2)
    for number in range(8):
        asking.submit("large" if number % 2 else "good", str(number))
    found = asking.collect(8)
    assert [len(found[str(number)].form.get("pixels", b"")) for number in range(8)] == [0, LARGE] * 4
    assert sum(thread.name == "media-large" for thread in threading.enumerate()) <= 2, "one for each process"


def test_requests_that_wait_behind_a_fatal_one_are_not_blamed():
    asking = Asking(3)
    for number in range(9):
        asking.submit("fatal" if number == 0 else "good", str(number))
    found = asking.collect(9)
    assert isinstance(found.pop("0"), MediaError)
    assert all(isinstance(one, Prepared) for one in found.values())


def test_processes_that_are_killed_between_requests_are_nobodys_fault():
    asking = Asking(3)
    for child in multiprocessing.active_children():
        if child.name == NAME:
            child.kill()
            child.join()
    assert asking.ask("good") is None
    assert not multiprocessing.active_children()


def test_a_long_request_waits_until_its_process_reads():
    asking = Asking(1)
    long = [1] * 10**6
    for number in range(4):
        request = plain_request("echo", prompt_token_ids=long)
        asking.preparers.submit(request, "a configuration", partial(asking.outcomes.__setitem__, str(number)))
    found = asking.collect(4)
    assert [len(one.form["ids"]) for one in found.values()] == [10**6] * 4
