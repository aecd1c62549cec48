"""Processes that prepare media, with pictures that end them."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from assayline.clock import RunClock
from assayline.engines.host.media import Prepared
from assayline.engines.host.vllm.preparers import Preparers
from assayline.engines.messages import Open
from assayline.errors import MediaError
from assayline.records import Request

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
            case "fatal":
                time.sleep(0.2)  # until another request waits behind it
                os._exit(9)
        return Prepared({"process": os.getpid()}, {"images": 1})

    return prepare


def ask(preparers: Preparers, request_id: str) -> Prepared[dict[str, Any]] | None:
    return preparers.prepare(Request(request_id, "", 0, 0, [1], {}), "a configuration")


def test_each_outcome_comes_back_and_one_picture_kills_two_processes_at_most() -> None:
    preparers = Preparers(ORDER, make_prepare, 3)
    asked = [ask(preparers, "good") for _ in range(3)]
    assert len({one.form["process"] for one in asked if one} - {os.getpid()}) == 3
    assert {one.columns["images"] for one in asked if one} == {1}
    with pytest.raises(MediaError, match="truncated") as cut:
        ask(preparers, "cut")
    assert cut.value.kind == "prompt_too_long"
    with pytest.raises(RuntimeError, match="OddError: no, reason"):
        ask(preparers, "odd")
    with pytest.raises(MediaError, match="2 processes died that prepared its media"):
        ask(preparers, "fatal")
    assert ask(preparers, "good") is not None, "one is left"
    assert ask(preparers, "fatal") is None, "the last one died: the engine's own process is to prepare"
    assert ask(preparers, "good") is None


def test_a_request_that_waits_behind_a_fatal_one_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assayline.engines.host.vllm.preparers.TRIES", 1)
    preparers = Preparers(ORDER, make_prepare, 2)
    outcomes: dict[str, Any] = {}

    def ask_and_keep(request_id: str, name: str) -> None:
        try:
            outcomes[name] = ask(preparers, request_id)
        except MediaError as error:
            outcomes[name] = error

    names = [("fatal", "fatal"), *(("good", f"good {number}") for number in range(5))]
    threads = [threading.Thread(target=ask_and_keep, args=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(outcomes.pop("fatal"), MediaError)
    assert len(outcomes) == 5 and all(isinstance(one, Prepared) for one in outcomes.values())
