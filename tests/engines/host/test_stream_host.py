"""The schedule inside the host, with a core that only sleeps, in an event loop whose time is virtual."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from run_kit import completion_of, order_of, plain_request, sample_of

from assayline.clock import RunClock
from assayline.engines.host.pacing import StreamHost
from assayline.engines.messages import (
    AbortAll,
    Aborted,
    Beat,
    Close,
    Finished,
    Generate,
    Open,
    Opened,
    StopSending,
    Warm,
    WarmUp,
)
from assayline.records import NOT_SENT, Completion, Request, TelemetrySample

ORDER = order_of(clock=RunClock(0.0, 0.0, ""), worker="w", engine_generation=3)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Where nothing is ready, time jumps to what is scheduled next."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class SleepingCore:
    """Answers after `service_s` of the request's sampling. Keeps when it was asked, and how many it had at most."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.live = self.most = 0
        self.closed = False

    async def open(self) -> Opened:
        return Opened(8, 64)

    async def rejoin(self, order: Open) -> Opened:
        return Opened(8, 64)

    async def answer(self, message: Generate) -> Completion:
        request = message.request
        sent_at_s = asyncio.get_running_loop().time()
        self.asked.append((request.request_id, sent_at_s))
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await asyncio.sleep(request.sampling["service_s"])
        finally:
            self.live -= 1
        if request.sampling.get("kills"):
            raise RuntimeError("the engine is gone")
        return completion_of(
            request.request_id, engine_generation=3, window_requests=message.window_requests, sent_at_s=sent_at_s
        )

    async def warm_up(self, request: Request) -> str | None:
        return "refused" if request.sampling.get("bad") else None

    def sample(self) -> TelemetrySample:
        return sample_of(engine_generation=3, in_flight_requests=self.live)

    async def close(self) -> None:
        self.closed = True


class Stage:
    """A host on a virtual loop, and what it told."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.core = SleepingCore()
        self.told: list[Any] = []
        self.told_s: list[float] = []
        self.host = StreamHost(self.core, ORDER, self._hear)

    def _hear(self, message: Any) -> None:
        self.told.append(message)
        self.told_s.append(self.loop.now_s)

    def play(self, *script: tuple[float, Any]) -> None:
        """Hands each message over at its time; ends with Close at the last one."""

        async def speak() -> None:
            for at_s, message in script:
                if at_s > self.loop.now_s:
                    await asyncio.sleep(at_s - self.loop.now_s)
                self.host.take(message)

        async def run() -> None:
            await self.host.open()
            speaking = self.loop.create_task(speak())
            try:
                await self.host.serve()
            finally:
                speaking.cancel()

        try:
            self.loop.run_until_complete(run())
        finally:
            self.loop.close()

    @property
    def rows(self) -> list[Completion]:
        return [row for message in self.told if isinstance(message, Finished) for row in message.completions]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def ask(number: int, service_s: float = 1.0, **values: Any) -> Generate:
    sampling = {"service_s": service_s, "kills": values.pop("kills", False)}
    request = plain_request(str(number), sampling=sampling)
    return Generate(request, 0.0, values.pop("window_requests", None), **values)


def test_requests_are_sent_when_due_however_slow_the_engine_is(stage):
    due = [0.5, 0.75, 0.75, 4.0, 9.5]
    stage.play(*[(0.0, ask(n, 100.0, due_at_s=at_s)) for n, at_s in enumerate(due)], (300.0, Close()))
    assert stage.core.asked == [(str(n), at_s) for n, at_s in enumerate(due)]
    assert [row.due_at_s for row in stage.rows] == [row.sent_at_s for row in stage.rows] == due
    assert stage.core.most == 5 and stage.core.closed


def test_late_requests_are_sent_at_once_and_keep_their_due_time(stage):
    stage.play((7.0, ask(0, due_at_s=2.0)), (20.0, Close()))
    assert stage.core.asked == [("0", 7.0)] and stage.rows[0].due_at_s == 2.0


def test_a_request_that_is_handed_over_later_may_be_due_earlier_than_the_alarm(stage):
    """A new start of a pattern after an abort: the old alarm does not hold it back."""
    script = [(0.0, ask(0, due_at_s=50.0)), (1.0, AbortAll()), (2.0, ask(1, due_at_s=3.0)), (90.0, Close())]
    stage.play(*script)
    assert stage.core.asked == [("1", 3.0)]


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_closed_loop_is_full_and_never_fuller(stage, window):
    services = [1.0 + (n * 7 % 5) for n in range(40)]
    stage.play(*[(0.0, ask(n, s, window_requests=window)) for n, s in enumerate(services)], (999.0, Close()))
    assert stage.core.most == window and len(stage.rows) == 40
    assert [name for name, _ in stage.core.asked] == [str(n) for n in range(40)], "in their order"
    starts, ends = dict(stage.core.asked), sorted(at_s + services[int(n)] for n, at_s in stage.core.asked)
    for number in range(window, 40):
        assert starts[str(number)] == ends[number - window], "sent the moment an earlier one is over"


def test_a_conversation_that_has_begun_goes_on_before_others_begin(stage):
    first = [(0.0, ask(number, window_requests=1)) for number in range(3)]
    later = [ask(number, window_requests=1) for number in (10, 11)]
    turns = [(0.5, replace(turn, request=replace(turn.request, turn_index=1))) for turn in later]
    stage.play(*first, *turns, (99.0, Close()))
    assert [name for name, _ in stage.core.asked] == ["0", "10", "11", "1", "2"]


def test_a_wider_window_counts_from_the_request_that_brings_it(stage):
    narrow, wide = ([ask(n, 10.0, window_requests=w) for n in range(*r)] for w, r in ((2, (0, 4)), (4, (4, 8))))
    stage.play(*[(0.0, message) for message in [*narrow, *wide]], (99.0, Close()))
    at_s = dict(stage.core.asked)
    assert [at_s[str(n)] for n in range(8)] == [0, 0, 10, 10, 10, 10, 20, 20]


def test_stop_sending_gives_back_what_waits_and_lets_the_rest_finish(stage):
    waiting = [ask(n, 10.0, window_requests=2) for n in range(5)]
    stage.play(*[(0.0, message) for message in waiting], (5.0, StopSending("enough")), (50.0, Close()))
    assert len(stage.core.asked) == 2
    unsent = [row for row in stage.rows if row.error_kind == NOT_SENT]
    assert [(row.request_id, row.error_message, row.sent_at_s) for row in unsent] == [
        (name, "enough", None) for name in "234"
    ]
    assert [row.request_id for row in stage.rows if row.error_kind is None] == ["0", "1"]


def test_stop_sending_drops_requests_that_are_not_due_yet(stage):
    stage.play((0.0, ask(0, due_at_s=1.0)), (0.0, ask(1, due_at_s=9.0)), (5.0, StopSending("x")), (50.0, Close()))
    assert stage.core.asked == [("0", 1.0)]
    assert [row.error_kind for row in stage.rows] == [None, NOT_SENT]


def test_abort_forgets_everything_before_it_says_so(stage):
    messages = [ask(n, 10.0, window_requests=2) for n in range(5)]
    script = [(0.0, message) for message in messages]
    stage.play(*script, (5.0, AbortAll()), (6.0, ask(9, 1.0, window_requests=2)), (50.0, Close()))
    assert [row.request_id for row in stage.rows] == ["9"] and stage.core.live == 0
    assert isinstance(stage.told[1], Aborted)


def test_when_the_core_is_gone_what_had_finished_is_told_first(stage):
    messages = [ask(0, 1.0, window_requests=9), ask(1, 2.0, window_requests=9, kills=True), ask(2, 9.0)]
    with pytest.raises(RuntimeError, match="the engine is gone"):
        stage.play(*[(0.0, message) for message in messages], (50.0, Close()))
    assert [row.request_id for row in stage.rows] == ["0"]


def test_requests_that_finish_together_are_reported_together_after_the_last_counters(stage):
    stage.play(*[(0.0, ask(n, 2.0, window_requests=9)) for n in range(3)], (9.0, Close()))
    opened, beat, finished = stage.told
    assert isinstance(opened, Opened) and isinstance(beat, Beat) and beat.sample.in_flight_requests == 0
    assert len(finished.completions) == 3


@pytest.mark.parametrize(("sampling", "error"), [({}, None), ({"bad": True}, "refused")])
def test_a_warm_up_is_answered(stage, sampling, error):
    stage.play((0.0, WarmUp(plain_request("w", sampling=sampling))), (1.0, Close()))
    assert stage.told[1] == Warm(error)
