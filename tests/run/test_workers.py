"""Workers on the fake engine: every request of every shard is answered once, even if workers crash."""

import itertools
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from run_kit import PATIENCE_S, Work, order_of, request_of, rows_of, wait_for, write_shards

from assayline.engines.base import EngineFacts, EngineHooks
from assayline.engines.client import HostedEngine
from assayline.engines.devices import claims
from assayline.engines.devices.claims import claim_device, list_devices
from assayline.engines.fake import FakeEngine
from assayline.engines.messages import Open
from assayline.errors import Death, DeviceError, EngineDiedError, EngineError, SpecError
from assayline.records import Completion, Request
from assayline.requests.build import MIN_WARM_UP_TOKENS, WARM_UP_OUTPUT_TOKENS, shared_prefix
from assayline.run import drive
from assayline.store.parts import count_rows, list_parts, write_part

CRASH = Death("run", exception="AssertionError", message="no such block")


def answered(run_dir: Path) -> list[str]:
    return [row["request_id"] for row in rows_of(run_dir, "completions")]


def events(run_dir: Path) -> list[str]:
    rows = sorted(rows_of(run_dir, "engine_events"), key=lambda row: row["at_s"])
    return [row["event"] for row in rows]


class Spy(FakeEngine):
    """Records warm-ups; `generate` can be made to fail."""

    def __init__(self, fail_after: int | None = None, fail_warm_up: bool = False) -> None:
        super().__init__(order_of())
        self.warmed: list[Request] = []
        self.closed = 0
        self._fail_after = fail_after
        self._fail_warm_up = fail_warm_up

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(8, 64, 0.0, {})

    def warm_up(self, request: Request) -> float:
        self.warmed.append(request)
        if self._fail_warm_up:
            raise SpecError("no warm-up")
        return 0.25

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        answers = super().generate(requests)
        yield from answers if self._fail_after is None else itertools.islice(answers, self._fail_after)
        if self._fail_after is not None:
            raise EngineDiedError("the engine died", CRASH)

    def close(self) -> None:
        self.closed += 1

    def open(self, *_: Any, **__: Any) -> "Spy":
        """Open this engine for a worker, regardless of its spec."""
        return self


def test_workers_share_a_run_and_answer_every_request_once(tmp_path, settings):
    ids = write_shards(tmp_path, shards=40, per_shard=25)
    shared = Work(tmp_path, settings)
    shared.dispatcher.workers = 3
    all_have_some = threading.Barrier(3)

    class Patient(FakeEngine):
        def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
            answers = super().generate(requests)
            first = next(answers)
            all_have_some.wait(PATIENCE_S)
            yield first
            yield from answers

    def open_patient(order: Open, *_: Any, **__: Any) -> FakeEngine:
        return Patient(order, window=8)

    for thread in [shared.start(f"worker-{number}", open_engine=open_patient) for number in range(3)]:
        thread.join(PATIENCE_S)
    assert sorted(answered(tmp_path)) == sorted(ids)
    assert len({row["worker"] for row in rows_of(tmp_path, "completions")}) == 3


def test_a_work_order_is_small_and_picklable(tmp_path, settings):
    assert len(pickle.dumps(Work(tmp_path, settings).order("worker-0"))) < 4096


def test_shards_may_come_while_the_worker_waits(tmp_path, settings):
    shared = Work(tmp_path, settings, is_closed=False)
    thread = shared.start()
    for shard in range(5):
        wait_for(lambda shard=shard: shared.dispatcher.snapshot().answered == shard and shared.events)
        shared.add(write_part(tmp_path, "requests", f"shard-{shard}", [request_of(shard)]))
    shared.dispatcher.close()
    thread.join(PATIENCE_S)
    assert sorted(answered(tmp_path)) == [request_of(shard).request_id for shard in range(5)]


def test_a_run_without_requests_ends(tmp_path, settings):
    write_shards(tmp_path, shards=0, per_shard=0)
    assert Work(tmp_path, settings).drive() == 0
    assert events(tmp_path) in ([], ["opened", "closed"]), "an engine that only starts is stopped"


def test_the_engine_is_opened_and_warmed_up_once_for_all_shards(tmp_path, settings):
    write_shards(tmp_path, shards=10, per_shard=5)
    engine = Spy()
    driven = Work(tmp_path, settings, shard_requests=5)
    assert driven.drive(open_engine=engine.open) == 50
    assert events(tmp_path) == ["opened", "warmed_up", "closed"]
    assert (driven.notes[-1], engine.closed) == ("Answered 50 requests on none", 1)
    assert {row["worker"] for row in rows_of(tmp_path, "engine_events")} == {"worker-0"}
    [warm] = [row for row in rows_of(tmp_path, "engine_events") if row["event"] == "warmed_up"]
    assert warm["duration_s"] == 0.25


START_LINES = (
    "[vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
    "[model_runner.py:399] Loading model from scratch...",
    "[w.py:1] other",
    "[default_loader.py:507] Loading weights took 1 s",
    "[backends.py:1] Dynamo bytecode transform time for vLLM's torch.compile: 5 s",
    "[monitor.py:34] torch.compile took 20 s in total",
    "[kernel_warmup.py:179] JIT kernel warmup starting.",
    "DeepGEMM warmup:  3%|",
    "[kernel_warmup.py:372] Running FlashInfer autotune with 8192 tokens and token buckets (1, 2).",
    "Capturing CUDA graphs (decode, FULL):  10%",
    "[core.py:300] init engine (profile, create kv cache, warmup model) took 60.10 seconds",
)
"""Lines of vLLM 0.33 with model runner V2 on a GPU, shortened."""


def test_worker_shows_the_phases_of_an_engines_start(tmp_path, settings):
    write_shards(tmp_path, shards=1, per_shard=5)
    work = Work(tmp_path, settings)

    def open_engine(_: Open, __: int | None, ___: object, hooks: EngineHooks, **____: Any) -> Spy:
        wait_for(lambda: work.dispatcher.snapshot().describe_start().startswith("starting the engine"))
        for text in START_LINES:
            hooks.on_log(f"(MainProcess pid=1) INFO 11-26 00:26:17 {text}")
        wait_for(lambda: work.dispatcher.snapshot().describe_start().startswith("finishing the start"))
        return Spy()

    work.drive(open_engine=open_engine)
    assert work.dispatcher.snapshot().describe_start() == ""
    starts = [re.sub(r"\d+ s\b", "N s", note) for note in work.notes if "ngine start" in note or "ready" in note]
    assert starts == [
        "Engine start: loading weights, after N s",
        "Engine start: initializing memory and kernels, after N s",
        "Engine start: compiling, after N s",
        "Engine start: initializing memory and kernels, after N s",
        "Engine start: warming up kernels, after N s",
        "Engine start: autotuning kernels, after N s",
        "Engine start: capturing CUDA graphs, after N s",
        "Engine start: finishing the start, after N s",
        "The engine is ready after N s: starting the engine N s, loading weights N s, initializing memory and kernels "
        "N s, compiling N s, warming up kernels N s, autotuning kernels N s, capturing CUDA graphs N s, finishing the "
        "start N s",
    ]


def test_warm_up_primes_the_shared_prefix_and_is_not_counted(tmp_path, settings):
    prefix = list(range(100, 140))
    requests = [request_of(number, [*prefix, number, 7], min_tokens=9, max_tokens=9) for number in range(4)]
    write_part(tmp_path, "requests", "shard-0", requests)
    engine = Spy()
    Work(tmp_path, settings, sampling={"min_tokens": 9, "max_tokens": 9, "top_p": 0.5}).drive(open_engine=engine.open)
    [warm] = engine.warmed
    assert warm.prompt_token_ids[:40] == prefix
    assert warm.sampling == {"max_tokens": WARM_UP_OUTPUT_TOKENS, "top_p": 0.5}
    assert warm.request_id not in answered(tmp_path) and len(answered(tmp_path)) == 4


@pytest.mark.parametrize("tokens", [1, 10, 63])
def test_a_warm_up_prompt_is_long_enough_for_a_cpu_and_short_enough_for_the_context(tmp_path, settings, tokens):
    for number in range(2):
        write_part(tmp_path, "requests", f"shard-{number}", [request_of(number, [5] * tokens)])
    engine = Spy()
    Work(tmp_path, settings).drive(open_engine=engine.open)
    [warm] = engine.warmed
    assert len(warm.prompt_token_ids) >= MIN_WARM_UP_TOKENS
    assert len(warm.prompt_token_ids) + WARM_UP_OUTPUT_TOKENS < 64


def test_warm_up_can_be_left_out(tmp_path, settings):
    write_shards(tmp_path, shards=1, per_shard=2)
    engine = Spy()
    Work(tmp_path, settings, engine={"backend": "fake", "warmup": False}).drive(open_engine=engine.open)
    assert engine.warmed == [] and events(tmp_path) == ["opened", "closed"]


@hypothesis_settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=5))
def test_the_shared_prefix_is_the_longest_that_all_have(prompts):
    prefix = shared_prefix(prompts)
    if len(prompts) < 2:
        assert prefix == []
        return
    assert all(prompt[: len(prefix)] == prefix for prompt in prompts)
    assert len({tuple(prompt[: len(prefix) + 1]) for prompt in prompts}) > 1 or prefix in prompts


def test_worker_whose_engines_die_has_not_failed_once_every_request_has_its_row(tmp_path, settings):
    write_shards(tmp_path, shards=1, per_shard=20)  # a worker gets all of them at once
    engine = Spy(fail_after=7)
    Work(tmp_path, settings).drive(open_engine=engine.open)
    assert len(set(answered(tmp_path))) == len(answered(tmp_path)) == 20, "each engine answered some before it died"
    failed = [row for row in rows_of(tmp_path, "engine_events") if row["event"] == "failed"]
    assert {row["message"] for row in failed} == {"the engine died"}
    assert len({row["engine_generation"] for row in failed}) == len(failed) and engine.closed >= len(failed)


@pytest.mark.parametrize("fate", ["starts for ever", "is stopped", "dies at each start"])
def test_worker_whose_engine_does_not_start_is_not_waited_for(tmp_path, settings, fate):
    """The engine is a process that opens no model; the other worker answers all requests."""
    ids = write_shards(tmp_path, shards=4, per_shard=20)
    work = Work(tmp_path, settings)
    work.dispatcher.workers = 2
    started: list[subprocess.Popen[bytes]] = []

    def launch(env: Any, channel: int, log: int) -> subprocess.Popen[bytes]:
        code = "import time; time.sleep(1000)" if fate != "dies at each start" else "raise SystemExit(3)"
        started.append(subprocess.Popen([sys.executable, "-c", code], pass_fds=[channel], start_new_session=True))
        if fate == "is stopped":
            started[-1].send_signal(signal.SIGSTOP)
        return started[-1]

    def open_hosted(order: Open, window: int | None, setup: Any, hooks: EngineHooks, **_: Any) -> HostedEngine:
        return HostedEngine(order, replace(setup, launch=launch), hooks)

    starting = work.start("worker-1", open_engine=open_hosted)
    wait_for(lambda: started and (fate != "dies at each start" or not starting.is_alive()))
    work.start("worker-0", open_engine=Spy().open).join(PATIENCE_S)
    starting.join(PATIENCE_S)
    assert not starting.is_alive() and sorted(answered(tmp_path)) == ids
    assert all(process.poll() is not None for process in started), "nothing runs any more"
    gave_up = [note for note in work.notes if note.startswith("worker-1 ended; the other workers answer its requests")]
    assert len(gave_up) == (fate == "dies at each start")


def test_worker_that_answers_between_its_losses_is_replaced_each_time(tmp_path, settings, monkeypatch):
    """A worker of a node that is taken away again and again; one that is lost and answers nothing ends the run."""
    monkeypatch.setattr(drive, "REPLACEMENT_PAUSES_S", (0.0, 0.0, 0.0))
    ids = write_shards(tmp_path, shards=2, per_shard=20)

    class Lost(Spy):
        def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
            yield from itertools.islice(FakeEngine.generate(self, requests), self._fail_after)
            raise RuntimeError("the node is gone")

    work = Work(tmp_path, settings, max_error_share=1.0)
    work.drive(open_engine=Lost(fail_after=5).open)
    assert sorted(answered(tmp_path)) == ids and sum("Lost worker-0" in note for note in work.notes) >= 5
    write_shards(tmp_path / "other", shards=2, per_shard=20)
    work = Work(tmp_path / "other", settings, max_error_share=1.0)
    with pytest.raises(EngineError, match="worker-0 was lost 4 times without an answer in between"):
        work.drive(open_engine=Lost(fail_after=0).open)


class Mortal(FakeEngine):
    """Runs out of memory when what is in flight is `too_much`."""

    def __init__(self, too_much: Callable[[list[str]], bool], *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._too_much = too_much

    def _step(self, live: list[Any]) -> Iterator[Completion]:
        if self._too_much([running.request.request_id for running in live]):
            raise EngineDiedError("died", Death("run", exception="MemoryError"))
        return super()._step(live)


def test_an_engine_that_runs_out_of_memory_is_followed_by_a_smaller_one(tmp_path, settings):
    ids = write_shards(tmp_path, shards=4, per_shard=25)
    opened: list[int | None] = []

    def open_narrow(order: Open, window: int | None, *_: Any, **__: Any) -> FakeEngine:
        opened.append(window)
        return Mortal(lambda live: len(live) > 10, order, window=window or 32)

    shared = Work(tmp_path, settings)
    shared.attempt, shared.generations = 3, {"worker-0": 5}
    shared.drive(open_engine=open_narrow)
    assert sorted(answered(tmp_path)) == sorted(ids)
    assert opened == [None, 16, 8]
    assert {row["attempt"] for row in rows_of(tmp_path, "engine_events")} == {3}
    names = [(event.engine_generation, event.event) for event in shared.events if event.event != "warmed_up"]
    died = ("opened", "failed", "reduced")
    assert names == [*((5, name) for name in died), *((6, name) for name in died), (7, "opened"), (7, "closed")]
    assert {row["engine_generation"] for row in rows_of(tmp_path, "completions")} == {7}


def test_more_killers_than_the_spec_allows_end_the_worker(tmp_path, settings):
    ids = write_shards(tmp_path, shards=2, per_shard=20)

    def open_frail(order: Open, window: int | None, *_: Any, **__: Any) -> FakeEngine:
        return Mortal(lambda live: bool(set(live) & set(ids[:9])), order, window=window or 4)

    told = "5 requests killed their engines or workers, more than max_error_share allows"
    with pytest.raises(EngineError, match=told):
        Work(tmp_path, settings, max_error_share=0.1).drive(open_engine=open_frail)
    rows = rows_of(tmp_path, "completions")
    killers = [row["request_id"] for row in rows if row["error_kind"] == "killed_engine"]
    assert killers == ids[: len(killers)] and len(killers) >= 4, "a killer is reported with the next message"
    assert len(rows) < len(ids)


def test_a_failed_warm_up_is_an_event_too(tmp_path, settings):
    write_shards(tmp_path, shards=1, per_shard=2)
    with pytest.raises(SpecError, match="no warm-up"):
        Work(tmp_path, settings).drive(open_engine=Spy(fail_warm_up=True).open)
    assert events(tmp_path) == ["opened", "failed", "closed"]


def test_an_engine_that_does_not_open_is_an_event_too(tmp_path, settings):
    def refuse(*_: Any, **__: Any) -> None:
        raise EngineError("it did not start")

    write_shards(tmp_path, shards=1, per_shard=2)
    with pytest.raises(EngineError, match="did not start"):
        Work(tmp_path, settings).drive(open_engine=refuse)
    [failed] = rows_of(tmp_path, "engine_events")
    assert (failed["event"], failed["message"]) == ("failed", "it did not start")


def test_a_stop_ends_the_worker_without_error_and_keeps_what_had_finished(tmp_path, settings):
    write_part(tmp_path, "requests", "a", [request_of(number, max_tokens=2) for number in range(10)])
    write_part(tmp_path, "requests", "b", [request_of(number, max_tokens=10**9) for number in range(10, 20)])
    shared = Work(tmp_path, settings)
    thread = shared.start()
    wait_for(lambda: len(answered(tmp_path)) == 10)
    shared.dispatcher.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert sorted(answered(tmp_path)) == [request_of(number).request_id for number in range(10)]
    assert events(tmp_path)[-1] == "closed"


def test_a_stop_ends_a_worker_that_waits_for_its_first_shard(tmp_path, settings):
    shared = Work(tmp_path, settings, is_closed=False)
    thread = shared.start()
    wait_for(lambda: shared.events)
    shared.dispatcher.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and events(tmp_path) == ["opened", "closed"]


def test_parts_have_no_more_rows_than_the_setting_says(tmp_path, settings):
    write_shards(tmp_path, shards=2, per_shard=50)
    Work(tmp_path, settings.model_copy(update={"flush_rows": 30, "flush_interval_s": 1000})).drive()
    assert [count_rows(part) for part in list_parts(tmp_path, "completions")] == [30, 30, 30, 10]


def test_worker_logs_who_holds_the_device_that_it_waits_for_and_answers_when_it_is_free(
    tmp_path, settings, monkeypatch
):
    looks, look = [], claims._try_claim
    monkeypatch.setattr(claims, "CLAIM_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(claims, "_try_claim", lambda *given: looks.append(given) or look(*given))
    ids = write_shards(tmp_path, shards=1, per_shard=5)
    work = Work(tmp_path, settings.model_copy(update={"device_wait_s": 60}), engine={"device": "cpu"})
    with claim_device(list_devices("cpu", 1), settings.lock_dir, 0, "run 7 (night)"):
        thread = work.start(open_engine=Spy().open)
        wait_for(lambda: len(looks) > 5 and work.notes)
        assert len(work.notes) == 1, "a line for every look would fill the log"
        assert thread.is_alive()
    thread.join(PATIENCE_S)
    words = r"Every device is taken: cpu-\S+ by run 7 \(night\), process \d+, since .* UTC\. Waiting up to 60 s"
    assert re.match(words, work.notes[0])
    assert sorted(answered(tmp_path)) == sorted(ids)


def test_worker_whose_device_is_taken_records_no_failure_of_an_engine(tmp_path, settings):
    write_shards(tmp_path, shards=1, per_shard=1)
    work = Work(tmp_path, settings.model_copy(update={"device_wait_s": 0}), engine={"device": "cpu"})
    with claim_device(list_devices("cpu", 1), settings.lock_dir, 0), pytest.raises(DeviceError, match="is taken"):
        work.drive()
    assert events(tmp_path) == []


def test_worker_ends_when_it_is_stopped_while_it_waits_for_a_device(tmp_path, settings):
    work = Work(tmp_path, settings.model_copy(update={"device_wait_s": 21_600}), engine={"device": "cpu"})
    with claim_device(list_devices("cpu", 1), settings.lock_dir, 0):
        thread = work.start(open_engine=Spy().open)
        wait_for(lambda: bool(work.notes))
        work.dispatcher.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert "The worker was stopped on request before a device was free." in work.notes
