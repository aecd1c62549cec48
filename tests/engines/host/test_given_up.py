"""Requests that vLLM gives up (`finish_reason: error`, no text) or refuses late: error rows, and no engine has died."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from run_kit import completion_of, plain_request

from assayline.clock import RunClock
from assayline.engines.host.flight import Live
from assayline.engines.host.vllm.async_core import AsyncCore
from assayline.engines.host.vllm.offline_core import VllmCore
from assayline.engines.host.vllm.rows import GAVE_UP, VllmRows
from assayline.engines.messages import Generate, Open
from assayline.records import Completion, Media
from assayline.spec.engine import EngineSpec

ORDER = Open(engine=EngineSpec(backend="async"), model="m", clock=RunClock.start())
PICTURE = Media(kind="image", path="/a.png", digest="d")


def live_of(media: list[Media] | None) -> Live:
    return Live(Generate(plain_request("r", media=media), 0.0, 1), 0.0)


def given_up(live: Live) -> Completion:
    live.finish_reason = "error"
    return VllmRows(ORDER).finish(live, SimpleNamespace(metrics=None), 1.0)


def test_empty_text_of_a_given_up_request_does_not_count_as_an_answer():
    row = given_up(live_of(None))
    assert (row.error_kind, row.text, row.finish_reason) == (GAVE_UP, None, None)


@pytest.mark.parametrize(
    ("media", "failures", "asked", "kind", "retries"),
    [([PICTURE], 1, 2, None, 1), ([PICTURE], 2, 2, GAVE_UP, 1), (None, 1, 1, GAVE_UP, None)],
    ids=["right the second time", "wrong twice", "of text"],
)
def test_with_media_it_is_asked_once_more_and_counted(media, failures, asked, kind, retries):
    core = AsyncCore(ORDER)
    tries: list[Live] = []

    async def ask(live: Live) -> Completion:
        tries.append(live)
        return given_up(live) if len(tries) <= failures else completion_of("r", text="red")

    core._ask = ask  # type: ignore[method-assign]
    row: Any = asyncio.run(core._answer(live_of(media)))
    assert (len(tries), row.error_kind, row.retries) == (asked, kind, retries)


class VLLMValidationError(ValueError):
    """As vLLM 0.33 raises for one request, for example for a schema that needs a second backend."""


class EngineDeadError(Exception):
    """As vLLM's."""


class LateEngine:
    """An AsyncLLM that takes a request, and puts an error into its collector a turn later."""

    def __init__(self, error: Exception) -> None:
        self.error, self.errored = error, False

    async def add_request(self, request_id: str, *_: Any, **__: Any) -> Any:
        collector = SimpleNamespace(output=None, put=None)
        asyncio.get_running_loop().call_soon(lambda: collector.put(self.error))
        return collector


@pytest.mark.parametrize("error", [VLLMValidationError("one backend per engine"), EngineDeadError("it is dead")])
def test_an_error_of_one_request_is_its_row_and_one_of_the_engine_its_death(monkeypatch, error):
    core = AsyncCore(ORDER)
    core._engine = LateEngine(error)
    monkeypatch.setattr(core._rows, "build_params", lambda request, live: None)
    if isinstance(error, EngineDeadError):
        with pytest.raises(EngineDeadError):
            asyncio.run(core.answer(Generate(plain_request("r"), 0.0, 1)))
    else:
        row = asyncio.run(core.answer(Generate(plain_request("r"), 0.0, 1)))
        assert row.error_kind and "one backend" in (row.error_message or "")


class RegisteringEngine:
    """An LLMEngine that registers a request, and then refuses it."""

    def __init__(self) -> None:
        self.registered: list[str] = []

    def add_request(self, request_id: str, *_: Any, **__: Any) -> None:
        self.registered.append(request_id)
        raise VLLMValidationError("one backend per engine")

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.registered.remove(request_id)

    def has_unfinished_requests(self) -> bool:
        return bool(self.registered)


def test_a_request_that_is_refused_after_it_was_registered_leaves_nothing_in_the_offline_engine(monkeypatch):
    core = VllmCore.__new__(VllmCore)
    core._engine, core._live, core._rows, core._adapter = RegisteringEngine(), {}, VllmRows(ORDER), None
    monkeypatch.setattr(core._rows, "build_params", lambda request, live: None)
    row = core._add(live_of(None), {})
    assert row is not None and "one backend" in (row.error_message or "")
    assert not core._engine.has_unfinished_requests()
