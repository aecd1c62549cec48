"""A request that vLLM gives up (`finish_reason: error`, no text): no answer, and asked once more for its media."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from run_kit import completion_of, plain_request

from assayline.clock import RunClock
from assayline.engines.host.flight import Live
from assayline.engines.host.vllm.async_core import AsyncCore
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
