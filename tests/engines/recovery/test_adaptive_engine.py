"""The adaptive engine around engines that die on purpose: every request is answered once, whatever happens."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from run_kit import completion_of, order_of, request_of

from assayline.clock import RunClock
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.fake import FakeEngine
from assayline.engines.recovery.engine import KILLED_ENGINE, AdaptiveEngine, Ledger
from assayline.engines.recovery.policy import RecoveryPolicy, Sizes
from assayline.errors import Death, EngineDiedError, EngineInterruptedError
from assayline.records import NOT_SENT, Completion, EngineEvent, Request

FEW = hypothesis_settings(deadline=None, max_examples=hypothesis_settings.default.max_examples // 2)
"""An example is a run of a dozen engines."""

Rule = Callable[["Mortal", list[str]], Death | None]
OOM = Death("run", exception="OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2.00 GiB")
CRASH = Death("run", exception="AssertionError", message="no such block")


class Mortal(FakeEngine):
    """Dies when `rule`, asked at each step with what is in flight, gives a death; then it is dead for good."""

    def __init__(self, rule: Rule, generation: int = 0, **options: Any) -> None:
        super().__init__(order_of(engine_generation=generation), **options)
        self._rule = rule
        self.dead = self.closed = False
        self.warmed: list[Request] = []
        self.steps = 0

    def warm_up(self, request: Request) -> float:
        self.warmed.append(request)
        return 0.5

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        assert not self.dead and not self.closed, "a dead engine is asked again"
        return super().generate(requests)

    def close(self) -> None:
        self.closed = True

    def _step(self, live: list[Any]) -> Iterator[Completion]:
        self.steps += 1
        if live and (death := self._rule(self, [running.request.request_id for running in live])):
            self.dead = True
            raise EngineDiedError("the engine died", death)
        return super()._step(live)


class Memory(DeviceMemory):
    """Asks nobody: hundreds of deaths per test."""

    def describe_holders(self) -> str:
        return "Memory is held by process 1."


class Bench:
    """Opens mortal engines and keeps what was recorded."""

    def __init__(self, rule: Rule = lambda engine, live: None, window: int = 16, **options: Any) -> None:
        self.rule, self.window = rule, window
        self.engines: list[Mortal] = []
        self.windows: list[int] = []
        """With which they were opened."""
        self.failing_starts: list[Death] = []
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.messages: list[str] = []
        self.policy = RecoveryPolicy(Sizes(), options.pop("min_concurrency", 1), restart_pauses_s=(0.0, 0.0))
        memory = options.pop("memory", Memory(()))
        options = {"memory_wait_s": 0, **options}
        options = {"clock": RunClock.start(), "worker": "w", **options}
        self.engine = AdaptiveEngine(self.open, self.policy, self.record, memory, **options)

    def open(self, sizes: Sizes, changed: dict[str, Any], generation: int) -> Mortal:
        assert all(engine.closed for engine in self.engines), "two engines at once"
        if self.failing_starts:
            raise EngineDiedError("it did not start", self.failing_starts.pop(0))
        self.windows.append(sizes.window_requests or self.window)
        self.engines.append(Mortal(self.rule, window=self.windows[-1], max_num_seqs=64, generation=generation))
        return self.engines[-1]

    def record(self, row: EngineEvent) -> None:
        self.events.append((row.engine_generation, row.event, dict(row.details)))
        self.messages.append(row.message or "")

    def names(self) -> list[str]:
        return [event for _, event, _ in self.events]

    def answers(self, requests: Iterable[Request | None]) -> dict[str, Completion]:
        found = list(self.engine.generate(requests))
        assert len({answer.request_id for answer in found}) == len(found), "answered twice"
        return {answer.request_id: answer for answer in found}


def requests(count: int, **sampling: Any) -> list[Request]:
    return [request_of(number, **sampling) for number in range(count)]


def more_than(capacity: int) -> Rule:
    return lambda engine, live: OOM if len(live) > capacity else None


def holding(*poison: int, death: Death = OOM) -> Rule:
    names = {request_of(number).request_id for number in poison}
    return lambda engine, live: death if names & set(live) else None


def test_an_engine_that_is_too_wide_is_halved_until_it_lives():
    bench = Bench(more_than(5))
    answers = bench.answers(requests(100))
    assert len(answers) == 100 and all(answer.error_kind is None for answer in answers.values())
    assert bench.windows == [16, 8, 4]
    assert bench.names() == ["opened", "failed", "reduced", "opened", "failed", "reduced", "opened"]
    assert Counter((a.engine_generation, a.window_requests) for a in answers.values()) == {(2, 4): 100}
    failed = bench.events[1][2]
    assert (failed["kind"], failed["is_memory"], failed["phase"], failed["in_flight_requests"]) == (
        "device_oom", True, "run", 16)  # fmt: skip


def test_requests_that_ask_for_the_log_probabilities_of_their_prompts_get_smaller_steps_first():
    deaths = iter([OOM, OOM])
    bench = Bench(lambda engine, live: next(deaths, None))
    assert len(bench.answers([*requests(8), *(request_of(number, prompt_logprobs=1) for number in range(8, 20))])) == 20
    changes = [details for _, name, details in bench.events if name == "reduced"]
    assert [change["max_num_batched_tokens"] for change in changes] == [
        {"from": None, "to": 4096},
        {"from": 4096, "to": 2048},
    ]
    assert not any("window_requests" in change for change in changes)


def test_answers_before_a_crash_are_kept_and_not_requested_again():
    asked: Counter[str] = Counter()

    def rule(engine: Mortal, live: list[str]) -> Death | None:
        asked.update(live if engine.steps == 1 else ())
        return OOM if len(bench.engines) == 1 and engine.steps == 4 else None

    bench = Bench(rule)
    short, long = requests(8, max_tokens=2), [request_of(number, max_tokens=9) for number in range(8, 16)]
    answers = bench.answers([*short, *long])
    assert [answers[request.request_id].engine_generation for request in [*short, *long]] == [0] * 8 + [1] * 8
    assert all(asked[request.request_id] == 1 for request in short)


def test_a_request_that_kills_every_engine_becomes_an_error_row_and_the_size_comes_back():
    bench = Bench(holding(37))
    answers = bench.answers(requests(100))
    assert len(answers) == 100
    bad = [answer for answer in answers.values() if answer.error_kind]
    assert [answer.request_id for answer in bad] == [request_of(37).request_id]
    assert bad[0].error_kind == KILLED_ENGINE and "CUDA out of memory" in (bad[0].error_message or "")
    assert bench.names().count("isolated") == 1 and "restored" in bench.names()
    assert bench.windows[-1] == 16, "the window that it had before that request came"


@FEW
@given(st.sets(st.integers(0, 59), max_size=6), st.integers(1, 12), st.integers(1, 20))
def test_bisection_finds_exactly_the_requests_that_kill(poison, least, window):
    bench = Bench(holding(*poison), window=window, min_concurrency=least)
    answers = bench.answers(requests(60))
    assert len(answers) == 60
    bad = {answer.request_id for answer in answers.values() if answer.error_kind}
    assert bad == {request_of(number).request_id for number in poison}


@FEW
@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 40))
def test_whenever_engines_run_out_of_memory_every_request_is_answered_once(moments, window):
    def rule(engine: Mortal, live: list[str]) -> Death | None:
        number = len(bench.engines) - 1
        return OOM if number < len(moments) and engine.steps == moments[number] and len(live) > 1 else None

    bench = Bench(rule, window=window)
    answers = bench.answers(itertools.chain(requests(40), [None], [request_of(40), None, request_of(41)]))
    assert len(answers) == 42 and not any(answer.error_kind for answer in answers.values())
    assert all(engine.closed for engine in bench.engines[:-1])


@FEW
@given(st.sets(st.integers(0, 59), max_size=6), st.integers(1, 20))
def test_a_request_that_crashes_engines_becomes_an_error_row(poison, window):
    bench = Bench(holding(*poison, death=CRASH), window=window)
    answers = bench.answers(requests(60))
    assert len(answers) == 60
    bad = {answer.request_id for answer in answers.values() if answer.error_kind == KILLED_ENGINE}
    assert bad == {request_of(number).request_id for number in poison}
    assert set(bench.windows) == {window}, "no other size helps"


@pytest.mark.parametrize("death", [CRASH, OOM], ids=["crash", "memory"])
def test_requests_that_kill_engines_are_limited_by_max_error_share(death):
    bench = Bench(holding(*range(5, 30, 3), death=death), may_isolate=lambda isolated: isolated <= 3)
    with pytest.raises(EngineDiedError, match="4 requests killed it, more than max_error_share allows"):
        bench.answers(requests(30))


def test_an_engine_that_is_killed_twice_blames_nobody():
    """A request that was alone in an engine that was killed is asked once more."""
    deaths = iter([CRASH, CRASH, CRASH, CRASH, CRASH])
    bench = Bench(lambda engine, live: next(deaths, None), window=8)
    answers = bench.answers(requests(20))
    assert len(answers) == 20 and not any(answer.error_kind for answer in answers.values())


@pytest.mark.parametrize(("window", "most_rows"), [(32, 0), (4, 8)])
def test_an_engine_that_always_crashes_ends_the_run_and_makes_no_error_rows(window, most_rows):
    """They would be final, though nothing is wrong with the requests. Those of narrow windows are few."""
    bench = Bench(lambda engine, live: CRASH, window=window)
    found: list[Completion] = []
    with pytest.raises(EngineDiedError, match="9 requests in a row killed it, each by itself") as caught:
        found.extend(bench.engine.generate(requests(60)))
    history = (f"engine 0 died while generating (other, {window} in flight)", "engine 1 died", "no such block")
    assert all(words in str(caught.value) for words in ("cannot recover", *history))
    assert len(found) == most_rows


def test_an_engine_that_dies_with_few_but_no_single_one_says_so():
    bench = Bench(more_than(3), window=8, min_concurrency=4)
    with pytest.raises(EngineDiedError, match=r"no single request is to blame(?s:.*)max concurrency 8 → 4"):
        bench.answers(requests(30))


def test_each_engine_is_warmed_up_with_the_same_request():
    bench = Bench(more_than(8))
    assert bench.engine.warm_up(request_of(999)) == 0.5
    bench.answers(requests(30))
    assert [engine.warmed for engine in bench.engines] == [[request_of(999)]] * 2
    assert bench.names() == ["opened", "warmed_up", "failed", "reduced", "opened", "warmed_up"]


def test_an_engine_that_does_not_start_is_opened_smaller():
    bench = Bench(more_than(8))
    text = "Free memory on device cuda:0 (20.0/80.0 GiB) on startup is less than desired GPU memory utilization (0.92)."
    bench.failing_starts = [Death("start", exception="ValueError", message=text)]
    bench.answers(requests(30))
    assert bench.names() == ["opened", "failed", "reduced", "failed", "reduced", "opened"]
    assert bench.policy.changed_arguments["gpu_memory_utilization"] == 0.24
    assert [generation for generation, event, _ in bench.events if event == "failed"] == [0, 1]
    assert "Memory is held by process" in bench.messages[1]


def test_a_start_that_fails_for_another_reason_is_told_as_it_is():
    def refuse(*_: Any) -> Mortal:
        raise EngineDiedError("no such model", Death("start", exception="ValueError", message="no such model"))

    with pytest.raises(EngineDiedError, match="no such model"):
        AdaptiveEngine(refuse, RecoveryPolicy(Sizes()), print, DeviceMemory(()), clock=RunClock.start())


def test_a_later_start_that_fails_for_another_reason_is_tried_again():
    bench = Bench(lambda engine, live: OOM if len(bench.engines) == 1 and engine.steps == 9 else None)
    busy = Death("start", exception="AcceleratorError", message="CUDA-capable device(s) is/are busy or unavailable")
    bench.failing_starts = [busy, busy]
    assert len(bench.answers(requests(40))) == 40
    assert bench.names().count("failed") == 3 and len(bench.engines) == 2


class Shared(Memory):
    """A GPU on which others hold memory for a while."""

    def __init__(self, free: list[int]) -> None:
        self.free = free
        super().__init__(("0",))

    def _read_free_bytes(self) -> list[int | None]:
        return [self.free.pop(0) if len(self.free) > 1 else self.free[0]]


TAKEN = Death(
    "start",
    exception="ValueError",
    message="Free memory on device cuda:0 (20.0/80.0 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 73.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
)


@pytest.mark.parametrize("free_gib", [[20, 20, 75], [20, 75]], ids=["later", "at once"])
def test_memory_that_others_give_back_is_waited_for_whatever_was_free_at_first(monkeypatch, free_gib):
    monkeypatch.setattr("assayline.engines.devices.watch.POLL_INTERVAL_S", 0.01)
    memory = Shared([20 << 30])
    bench = Bench(more_than(8), memory=memory, memory_wait_s=5)
    memory.free = [gib << 30 for gib in free_gib]
    bench.failing_starts = [TAKEN]
    bench.answers(requests(30))
    assert "gpu_memory_utilization" not in {name for _, event, details in bench.events[4:] for name in details}
    assert bench.policy.sizes.gpu_memory_utilization == 0.87, "of the death before alone"


def test_an_engine_gets_its_share_again_once_the_memory_is_free():
    memory = Shared([20 << 30])
    bench = Bench(more_than(4), memory=memory)
    bench.failing_starts = [TAKEN]
    answers = bench.engine.generate(requests(30))
    opened = iter(bench.engines)

    def rule(engine: Mortal, live: list[str]) -> Death | None:
        if bench.policy.sizes.gpu_memory_utilization == 0.24:
            memory.free = [75 << 30]
        return more_than(4)(engine, live)

    bench.rule = rule
    assert len(list(answers)) == 30 and next(opened)
    restored = [details for _, event, details in bench.events if event == "restored"]
    assert restored == [{"gpu_memory_utilization": {"from": 0.19, "to": 0.87}}]


def test_stop_does_not_count_as_a_crash():
    def rule(engine: Mortal, live: list[str]) -> Death | None:
        raise EngineInterruptedError("stopped")

    bench = Bench(rule)
    with pytest.raises(EngineInterruptedError):
        bench.answers(requests(3))
    assert bench.names() == ["opened"]


def test_no_engine_is_opened_during_a_stop():
    stops: list[bool] = []

    def rule(engine: Mortal, live: list[str]) -> Death | None:
        stops.append(True)
        return CRASH

    bench = Bench(rule, should_stop=lambda: bool(stops))
    with pytest.raises(EngineInterruptedError, match="before it started"):
        bench.answers(requests(3))
    assert len(bench.engines) == 1 and bench.engines[0].closed


def test_unsent_requests_are_passed_on_and_do_not_count_as_success():
    """A load that has ended: its rows do not count as sustained success."""
    bench = Bench(more_than(4))
    bench.answers(requests(5))
    narrow = bench.policy.window_requests

    class Unsent(Mortal):
        def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
            for request in requests:
                assert request is not None
                yield completion_of(request.request_id, window_requests=None, error_kind=NOT_SENT)

    bench.engine._current = Unsent(bench.rule)
    assert len(bench.answers(requests(1000))) == 1000
    assert bench.policy.window_requests == narrow


def test_closing_twice_is_recorded_once():
    bench = Bench()
    bench.engine.close()
    bench.engine.close()
    assert bench.names() == ["opened", "closed"]


@given(st.lists(st.sampled_from(["take", "settle", "again"]), max_size=60))
def test_a_ledger_gives_what_is_not_settled_again_and_nothing_else(steps):
    ledger = Ledger(iter(requests(20)))
    given_out: list[str] = []
    open_ids: list[str] = []
    for step in steps:
        if step == "take":
            request = next(ledger, None)
            if request is not None:
                given_out.append(request.request_id)
                if request.request_id not in open_ids:
                    open_ids.append(request.request_id)
        elif step == "settle" and (in_flight := ledger.in_flight()):
            ledger.settle(in_flight[0].request_id)
            open_ids.remove(in_flight[0].request_id)
        elif step == "again":
            ledger.send_again()
        assert [request.request_id for request in ledger.unanswered()] == open_ids
    ledger.send_again()
    rest = [request.request_id for request in ledger if request is not None]
    assert rest[: len(open_ids)] == open_ids
    assert set(given_out) | set(rest) == {request.request_id for request in requests(20)}
