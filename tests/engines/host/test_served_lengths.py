"""Prompts with media whose length a server can count: requested only if it is needed."""

from collections.abc import Iterator
from typing import Any

import pytest
from engine_kit import with_core
from run_kit import plain_request
from server_kit import FakeServer

from assayline.clock import RunClock
from assayline.engines.host.server.core import ServerCore
from assayline.engines.messages import Generate, Open
from assayline.media.load import refer_synthetic
from assayline.records import Completion, Media, Request
from assayline.spec.engine import EngineSpec, ServerSpec

SMALL = refer_synthetic("image", width=8, height=8, seed=1)
SAME_SIZE = refer_synthetic("image", width=8, height=8, seed=2)
WIDE = refer_synthetic("image", width=16, height=8, seed=3)
SOUND = refer_synthetic("audio", seconds=0.1, seed=4)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A vLLM with a context of 128 tokens: 50 of them for a medium, one for each character."""
    with FakeServer().running() as running:
        running.count_tokens = count_tokens
        yield running


def count_tokens(body: Any) -> int:
    parts = [part for message in body["messages"] for part in message["content"]]
    return sum(len(part["text"]) if part["type"] == "text" else 50 for part in parts)


def write_request(text: str, *media: Media, number: int = 0) -> Request:
    content = [*({"type": one["kind"]} for one in media), {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    return plain_request(
        f"{number}", prompt_token_ids=[], sampling={"max_tokens": 8}, messages=messages, media=list(media) or None
    )


def ask(server: FakeServer, *requests: Request, **changes: Any) -> list[Completion]:
    """One after the other."""
    engine = EngineSpec(backend="server", server=ServerSpec(url=server.url, endpoint="chat", **changes))
    order = Open(engine=engine, model="fake-model", clock=RunClock.start(), chat_kwargs={"a": 1})

    async def act(core: ServerCore) -> list[Completion]:
        return [await core.answer(Generate(request, 0.0, None)) for request in requests]

    return with_core(order, act)


def test_a_prompt_that_is_too_long_with_its_media_is_not_sent(server):
    fits, refused = ask(server, write_request("x" * 77, SMALL), write_request("x" * 78, SMALL, number=1))
    assert fits.error_kind is None
    assert (refused.error_kind, refused.text, refused.images) == ("prompt_too_long", None, 1)
    assert "128 tokens with its media, as the server counts them, but the context is 128" in str(refused.error_message)
    assert len(server.received) == 1
    [sent] = server.received
    assert server.measured[0] == {
        "model": "fake-model", "messages": sent.body["messages"], "chat_template_kwargs": {"a": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        (("x", SMALL), ("y" * 76, SAME_SIZE), 1),  # at most 51 + 76, which fits
        (("x", SMALL), ("y" * 77, SAME_SIZE), 2),  # may be 128; is 127
        (("x", SMALL), ("y", WIDE), 2),
        (("x", SMALL), ("y", SMALL, SMALL), 2),
        (("x" * 70, SMALL), ("y", SMALL), 1),
        (("x", SOUND), ("y", SOUND), 1),
        (("x",), ("y" * 500,), 0),  # text alone is as long as ever
    ],
)
def test_the_server_is_asked_only_where_a_prompt_may_be_too_long(server, first, second, asked):
    answers = ask(server, write_request(*first), write_request(*second, number=1))
    assert [answer.error_kind for answer in answers] == [None, None]
    assert len(server.measured) == asked and len(server.received) == 2


def test_a_server_that_does_not_say_is_sent_everything(server):
    server.count_tokens = None
    requests = [write_request("x" * 200, SMALL, number=number) for number in range(2)]
    assert [answer.error_kind for answer in ask(server, *requests)] == [None, None]
    server.count_tokens = lambda body: "many"  # type: ignore[assignment,return-value]
    assert [answer.error_kind for answer in ask(server, *requests)] == [None, None]
    assert len(server.measured) == 1, "what is no number is not asked for again"
