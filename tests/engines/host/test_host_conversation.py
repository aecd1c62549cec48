"""The worker's side of the conversation with an engine host, with a host that says what the test wants."""

import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_kit import PlayedProcess
from run_kit import completion_of, plain_request, sample_of

from assayline.clock import RunClock
from assayline.engines import client as hosted
from assayline.engines.base import EngineHooks, OpenedDetails
from assayline.engines.client import HostedEngine
from assayline.engines.host.__main__ import tell_failure
from assayline.engines.host.core import EngineGoneError
from assayline.engines.messages import (
    AbortAll,
    Aborted,
    Beat,
    Close,
    Failed,
    Finished,
    Generate,
    Open,
    Opened,
    Refused,
    Resolved,
)
from assayline.engines.process import HostSetup
from assayline.engines.recovery.causes import classify
from assayline.errors import (
    DeviceError,
    EngineDiedError,
    EngineInterruptedError,
    Kind,
    ServerError,
    SpecError,
    Witness,
)
from assayline.records import Request
from assayline.spec.engine import EngineSpec


def beat_of(steps: int) -> Beat:
    return Beat(sample_of(engine_steps=steps))


BEAT = beat_of(0)


class Scripted(PlayedProcess):
    """A host that answers by `answer`; each wait takes its time, and then it `says` more."""

    def __init__(self, answer: Callable[[Any], list[Any]], loads_s: float, says: Callable[["Scripted"], Any]) -> None:
        super().__init__(0.0)
        self.sent: list[Any] = []
        self._answer, self._loads_s, self._says = answer, loads_s, says

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, Open):
            self.now_s += self._loads_s
        self._inbox.extend(self._answer(message))

    def receive(self, timeout_s: float = 0.5) -> Any:
        if self._inbox:
            return self._inbox.popleft()
        self.now_s += 0.5
        assert self.now_s < 1e4, "nobody gives up"
        return self._says(self)


@pytest.fixture
def started() -> list[Scripted]:
    """Every host that was started."""
    return []


@pytest.fixture
def converse(
    started: list[Scripted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[HostedEngine, Scripted]]:
    def start(
        answer: Callable[[Any], list[Any]],
        loads_s: float = 1.0,
        says: Callable[[Scripted], Any] = lambda host: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> tuple[HostedEngine, Scripted]:
        host = Scripted(answer, loads_s, says)
        started.append(host)

        host.play(monkeypatch)
        order = Open(engine=EngineSpec(), model="model", clock=RunClock(0.0, 0.0, "boot"))
        setup, hooks = HostSetup({}, tmp_path / "engine.log"), EngineHooks(should_stop=should_stop)
        return HostedEngine(order, setup, hooks, window=4), host

    return start


def requests(count: int) -> list[Request]:
    return [plain_request(str(number)) for number in range(count)]


def prompt_host(message: Any) -> list[Any]:
    match message:
        case Open():
            return [Opened(8, 64)]
        case Generate(request):
            return [BEAT, Finished([completion_of(request.request_id)])]
        case AbortAll():
            return [BEAT, Finished([completion_of("late")]), Aborted()]
    return []


DONE = Finished([completion_of("0")])


def silent_host(message: Any) -> list[Any]:
    return [] if isinstance(message, Generate) else prompt_host(message)


def test_slow_load_does_not_count_as_silence(converse):
    engine, _ = converse(prompt_host, loads_s=800.0)
    assert engine.facts.load_s == 800.0
    assert len(list(engine.generate(itertools.chain([None] * 3, requests(2))))) == 2


def one_request() -> Iterator[Request | None]:
    """And nothing more for the moment."""
    return itertools.chain(requests(1), itertools.repeat(None))


RANK_LINE = "(Worker_TP1 pid=4) ERROR 08-02 23:01:30 [multiproc_executor.py:1007] WorkerProc hit an exception."
"""vLLM's rank that replies waits for 300 s in the collective; the log has the failure at once."""
FAILED_RANK = "A process of the split model failed"


def lose_rank(host: Scripted, until_s: float, says: Any = None) -> Any:
    return host.on_log(RANK_LINE) if host.now_s < until_s else says


Says = Callable[[Scripted], Any]
ENDS: dict[str, tuple[Says, str, float, Kind, Witness]] = {
    "silence": (lambda host: None, "silent for 120 s", hosted.SILENCE_LIMIT_S, Kind.STALLED, Witness.SILENCE),
    # vLLM's synchronous client waits forever for an engine core that is gone, while the host's heart still beats.
    "heartbeats without steps": (
        lambda host: beat_of(7), "scheduled nothing for 600 s, with 1 requests in flight", 600, Kind.STALLED,
        Witness.SILENCE,
    ),
    "a rank that failed": (
        lambda host: lose_rank(host, 5) or beat_of(7), FAILED_RANK, hosted.RANK_GRACE_S, Kind.OTHER, Witness.LOG,
    ),
    "its own word": (
        lambda host: Failed("OutOfMemoryError", "no room"), "OutOfMemoryError: no room", 1, Kind.DEVICE_OOM,
        Witness.EXCEPTION,
    ),
}  # fmt: skip
"""What a host with a request in flight tells; what is raised, and after how many seconds; the kind, and who saw it."""


@pytest.mark.parametrize("name", ENDS)
def test_generate_raises_when_its_host_is_of_no_use_any_more_and_close_waits_for_nothing(converse, name):
    says, words, at_s, kind, witness = ENDS[name]
    engine, host = converse(silent_host, says=says)
    with pytest.raises(EngineDiedError, match=words) as caught:
        list(engine.generate(one_request()))
    assert host.now_s == pytest.approx(at_s, abs=5)
    assert (classify(caught.value.death).kind, caught.value.death.witness) == (kind, witness)
    engine.close()
    engine.close()
    assert not any(isinstance(message, AbortAll | Close) for message in host.sent), "it would not answer"
    assert host.exit_code == -9


def suspend(host_is_first: bool) -> Says:
    """SIGSTOP and SIGCONT to a worker and its host: monotonic time goes on, and the worker may be the first to run."""
    turns = itertools.count()

    def say(host: Scripted) -> Any:
        turn = next(turns)
        if turn == 5:
            host.now_s += 3600
            return BEAT if host_is_first else None
        return DONE if turn == 20 else BEAT if turn % 3 == 0 else None

    return say


LIVES: dict[str, tuple[Callable[[], Says], float]] = {
    "one that was suspended, and wakes first": (lambda: suspend(True), 3600),
    "one that was suspended, and wakes later": (lambda: suspend(False), 3600),
    "one that takes long steps": (
        lambda: lambda host: DONE if host.now_s > 1000 else beat_of(int(host.now_s)), 1000),
    "one that survives the failure of a rank": (
        lambda: lambda host: lose_rank(host, 2) or (DONE if host.now_s > 200 else beat_of(int(host.now_s))), 200),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES)
def test_generate_takes_no_host_for_dead_that_works(converse, name):
    make, at_s = LIVES[name]
    engine, host = converse(silent_host, says=make())
    assert next(engine.generate(one_request())).request_id == "0" and host.now_s > at_s


def test_a_stop_stays_a_stop_when_the_host_does_not_abort(converse):
    def answer(message: Any) -> list[Any]:
        return [] if isinstance(message, AbortAll) else silent_host(message)

    stops: list[bool] = []
    engine, host = converse(answer, should_stop=lambda: bool(stops))
    stops.append(True)
    with pytest.raises(EngineInterruptedError, match="stopped on request"):
        list(engine.generate(requests(1)))
    assert host.exit_code == -9, "an engine in this state answers nobody again"


STARTS: dict[str, tuple[Says, str, float]] = {
    "a rank that fails": (lambda host: lose_rank(host, 3), FAILED_RANK, hosted.RANK_GRACE_S),
    "silence": (lambda host: None, "did not answer within 900 s", 900),
    "log lines for ever": (
        lambda host: host.on_log("No available shared memory broadcast block found in 60 seconds."), "did not answer",
        hosted.LONGEST_START * 900,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_a_start_is_given_up_in_time(converse, started, name):
    says, words, at_s = STARTS[name]
    with pytest.raises(EngineDiedError, match=words):
        converse(lambda message: [], says=says)
    assert started[0].now_s == pytest.approx(at_s, abs=10)


def test_a_start_that_writes_its_log_gets_more_time(converse):
    """Weights from a cold disk, or a compiler: every shard and every stage has a line."""

    def say(host: Scripted) -> Any:
        if int(host.now_s) % 600 == 0:
            host.on_log("Loading safetensors checkpoint shards: 10% Completed")
        return Opened(8, 64) if host.now_s >= 2000 else None

    engine, host = converse(lambda message: [], says=say)
    assert host.now_s == pytest.approx(2000, abs=5) and engine.facts.window_requests == 4


def test_sizes_that_vllm_chose_are_part_of_the_evidence_when_a_start_fails(converse):
    """A kill by the kernel leaves no message: the sizes are sent ahead of it."""
    sizes = OpenedDetails(max_num_seqs=1024, max_num_batched_tokens=16384)
    with pytest.raises(EngineDiedError) as caught:
        converse(lambda message: [Resolved(sizes), Failed("OutOfMemoryError", "CUDA out of memory.")])
    assert caught.value.death.resolved == sizes


def test_results_in_flight_are_dropped_when_the_consumer_leaves(converse):
    engine, host = converse(prompt_host)
    answers = engine.generate(requests(9))
    next(answers)
    answers.close()
    assert isinstance(host.sent[-1], AbortAll)
    assert [answer.request_id for answer in engine.generate(requests(3))] == ["0", "1", "2"]


def test_a_stop_that_lasts_still_cleans_up(converse):
    stopped: list[bool] = []
    engine, host = converse(prompt_host, should_stop=lambda: bool(stopped))
    answers = engine.generate(requests(9))
    next(answers)
    stopped.append(True)
    with pytest.raises(EngineInterruptedError, match="what had finished is stored"):
        list(answers)
    assert isinstance(host.sent[-1], AbortAll)
    stopped.clear()
    assert len(list(engine.generate(requests(2)))) == 2


def test_a_stop_interrupts_the_start(converse):
    with pytest.raises(EngineInterruptedError, match="stopped on request"):
        converse(lambda message: [BEAT], should_stop=lambda: True)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *((Refused(kind("the reason")), kind) for kind in (SpecError, DeviceError, ServerError)),
        (Failed("ValueError", "the reason"), EngineDiedError),
    ],
)
def test_a_failure_keeps_its_kind_across_the_wall(converse, started, said, expected):
    with pytest.raises(expected, match="the reason") as caught:
        converse(lambda message: [pickle.loads(pickle.dumps(said))])
    assert type(caught.value) is expected
    assert [host.exit_code for host in started] == [-9], "what does not open is ended"


def test_an_engine_that_is_gone_sends_the_reader_to_its_log(converse):
    """vLLM has an exception of its own for that, which here is told apart by its name, as where there is no vLLM."""
    theirs = type("EngineDeadError", (Exception,), {})
    for error in (EngineGoneError("it ended"), theirs("see the log")):
        with pytest.raises(EngineDiedError) as caught:
            converse(lambda message, error=error: [tell_failure(error)])
        assert caught.value.death.witness is Witness.LOG and str(error) in str(caught.value)
    assert tell_failure(ValueError("no")).witness is Witness.EXCEPTION


def test_close_asks_before_it_kills(converse):
    engine, host = converse(prompt_host)
    engine.close()
    assert isinstance(host.sent[-1], Close) and host.exit_code == -9
    assert host.now_s >= 20, "the host had its time to close by itself"
