"""Requests that a streaming engine hands to its host, when it does, and the rest at the end of a load.

The host is played: it has a clock of its own, which passes only while somebody waits for it, and answers every request
a given time after it was sent.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine_kit import PlayedProcess, load_of
from run_kit import completion_of, plain_request, sample_of

from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.client import LOOKAHEAD_S, MIN_SURPLUS_REQUESTS, TURN_INTERVAL_S, HostedEngine
from assayline.engines.messages import AbortAll, Aborted, Beat, Finished, Generate, Open, Opened, StopSending, unsent
from assayline.engines.process import HostSetup
from assayline.errors import Death, EngineDiedError
from assayline.load.arrivals import list_offsets
from assayline.load.progress import LEAD_S, LoadEnd, LoadProgress
from assayline.records import NOT_SENT, Completion, Request
from assayline.spec.engine import EngineSpec
from assayline.spec.load import Poisson

ASYNC = EngineSpec(backend="async")


class PlayedHost(PlayedProcess):
    """Answers each request `service_s` after it is sent, with at most `servers` at once; beats once a second."""

    def __init__(self, service_s: float = 1.0, servers: float = math.inf, max_num_seqs: int | None = 8) -> None:
        super().__init__(100.0)
        self.service_s, self.servers, self.max_num_seqs = service_s, servers, max_num_seqs
        self.sent: list[Generate] = []
        self.handed_s: list[float] = []
        self.bad: set[str] = set()
        self.dies_at: int | None = None
        self._queue: list[tuple[float, int, Completion]] = []
        self._free = [0.0] * int(servers) if servers < math.inf else []
        self._beat_s = 101.0

    def send(self, message: Any) -> None:
        match message:
            case Open():
                self._inbox.append(Opened(self.max_num_seqs, 64))
            case Generate():
                self._accept(message)
            case StopSending(reason):
                self._give_back(reason)
            case AbortAll():
                self._queue.clear()
                self._inbox.clear()
                self._inbox.append(Aborted())

    def receive(self, timeout_s: float = 0.5) -> Any:
        if self._inbox:
            return self._inbox.popleft()
        until_s = self.now_s + timeout_s
        next_s = self._queue[0][0] if self._queue else math.inf
        if self._beat_s <= min(until_s, next_s):
            self.now_s, self._beat_s = max(self.now_s, self._beat_s), self._beat_s + 1
            return Beat(sample_of(at_s=self.now_s, in_flight_requests=self._count_sent(), output_tokens=len(self.sent)))
        if next_s <= until_s:
            self.now_s = max(self.now_s, next_s)
            return Finished([heapq.heappop(self._queue)[2]])
        self.now_s = until_s
        assert self.now_s < 1e5, "nobody gives up"
        return None

    def _accept(self, message: Generate) -> None:
        number = len(self.sent)
        self.sent.append(message)
        self.handed_s.append(self.now_s)
        if self.dies_at == number:
            raise EngineDiedError("dead", Death("run"))
        start_s = max(self.now_s, message.due_at_s or 0.0)
        if self._free:
            start_s = max(start_s, heapq.heappop(self._free))
            heapq.heappush(self._free, start_s + self.service_s)
        name = message.request.request_id
        error = "bad" if name in self.bad else None
        row = completion_of(
            name,
            window_requests=message.window_requests,
            due_at_s=message.due_at_s,
            sent_at_s=start_s,
            error_kind=error,
        )
        heapq.heappush(self._queue, (start_s + self.service_s, number, row))

    def _give_back(self, reason: str) -> None:
        waiting = [entry for entry in self._queue if (entry[2].sent_at_s or 0) > self.now_s]
        self._queue = [entry for entry in self._queue if entry not in waiting]
        heapq.heapify(self._queue)
        if waiting:
            self._inbox.append(Finished([unsent(row.request_id, "w", 0, reason) for _, _, row in sorted(waiting)]))

    def _count_sent(self) -> int:
        return sum((row.due_at_s or 0.0) <= self.now_s for _, _, row in self._queue)


@dataclass
class Play:
    engine: HostedEngine
    host: PlayedHost
    load: LoadProgress
    notes: list[str] = field(default_factory=list)
    ends: list[LoadEnd] = field(default_factory=list)

    def rows(self, requests: Iterable[Request | None]) -> list[Completion]:
        return list(self.engine.generate(requests))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Play]:
    def start(
        load: LoadProgress | None = None, window: int | None = None, engine: EngineSpec = ASYNC, **host_options: Any
    ) -> Play:
        host = PlayedHost(**host_options)
        host.play(monkeypatch)
        notes: list[str] = []
        ends: list[LoadEnd] = []
        load = load or LoadProgress()
        order = Open(engine=engine, model="model", clock=RunClock(0.0, 0.0, "boot"))
        setup = HostSetup({}, tmp_path / "engine.log")
        hooks = EngineHooks(on_note=notes.append, on_load_ended=ends.append)
        return Play(HostedEngine(order, setup, hooks, window=window, load=load), host, load, notes, ends)

    return start


def requests(count: int) -> Iterator[Request]:
    return (plain_request(str(number)) for number in range(count))


def split(rows: list[Completion]) -> tuple[list[str], list[str]]:
    """Ids of what was sent and of what was not, in the order of their names."""
    sent = sorted((row.request_id for row in rows if row.error_kind != NOT_SENT), key=int)
    return sent, sorted((row.request_id for row in rows if row.error_kind == NOT_SENT), key=int)


def names(*range_of: int) -> list[str]:
    return [str(number) for number in range(*range_of)]


def due_of(host: PlayedHost) -> list[float]:
    return [message.due_at_s or 0.0 for message in host.sent]


CONSTANT = {"kind": "constant", "rate_per_s": 2.0}


class TestOpenLoop:
    def test_requests_are_due_by_the_pattern_and_handed_over_in_time(self, play):
        it = play(load_of({"kind": "poisson", "rate_per_s": 2.0, "seed": 4}), service_s=50.0)
        start_s = it.host.now_s + LEAD_S
        assert split(it.rows(requests(60))) == (names(60), [])
        offsets = list(itertools.islice(list_offsets(Poisson(kind="poisson", rate_per_s=2.0, seed=4)), 60))
        assert due_of(it.host) == pytest.approx([start_s + offset for offset in offsets])
        early = [due - handed for due, handed in zip(due_of(it.host), it.host.handed_s, strict=True)]
        assert min(early) > 0 and max(early) <= LOOKAHEAD_S
        assert max(offsets) > 10 * LOOKAHEAD_S / 4, "the pattern is longer than what is handed over ahead"
        assert {message.window_requests for message in it.host.sent} == {None} == {it.engine.facts.window_requests}

    def test_an_engine_that_answers_nothing_is_sent_everything(self, play):
        it = play(load_of({"kind": "all_at_once"}), service_s=500.0)
        assert len(it.rows(requests(1000))) == 1000
        assert max(it.host.handed_s) < 101

    def test_the_pattern_begins_with_the_first_request(self, play):
        it = play(load_of(CONSTANT))
        it.rows(itertools.chain(itertools.repeat(None, 500), requests(3)))
        first_s = it.host.handed_s[0]
        assert first_s > 100 + 400 * TURN_INTERVAL_S
        assert due_of(it.host) == pytest.approx([first_s + LEAD_S + n / 2 for n in range(3)])
        assert not it.notes

    def test_input_that_comes_late_is_sent_and_counted(self, play):
        it = play(load_of(CONSTANT))
        supply = requests(6)
        dry = itertools.chain([next(supply)], itertools.repeat(None, 500), [next(supply)], [None] * 500, supply)
        assert split(it.rows(dry)) == (names(6), [])
        due = due_of(it.host)
        assert due == pytest.approx([due[0] + n / 2 for n in range(6)]), "the times stay those of the pattern"
        assert it.host.handed_s[1] > due[1]
        assert len(it.notes) == 1 and it.notes[0].startswith("5 requests of the load came to the sender after")

    def test_input_that_dries_up_after_the_end_is_not_late(self, play):
        it = play(load_of(CONSTANT, max_requests=2))
        supply = requests(6)
        dry = itertools.chain([next(supply), next(supply), next(supply)], itertools.repeat(None, 500), supply)
        assert split(it.rows(dry)) == (names(2), ["2", "3", "4", "5"])
        assert not it.notes

    def test_input_is_read_again_soon_while_the_engine_works(self, play):
        it = play(load_of({"kind": "all_at_once"}), service_s=300.0)
        it.rows(itertools.chain(requests(1), [None] * 10, [plain_request("late")]))
        assert it.host.handed_s[1] - it.host.handed_s[0] <= 11 * TURN_INTERVAL_S + 1e-6

    def test_another_engine_goes_on_in_the_pattern(self, play):
        """The first one dies with some answered: the rest is due from now on, at the pattern's distances."""
        pattern = {"kind": "poisson", "rate_per_s": 1.0, "burstiness": 0.5, "seed": 9}
        load = load_of(pattern)
        it = play(load, service_s=0.5)
        first = list(itertools.islice(it.engine.generate(requests(40)), 7))
        it.host.now_s += 1000
        left = [request for request in requests(40) if request.request_id not in {row.request_id for row in first}]
        it.host.sent.clear()
        began_s = it.host.now_s
        assert len(it.rows(left)) == 33
        offsets = list(itertools.islice(list_offsets(load_of(pattern).spec.arrival), 40))[7:]
        assert due_of(it.host) == pytest.approx(
            [began_s + LEAD_S + offset - offsets[0] for offset in offsets], abs=0.05
        )

    def test_host_crash_does_not_end_the_load(self, play):
        it = play(load_of({"kind": "all_at_once"}))
        it.host.dies_at = 3
        answers = it.engine.generate(requests(9))
        assert next(answers).request_id == "0"


def requests_at(*offsets_s: float) -> Iterator[Request]:
    """As in a trace: each has its own time."""
    return (plain_request(str(n), due_offset_s=offset_s) for n, offset_s in enumerate(offsets_s))


OWN_TIMES = {"kind": "trace", "speed": 2.0}


class TestTimesOfTheirOwn:
    OFFSETS = (10.0, 10.5, 10.5, 30.0, 31.0, 90.0)

    def test_requests_are_due_when_they_say_and_handed_over_in_time(self, play):
        """The first is due at once, whatever came before it in the trace: those rows could not be asked."""
        it = play(load_of(OWN_TIMES), service_s=50.0)
        start_s = it.host.now_s + LEAD_S
        assert split(it.rows(requests_at(*self.OFFSETS))) == (names(6), [])
        assert due_of(it.host) == pytest.approx([start_s + (offset - 10) / 2 for offset in self.OFFSETS])
        early = [due - handed for due, handed in zip(due_of(it.host), it.host.handed_s, strict=True)]
        assert min(early) > 0 and max(early) <= LOOKAHEAD_S + 1e-6

    def test_another_engine_goes_on_where_the_trace_was(self, play):
        it = play(load_of(OWN_TIMES), service_s=0.1)
        first = list(itertools.islice(it.engine.generate(requests_at(*self.OFFSETS)), 3))
        assert len(first) == 3
        it.host.now_s += 1000
        it.host.sent.clear()
        began_s = it.host.now_s
        assert split(it.rows(itertools.islice(requests_at(*self.OFFSETS), 3, None)))[0] == names(3, 6)
        assert due_of(it.host) == pytest.approx([began_s + LEAD_S + n for n in (0, 0.5, 30)])

    @pytest.mark.parametrize(("limit", "sent"), [({"max_requests": 4}, 4), ({"max_duration_s": 16.0}, 5)])
    def test_the_load_s_limits_hold(self, play, limit, sent):
        it = play(load_of(OWN_TIMES, **limit))
        assert split(it.rows(requests_at(*self.OFFSETS))) == (names(sent), names(sent, 6))

    def test_input_that_is_not_there_yet_is_waited_for(self, play):
        it = play(load_of(OWN_TIMES))
        supply = requests_at(*self.OFFSETS)
        assert split(it.rows(itertools.chain([None] * 9, [next(supply)], [None] * 9, supply, [None])))[0] == names(6)


class TestClosedLoop:
    @pytest.mark.parametrize("window", [1, 4, 40])
    def test_a_surplus_waits_in_the_host_and_no_more(self, play, window):
        it = play(window=window, servers=window, max_num_seqs=999)
        seen, most = 0, 0
        for _ in it.engine.generate(requests(200)):
            most = max(most, len(it.host.sent) - seen)
            seen += 1
        assert seen == 200 and most <= window + max(window, MIN_SURPLUS_REQUESTS)
        assert most > window and {message.window_requests for message in it.host.sent} == {window}
        assert {message.due_at_s for message in it.host.sent} == {None}

    @pytest.mark.parametrize("backend", ["offline", "async", "server"])
    def test_a_barrier_hands_over_the_next_batch_when_the_last_one_is_answered(self, play, backend):
        it = play(window=70, engine=EngineSpec(backend=backend, mode="barrier"))
        assert split(it.rows(requests(160))) == (names(160), [])
        assert list(Counter(it.host.handed_s).values()) == [70, 70, 20]

    def test_the_window_is_the_pattern_s_or_follows_from_the_engine(self, play):
        assert play(load_of({"kind": "concurrency", "requests": 3}), window=3).engine.facts.window_requests == 3
        assert play(max_num_seqs=8).engine.facts.window_requests == 10
        assert play(max_num_seqs=None).engine.facts.window_requests == 64

    def test_a_window_that_is_set_holds_from_the_next_request_on(self, play):
        it = play(window=4, servers=4)
        answers = it.engine.generate(requests(90))
        next(answers)
        it.engine.set_window(2)
        list(answers)
        assert it.host.sent[-1].window_requests == 2


CLOSED = {"kind": "concurrency", "requests": 2}


class TestEnd:
    @pytest.mark.parametrize(
        ("arrival", "limits", "settled", "sent", "reason"),
        [
            (CONSTANT, {"max_requests": 5}, 0, 5, "max_requests"),
            (CLOSED, {"max_requests": 5}, 0, 5, "max_requests"),
            (CONSTANT, {"max_requests": 10}, 7, 3, "max_requests"),
            (CONSTANT, {"max_requests": 12, "max_duration_s": 6.0}, 0, 12, None),
            (CONSTANT, {"max_duration_s": 3.0}, 0, 7, "max_duration_s"),
            (CONSTANT, {"max_duration_s": 3.0}, 4, 3, "max_duration_s"),
        ],
        ids=["requests", "closed loop", "later attempt", "all fit", "seconds of the pattern", "of a later attempt"],
    )
    def test_a_load_ends_at_its_limit(self, play, arrival, limits, settled, sent, reason):
        it = play(LoadProgress(load_of(arrival, **limits).spec, settled=settled), window=2, servers=2)
        assert split(it.rows(requests(12))) == (names(sent), names(sent, 12))
        assert [end.reason for end in it.ends] == ([reason] if reason else [])
        assert all(f"load.{reason} is" in end.message for end in it.ends)

    def test_the_rows_of_what_is_not_sent(self, play):
        it = play(load_of(CONSTANT, max_requests=1))
        row = it.rows(requests(2))[0]
        assert (row.request_id, row.error_kind, row.window_requests) == ("1", NOT_SENT, None)
        assert (row.sent_at_s, row.due_at_s, row.finished_at_s, row.prompt_tokens) == (None, None, None, None)

    def test_max_duration_of_a_closed_loop_is_seconds_from_the_first_sending(self, play):
        it = play(load_of({"kind": "concurrency", "requests": 2}, max_duration_s=5.5), window=2, servers=2)
        rows = it.rows(itertools.chain([None] * 200, requests(100)))
        sent, left = split(rows)
        assert sent == names(12) and left == names(12, 100)
        first_s = min(row.sent_at_s or 0 for row in rows if row.sent_at_s)
        assert all((row.sent_at_s or 0) - first_s <= 5.5 + TURN_INTERVAL_S for row in rows)

    @pytest.mark.parametrize("arrival", [CONSTANT, {"kind": "concurrency", "requests": 2}])
    def test_max_errors(self, play, arrival):
        it = play(load_of(arrival, max_errors=3), window=2, servers=2)
        it.host.bad = {"1", "4", "5", "6"}
        sent, left = split(it.rows(requests(60)))
        assert len(sent) < 16 and len(sent) + len(left) == 60 and {"1", "4", "5"} <= set(sent)
        assert [end.reason for end in it.ends] == ["max_errors"]

    def test_errors_of_earlier_attempts_count(self, play):
        it = play(LoadProgress(load_of(CONSTANT, max_errors=3).spec, settled=9, errors=2))
        it.host.bad = {"0"}
        sent, left = split(it.rows(requests(60)))
        assert "0" in sent and len(left) > 40

    def test_the_end_of_a_trace(self, play, tmp_path):
        path = tmp_path / "trace.csv"
        path.write_text("timestamp\n5\n6\n8\n")
        it = play(load_of({"kind": "trace", "path": str(path)}))
        assert split(it.rows(requests(5))) == (names(3), names(3, 5))
        due = due_of(it.host)
        assert due == pytest.approx([due[0], due[0] + 1, due[0] + 3])
        words = "Sending has ended: the trace has 3 stamps, and every request needs one."
        assert [(end.reason, end.message) for end in it.ends] == [("end_of_trace", words)]
        own = play(load_of(OWN_TIMES))
        assert split(own.rows(plain_request(str(n), due_offset_s=n or None) for n in (1, 0))) == (["1"], ["0"])
        words = "Sending has ended: a row of the trace has no stamp, and every request needs one."
        assert [(end.reason, end.message) for end in own.ends] == [("end_of_trace", words)]

    def test_an_end_that_earlier_attempts_knew_is_not_told_again(self, play):
        it = play(LoadProgress(load_of(CONSTANT).spec, settled=4, end_before="it was over"))
        rows = it.rows(itertools.chain([None], requests(3), [None], requests(0)))
        assert [row.error_message for row in rows] == ["it was over"] * 3
        assert it.ends == [] and it.host.sent == []

    def test_input_is_read_to_its_end_while_what_was_sent_finishes(self, play):
        it = play(load_of(CONSTANT, max_requests=1), service_s=100.0)
        rows = it.rows(itertools.chain(requests(2), [None] * 20, requests(200)))
        assert len(rows) == 202 and rows[-1].error_kind is None, "unsent rows do not wait for the slow one"
