"""On one core a step waits until seats are filled, for as long as requests are being prepared that could fill them."""

import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from stub_vllm import install

from assayline.clock import RunClock
from assayline.engines.host import __main__ as hosts
from assayline.engines.host.media import Prepared
from assayline.engines.host.vllm import media, offline_core
from assayline.engines.host.vllm.offline_core import LONGEST_WAIT_S, PATIENCE_S, Ready, VllmCore, choose_wait_s
from assayline.engines.messages import AbortAll, Aborted, Close, Finished, Generate, Open, Opened
from assayline.records import Media, Request

SEATS = 4
PICTURE = Media(kind="image", path="/a.png", digest="d")


@pytest.mark.parametrize(
    ("running", "preparing", "since_news_s", "since_step_s", "wait_s"),
    [
        (3, 1, 0.0, 0.0, PATIENCE_S),
        (1, 8, 0.1, 0.1, PATIENCE_S - 0.1),
        (3, 0, 0.0, 0.0, 0.0),
        (4, 1, 0.0, 0.0, 0.0),
        (5, 1, 0.0, 0.0, 0.0),
        (0, 4, 0.0, 0.0, 0.0),
        (3, 1, PATIENCE_S + 1, PATIENCE_S + 1, 0.0),
        (3, 1, 0.0, LONGEST_WAIT_S - 0.125, 0.125),
        (3, 1, 0.0, LONGEST_WAIT_S + 1, 0.0),
    ],
    ids=[
        "a free seat",
        "news a while ago",
        "nobody to wait for",
        "no free seat",
        "more than seats",
        "no step to make",
        "no news for long",
        "almost the longest wait",
        "the longest wait",
    ],
)
def test_a_step_waits_for_who_may_fill_a_seat(
    running: int, preparing: int, since_news_s: float, since_step_s: float, wait_s: float
) -> None:
    chosen = choose_wait_s(
        running=running, preparing=preparing, seats=SEATS, since_news_s=since_news_s, since_step_s=since_step_s
    )
    assert chosen == pytest.approx(wait_s)


class Case:
    """A core of four seats over such an engine, and the requests whose pictures are to be prepared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str = "cpu", shares_core: bool = True) -> None:
        self.engine = install(monkeypatch, Opened(SEATS, 64, {}), device)
        monkeypatch.setattr(media, "SHARES_CORE", shares_core)
        self.did: list[str] = []
        monkeypatch.setattr(offline_core, "keep_memory", lambda: self.did.append("keeps memory"))
        monkeypatch.setattr(offline_core, "fork_preparers", lambda _: self.did.append("forks"))
        self.core = VllmCore(Open(backend="offline", model="m", clock=RunClock.start(), has_media=True))
        self.asked: deque[Callable[[Any], object]] = deque()
        self.core._media = SimpleNamespace(submit=lambda request, done: self.asked.append(done))  # type: ignore[assignment]

    def add(self, *names: str, media: list[Media] | None = None) -> None:
        for name in names:
            self.core.add(ask(name, media))

    def prepare(self, count: int) -> None:
        for _ in range(count):
            self.asked.popleft()(Prepared({}, {}))


def ask(name: str, media: list[Media] | None = None) -> Generate:
    return Generate(Request(name, "", 0, 0, [1], {}, media=media), 0.0, 5)


@pytest.mark.parametrize(
    ("device", "shares_core", "did"), [("cpu", True, "keeps memory"), ("cpu", False, "forks"), ("cuda", True, "forks")]
)
def test_media_are_prepared_beside_the_engine_but_where_one_core_is_all(
    monkeypatch: pytest.MonkeyPatch, device: str, shares_core: bool, did: str
) -> None:
    assert Case(monkeypatch, device, shares_core).did == [did]


def test_seats_are_filled_before_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    assert case.core.find_wait_s() is None
    case.add(*"abcde", media=[PICTURE])
    assert case.core.find_wait_s() is None, "there is nothing to step"
    case.prepare(3)
    assert 0 < (case.core.find_wait_s() or 0) <= PATIENCE_S
    case.prepare(1)
    assert case.core.find_wait_s() == 0, "the seats are taken"
    case.core.step()
    assert case.core.find_wait_s() == 0
    monkeypatch.setattr(case.core, "_news", time.monotonic() - 2 * PATIENCE_S)
    assert len(case.core.step()) == 4
    assert case.core.find_wait_s() is None
    case.add("f", media=[PICTURE])
    case.prepare(1)
    assert case.core.find_wait_s(), "f is still to come"
    case.prepare(1)
    assert case.core.find_wait_s() == 0, "no one else is"


def test_a_seat_that_becomes_free_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.add(*"abcde", media=[PICTURE])
    case.prepare(2)
    case.core.step()
    case.prepare(2)
    case.core._news -= 2 * PATIENCE_S
    assert len(case.core.step()) == 2
    assert case.core.find_wait_s()


@pytest.mark.parametrize(("device", "shares_core"), [("cuda", True), ("cpu", False)])
def test_what_prepares_beside_the_engine_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, device: str, shares_core: bool
) -> None:
    case = Case(monkeypatch, device, shares_core)
    case.add(*"abc", media=[PICTURE])
    case.prepare(1)
    assert case.core.find_wait_s() == 0


def test_text_waits_for_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.add(*"abc", media=[PICTURE])
    case.prepare(1)
    assert case.core.find_wait_s()
    case.add("text")
    assert case.core.find_wait_s() == 0
    case.core.step()
    case.core.step()
    assert case.engine.steps == [2, 2]


class Talk:
    """A worker's messages, each batch of which comes after some time."""

    def __init__(self, *batches: tuple[float, list[Any]]) -> None:
        self.put_back: list[Any] = []
        self.waits: list[float | None] = []
        self._batches = deque(batches)
        self.put = self.put_back.append

    def take(self, *, wait: bool, longest_s: float | None = None) -> list[Any]:
        if not wait:
            return []
        self.waits.append(longest_s)
        after_s, messages = self._batches.popleft()
        if longest_s is not None and longest_s < after_s:
            self._batches.appendleft((after_s - longest_s, messages))
            time.sleep(longest_s)
            return []
        return messages


def serve(case: Case, *batches: tuple[float, list[Any]]) -> Talk:
    talk = Talk(*batches)
    host = object.__new__(hosts.Host)
    host._channel, host._closing = talk, False  # type: ignore[assignment]
    host._serve(case.core, deque())
    return talk


def asked_and_prepared(case: Case, count: int, prepared: int) -> list[Any]:
    """Messages of requests with pictures, some of which are ready at once."""
    messages = [ask(str(number), [PICTURE]) for number in range(count)]
    ready = []
    for message in messages[:prepared]:
        live = offline_core.Live(message, 0.0)
        case.core._preparing[message.request.request_id] = live
        ready.append(Ready(live, Prepared({}, {})))
    return [*messages[prepared:], *ready]


def test_who_gives_up_while_a_step_waits_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    talk = serve(case, (0, asked_and_prepared(case, 3, 1)), (0, [AbortAll()]), (0, [Close()]))
    assert case.engine.steps == [] and talk.put_back == [Aborted()]
    assert talk.waits[0] is None and 0 < (talk.waits[1] or 0) <= PATIENCE_S and talk.waits[2] is None


def test_who_is_never_prepared_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_core, "PATIENCE_S", 0.05)
    case = Case(monkeypatch)
    talk = serve(case, (0, asked_and_prepared(case, 3, 2)), (60, [Close()]))
    [finished] = [message for message in talk.put_back if isinstance(message, Finished)]
    assert case.engine.steps == [2, 2] and [one.request_id for one in finished.completions] == [
        "0",
        "1",
    ]
