"""vLLM's async engine on the tiny model: answers, stamps, pacing, errors; another run that takes it over; its deaths.

Its core runs in a process of its own, and can be killed alone. One engine for all that leaves it as it is.
"""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_kit import (
    ARGS,
    NO_PREEMPTIONS,
    Control,
    Kept,
    answer_seeded,
    by_id,
    check_same,
    living_members,
    load_of,
    open_async,
    parts_of,
    prepare_options,
    stamps_of,
    wait_until_gone,
    words_of,
)
from run_kit import plain_request

from assayline.clock import RunClock
from assayline.engines.client import StreamingEngine
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.pool import EnginePool
from assayline.engines.recovery.engine import AdaptiveEngine
from assayline.engines.recovery.policy import RecoveryPolicy, Sizes, sizes_of
from assayline.errors import EngineDiedError, SpecError
from assayline.load.progress import LoadProgress
from assayline.records import NOT_SENT, Completion, EngineEvent, Request
from assayline.spec.engine import ReasoningSpec

pytestmark = pytest.mark.vllm

THINKING = ReasoningSpec(close="1")


class Paced:
    """One engine whose load is another one for each test: what `worker.py` does by opening another engine."""

    def __init__(self, engine: StreamingEngine) -> None:
        self.engine = engine

    def answers(self, load: LoadProgress, requests: list[Request], window: int | None = None) -> dict[str, Completion]:
        self.engine._load = load
        self.engine._window_requests = window
        return by_id(self.engine.generate(requests))


@pytest.fixture(scope="module")
def async_control() -> Control:
    return Control()


@pytest.fixture(scope="module")
def plain(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, async_control: Control
) -> Iterator[Kept[StreamingEngine]]:
    """Steps of 64 tokens, so that long prompts come in pieces."""
    log, args = tmp_path_factory.mktemp("async") / "engine.log", {**ARGS, "max_num_batched_tokens": 64}
    with closing(Kept(lambda: open_async(tiny_model, log, async_control, run_id="one", args=args))) as kept:
        yield kept


@pytest.fixture(scope="module")
def thinking(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[StreamingEngine]]:
    """The tiny model answers 9 + 4 with 13: of that, 1 is the tag that closes the thinking, and 3 is the answer."""
    log = tmp_path_factory.mktemp("thinking") / "engine.log"
    with closing(Kept(lambda: open_async(tiny_model, log, reasoning=THINKING))) as kept:
        yield kept


@pytest.fixture
def async_engine(plain: Kept[StreamingEngine]) -> StreamingEngine:
    return plain.engine


@pytest.fixture
def paced(async_engine: StreamingEngine, async_control: Control) -> Iterator[Paced]:
    async_control.samples.clear()
    async_control.ends.clear()
    load, window = async_engine._load, async_engine._window_requests
    yield Paced(async_engine)
    async_engine._load, async_engine._window_requests = load, window


def test_answers_are_those_of_the_offline_engine(async_engine, engine, asker):
    asked: list[dict[str, Any]] = [
        {},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"stop": ["3"]},
        {"stop": ["3"], "include_stop_str_in_output": True},
        {"max_tokens": 1},
        {"max_tokens": 9, "ignore_eos": True, "logprobs": 0},
        {"max_tokens": None, "ignore_eos": True},
        {"stop_token_ids": [asker.token("7")]},
        {"structured_outputs": {"choice": ["cat", "dog"]}},
    ]
    requests = [asker.ask(f"What is {n} + 4?", **sampling) for n, sampling in enumerate(asked)]
    [options] = prepare_options(asker, [{"prompt": "What is 3 + 4?", "choices": ["7", "8"]}])
    check_same(async_engine, engine, [*requests, *options.ready])


def test_a_seeded_answer_is_the_same_if_its_prompt_is_read_in_steps(async_engine, engine):
    assert (
        answer_seeded(async_engine, 0, 1, 2) == answer_seeded(async_engine, 2, 1, 0) == answer_seeded(engine, 0, 1, 2)
    )


def test_every_token_has_a_stamp_of_its_own_under_load(paced, asker):
    """A hundred at once, so that the event loop has much to do while the engine steps: nothing is merged."""
    requests = [asker.ask(max_tokens=5 + 3 * (n % 20), ignore_eos=True) for n in range(100)]
    answers = paced.answers(load_of({"kind": "all_at_once"}), requests)
    for request in requests:
        answer = answers[request.request_id]
        stamps = answer.token_at_s
        assert stamps is not None and answer.output_token_ids is not None
        assert len(stamps) == len(answer.output_token_ids) == answer.output_tokens == request.sampling["max_tokens"]
        assert all(before < after for before, after in itertools.pairwise(stamps)), "no two tokens share a step"
        assert (stamps[0], stamps[-1]) == (answer.first_token_at_s, answer.last_token_at_s)
        assert all(before <= after for before, after in itertools.pairwise(stamps_of(answer)))
        assert answer.due_at_s is not None and answer.sent_at_s is not None and answer.due_at_s <= answer.sent_at_s
        assert (
            answer.window_requests is None and answer.preemptions == NO_PREEMPTIONS and answer.cached_tokens is not None
        )


def test_counters_are_the_engine_s_and_leave_the_warm_up_out(async_engine, async_control, asker):
    before = by_id(async_engine.generate([asker.ask()]))  # the last counters so far
    assert before
    start = async_control.samples[-1]
    answers = list(async_engine.generate([asker.ask(max_tokens=n, ignore_eos=True) for n in (3, 17, 40)]))
    last = async_control.samples[-1]
    assert last.output_tokens - start.output_tokens == sum(answer.output_tokens or 0 for answer in answers) == 60
    assert last.in_flight_requests == 0
    assert (last.running_requests, last.waiting_requests, last.preemptions) == (0, 0, 0), "as vLLM says itself"
    assert last.kv_cache_usage_share == 0
    assert last.engine_steps is not None and start.engine_steps is not None
    assert 40 <= last.engine_steps - start.engine_steps <= 60, "as many as the longest, and at most one per token"


def test_an_open_loop_sends_when_due_though_the_engine_is_slow(paced, asker):
    """Eight at once run, thirty come within half a second: none waits for another to be sent."""
    requests = [asker.ask(max_tokens=200, ignore_eos=True) for _ in range(30)]
    answers = paced.answers(load_of({"kind": "constant", "rate_per_s": 60.0}), requests)
    rows = [answers[request.request_id] for request in requests]
    due, sent = [row.due_at_s or 0 for row in rows], [row.sent_at_s or 0 for row in rows]
    assert [after - before for before, after in itertools.pairwise(due)] == pytest.approx([1 / 60] * 29, abs=1e-5)
    assert all(late >= 0 for late in (s - d for s, d in zip(sent, due, strict=True)))
    assert sent == sorted(sent), "in the order of the prompts"
    ends = sorted(row.finished_at_s or 0 for row in rows)
    most = max(sum(s <= moment for s in sent) - sum(end <= moment for end in ends) for moment in sent)
    assert most > 10, "a window of the engine's size would have held them back"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_closed_loop_never_exceeds_its_concurrency(paced, asker, concurrency):
    requests = [asker.ask(max_tokens=2 + n % 7, ignore_eos=True) for n in range(24)]
    load = load_of({"kind": "concurrency", "requests": concurrency})
    rows = list(paced.answers(load, requests, window=concurrency).values())
    ends = [row.finished_at_s or 0 for row in rows]
    for row in rows:
        moment = row.sent_at_s or 0
        others = sum((other.sent_at_s or 0) <= moment for other in rows) - sum(end <= moment for end in ends)
        assert others <= concurrency
    assert {row.window_requests for row in rows} == {concurrency} and {row.due_at_s for row in rows} == {None}


@pytest.mark.parametrize(
    ("constraints", "reason", "sent"),
    [
        ({"max_requests": 5}, "max_requests", 5),
        ({"max_duration_s": 0.2}, "max_duration_s", 11),
        ({"max_errors": 1}, "max_errors", None),
    ],
)
def test_the_end_of_a_load_leaves_the_rest_unsent(paced, async_control, asker, constraints, reason, sent):
    requests = [asker.send([]) if n == 3 else asker.ask(max_tokens=3) for n in range(300)]
    answers = paced.answers(load_of({"kind": "constant", "rate_per_s": 50.0}, **constraints), requests)
    assert len(answers) == 300
    was_sent = [answers[request.request_id].error_kind != NOT_SENT for request in requests]
    assert was_sent == sorted(was_sent, reverse=True), "the first ones, and then no more"
    assert sum(was_sent) == sent if sent is not None else 4 <= sum(was_sent) < 300
    assert [end.reason for end in async_control.ends] == [reason]


def test_a_bad_prompt_is_one_error_row(async_engine, asker):
    bad = {
        "empty": asker.send([]),
        "too long": asker.send([5] * 400),
        "unknown token": asker.send([10**6]),
        "temperature": asker.ask(temperature=-1),
        "grammar": asker.ask(structured_outputs={"grammar": "root ::= ((("}),
    }
    good = [asker.ask() for _ in range(5)]
    answers = by_id(async_engine.generate([*good, *bad.values()]))
    assert [answers[request.request_id].text for request in good] == ["7"] * 5
    for name, request in bad.items():
        answer = answers[request.request_id]
        kind = "sampling_error" if name == "temperature" else "rejected_by_engine"
        assert answer.error_kind == kind and answer.error_message, name
        assert answer.sent_at_s is not None and answer.finished_at_s is not None and answer.output_tokens is None


def test_an_iterator_left_early_aborts_and_leaves_the_engine_usable(async_engine, asker):
    endless = (asker.ask(max_tokens=None, ignore_eos=True) for _ in itertools.count())
    answers = async_engine.generate(endless)
    next(answers)
    answers.close()
    assert [answer.text for answer in async_engine.generate([asker.ask()])] == ["7"]


def test_a_model_is_loaded_once_and_nothing_of_the_run_before_is_left(
    plain, async_control, asker, tiny_model, tmp_path
):
    """The prefix cache is on, and emptied: points of a sweep ask the same prompts again."""
    first = plain.take()
    prompt = asker.fresh_prompt(first.facts.details["block_size_tokens"] + 20)
    with EnginePool() as pool:
        first._pool = pool
        with closing(first):
            cold, warm = (by_id(first.generate([asker.send(prompt)])).popitem()[1] for _ in range(2))
        assert not cold.cached_tokens and warm.cached_tokens
        clock, began = RunClock.start(), time.monotonic()
        async_control.samples.clear()
        second = open_async(
            tiny_model, tmp_path / "2.log", async_control, run_id="two", clock=clock, engine_generation=1, pool=pool,
            args=first._order.engine.args,
        )  # fmt: skip
        assert (second.host_pid, second.facts.details["kept_from"]) == (first.host_pid, first._order.run_id)
        assert second.facts.load_s <= time.monotonic() - began
        with closing(second):
            [answer] = second.generate([asker.send(prompt)])
        with pytest.raises(SpecError, match="not usable"):
            open_async(tiny_model, tmp_path / "3.log", run_id="three", pool=pool, sampling={"stop_token_ids": "x"})
    assert not answer.cached_tokens and answer.engine_generation == 1
    assert answer.output_token_ids == cold.output_token_ids
    stamps = [answer.sent_at_s, answer.queued_at_s, answer.first_token_at_s, answer.finished_at_s]
    assert None not in stamps and min(filter(None, stamps)) >= 0 and max(filter(None, stamps)) <= clock.now_s()
    assert answer.token_at_s is not None and answer.token_at_s[0] >= stamps[0]
    assert async_control.samples[-1].output_tokens == answer.output_tokens, "counters begin with the run"


def engine_core(host: int) -> psutil.Process:
    [core] = [
        child for child in psutil.Process(host).children(recursive=True) if "EngineCore" in "".join(words_of(child))
    ]
    return core


def test_a_killed_engine_core_is_replaced_and_nothing_is_lost_or_doubled(plain, thinking, asker, tiny_model, tmp_path):
    """In an open loop, with a hundred in flight: the pattern continues, and every request has one answer."""
    opened: list[StreamingEngine] = []
    events = []
    load = load_of({"kind": "constant", "rate_per_s": 100.0})
    before = plain.engine._order.engine_generation

    def open_next(sizes: Sizes, changed: dict[str, Any], generation: int) -> StreamingEngine:
        if not opened:
            opened.append(plain.take())
            opened[0]._load, opened[0]._window_requests = load, None
            return opened[0]
        log, args = tmp_path / f"engine-{generation}.log", {**ARGS, **changed}
        changes = {"engine_generation": generation, "load": load, "reasoning": THINKING, "record_token_times": True}
        opened.append(StreamingEngine(**parts_of("async", tiny_model, log, args=args, **changes)))
        return opened[-1]

    def record(row: EngineEvent) -> None:
        events.append((row.engine_generation, row.event, row.details))

    policy = RecoveryPolicy(sizes_of({"max_num_seqs": 8}, None), has_window=False)
    with ExitStack() as at_error:
        clock = RunClock.start()
        engine = AdaptiveEngine(open_next, policy, record, DeviceMemory(()), clock=clock, first_generation=before)
        at_error.callback(engine.close)
        engine.warm_up(plain_request("warm-up", prompt_token_ids=[1] * 32, sampling={"max_tokens": 2}))
        short = [asker.ask() for _ in range(5)]
        long = [asker.ask(max_tokens=150, ignore_eos=True) for _ in range(60)]
        answers, killed = {}, False
        for answer in engine.generate([*short, *long]):
            assert answer.request_id not in answers
            answers[answer.request_id] = answer
            if not killed:
                killed = True
                engine_core(opened[0].host_pid).kill()
        assert set(answers) == {request.request_id for request in [*short, *long]}
        assert [answer.error_kind for answer in answers.values()] == [None] * 65
        assert [answers[request.request_id].output_tokens for request in long] == [150] * 60
        assert {answer.engine_generation for answer in answers.values()} == {before, before + 1}
        assert {answer.window_requests for answer in answers.values()} == {None}
        [(_, _, failed)] = [event for event in events if event[1] == "failed"]
        assert failed["is_memory"] is False and failed["phase"] == "run"
        later = sorted((a.due_at_s or 0, a.request_id) for a in answers.values() if a.engine_generation == before + 1)
        names = [request.request_id for request in [*short, *long]]
        assert [name for _, name in later] == [name for name in names if answers[name].engine_generation == before + 1]
        assert load.settled == 65
        assert living_members(opened[0].host_pid) == []
        at_error.pop_all()
    opened[1]._load, opened[1]._window_requests = LoadProgress(), 10
    thinking.keep(opened[1])


def test_async_engine_separates_reasoning(thinking, asker):
    engine = thinking.engine
    requests = [asker.ask("What is 9 + 4?"), asker.ask("What is 3 + 4?")]
    answers = by_id(engine.generate(requests))
    split = [(answers[one.request_id].reasoning, answers[one.request_id].text) for one in requests]
    assert split == [("", "3"), ("7", "")]
    stopped = asker.ask("What is 9 + 4?", stop=["3"], ignore_eos=True, max_tokens=200)
    answers = by_id(engine.generate([stopped, *(asker.ask("What is 3 + 4?") for _ in range(20))]))
    cut = answers.pop(stopped.request_id)
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("", "stop", "3")
    assert 0 < (cut.output_tokens or 0) < 200 and len(cut.token_at_s or []) == cut.output_tokens
    assert {answer.reasoning for answer in answers.values()} == {"7"}


def test_a_killed_host_is_an_error_and_takes_the_core_with_it(thinking, asker):
    with closing(thinking.take()) as engine:
        requests = [asker.ask(), *(asker.ask(max_tokens=200, ignore_eos=True) for _ in range(50))]
        answers = engine.generate(requests)
        assert next(answers).reasoning == "7"
        os.kill(engine.host_pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError, match="died of signal SIGKILL"):
            list(answers)
    wait_until_gone(engine.host_pid)


def test_nothing_is_left_of_an_engine_that_is_closed(plain):
    with closing(plain.take()) as engine:
        assert len(living_members(engine.host_pid)) > 1
    assert living_members(engine.host_pid) == []
