"""HostedEngine: an engine in a process of its own, as the worker holds it.

It opens the engine host, feeds it requests by the load, explains its death and ends it. `vllm.LLM` gets requests when
its window or batch has room. A streaming engine's host gets them ahead of time, as it sends them itself when they are
due or its window has room.
"""

import contextlib
import math
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from assayline.engines.base import EngineFacts, EngineHooks, OpenedDetails, RequestSource
from assayline.engines.messages import (
    AbortAll,
    Aborted,
    Beat,
    Failed,
    Finished,
    Generate,
    Open,
    Opened,
    Refused,
    Resolved,
    StopSending,
    Warm,
    WarmUp,
    unsent,
)
from assayline.engines.pool import EnginePool, IdleEngine, own_variables
from assayline.engines.process import HostProcess, HostSetup
from assayline.engines.senders import Senders
from assayline.errors import EngineDiedError, EngineError, EngineInterruptedError, SpecError, Witness
from assayline.load.progress import LoadEnd, LoadProgress, Schedule
from assayline.records import NOT_SENT, Completion, Request, TelemetrySample
from assayline.words import count

Answer = TypeVar("Answer")
WINDOW_PER_SEQUENCE = 1.25
"""Default window over max_num_seqs. At 1.0 a slot stays empty for a step while it is refilled; at 1.25 none does."""

WINDOW_WITHOUT_FACTS = 64
"""Default window of a server, which does not report how many requests it runs at once."""

SILENCE_LIMIT_S = 120.0
"""A host that sends no beat for this long is declared dead."""

LONGEST_TURN_S = 10.0
"""The longest gap between two readings that counts as waiting: in a longer one the job was suspended, with its host."""

LONGEST_START = 4.0
"""Each log line of a starting engine restarts its time limit; a start takes at most this many times the limit."""

RANK_FAILED = "WorkerProc hit an exception."
"""vLLM's log line for a failure in one process of a model that is split over several."""

RANK_GRACE_S = 15.0
"""How long vLLM may take to end after that line. Without this limit, the other ranks wait for minutes."""

REJOIN_TIMEOUT_S = 60.0
"""An idle engine that does not answer within this time is ended, and a new one is opened."""

LOOKAHEAD_S = 3.0
"""Requests are handed to the host this long before they are due: longer than storing results ever takes."""

MIN_SURPLUS_REQUESTS = 16
"""In a closed loop, at least this many requests wait in a streaming engine's host, or as many as its window."""

REQUESTS_PER_TURN = 64
"""Requests handed over in one go, before results are read."""

TURN_INTERVAL_S = 0.02
"""Interval at which the input and the clock are checked, with or without results."""


class HostedEngine:
    """An engine on `vllm.LLM`, vLLM's async engine, or a server. Opens in the constructor; use `close`."""

    def __init__(
        self,
        order: Open,
        setup: HostSetup,
        hooks: EngineHooks = EngineHooks(),  # noqa: B008 - frozen
        *,
        window: int | None = None,
        load: LoadProgress | None = None,
        pool: EnginePool | None = None,
    ) -> None:
        """Open it. `window`: most requests in flight, None for the engine's default; `pool` keeps it for later runs.

        Without `load`, it is a closed loop without end.
        """
        self._host: HostProcess | Senders
        self._order = order
        self._setup = setup
        self._hooks = hooks
        self._window = window
        self._load = load or LoadProgress()
        self._is_stopping = False
        self._late = 0
        """Requests that were due before the host had them."""
        self._pool = pool
        self._in_flight = 0  # handed to the host and not answered
        self._closed = False
        self._lost = False
        self._progress: tuple[int | None, int] = (0, 0)
        self._without_step, self._silence, self._without_log = _Waiting(), _Waiting(), _Waiting()
        self._rank_failed_s: float | None = None
        self._resolved: OpenedDetails = {}
        started = time.monotonic()
        self._own_variables = own_variables(setup.env)
        opened = self._take_over() or self._start()
        self._window_requests = self._first_window(opened)
        self._facts = EngineFacts(
            self._window_requests, opened.max_model_len, time.monotonic() - started, opened.details
        )

    @property
    def facts(self) -> EngineFacts:
        """Return what the engine resolved at start-up."""
        return self._facts

    @property
    def host_pid(self) -> int:
        """Return the process id of the engine host."""
        return self._host.pid

    def set_window(self, window_requests: int) -> None:
        """Set the most requests in flight from now on; in mode barrier, the size of the next batch."""
        self._window_requests = window_requests

    def warm_up(self, request: Request) -> float:
        """Generate once outside every metric. Returns seconds; raises SpecError if the engine refuses the request."""
        started = time.monotonic()
        self._host.send(WarmUp(request))
        answer = self._expect(Warm, self._setup.start_timeout_s)
        if answer.error is not None:
            raise SpecError(f"The warm-up request was refused: {answer.error}")
        return time.monotonic() - started

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answer every request once, in completion order; those that a load leaves unsent are `not_sent` rows."""
        source, schedule = RequestSource(requests), Schedule(self._load)
        self._is_stopping = False
        with self._generating():
            while True:
                has_more = yield from self._take_turn(source, schedule)
                if source.exhausted and not self._in_flight:
                    self._note_late()
                    return
                for completion in self._receive_finished(0.0 if has_more else TURN_INTERVAL_S):
                    yield self._settle(completion)
                self._check_stop()

    def close(self) -> None:
        """Give the engine to its pool if another run can use it; else end its processes. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        is_well = self._host.exit_code is None and not self._lost and not self._in_flight
        if self._pool is not None and is_well and self.is_reusable:
            kept_from = str(self._facts.details.get("kept_from") or self._order.run_id)
            self._pool.keep(
                IdleEngine(self._host, self._order, self._own_variables, kept_from, self._setup.close_timeout_s)
            )
        elif self._lost:
            self._host.kill()
        else:
            self._host.end(self._setup.close_timeout_s)

    @property
    def is_reusable(self) -> bool:
        """Return True if another run can use this engine as if it were new: our own server must not cache prefixes."""
        engine = self._order.engine
        return not engine.starts_server or engine.args.get("enable_prefix_caching") is False

    def _start(self) -> Opened:
        """Start a process with a new engine in it, or several that send to one server."""
        setup = self._setup
        paths = [setup.log_path.with_stem(f"{setup.log_path.stem}-{n}") for n in range(2, self._order.senders + 1)]
        first, *others = [
            HostProcess(setup.env, path, self._read_log, setup.launch) for path in (setup.log_path, *paths)
        ]
        self._host = Senders([first, *others]) if others else first
        try:
            self._host.send(self._order)
            return self._expect(Opened, self._setup.start_timeout_s)
        except BaseException as error:
            self._host.kill()
            if isinstance(error, EngineDiedError):
                error.death = replace(error.death, resolved=self._resolved)
            raise

    def _take_over(self) -> Opened | None:
        """Take over an earlier run's engine, if its order is equal and it still answers."""
        idle = self._pool.take(self._order, self._own_variables) if self._pool is not None else None
        if idle is None:
            return None
        self._host = idle.host
        try:
            self._host.listen(self._read_log)
            self._host.send(self._order)
            opened = self._expect(Opened, REJOIN_TIMEOUT_S)
        except BaseException as error:
            self._host.kill()
            if isinstance(error, EngineDiedError):
                return None
            raise
        self._setup.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._setup.log_path.write_text(f"Kept from run {idle.run_id}: the log continues in {self._host.log_path}\n")
        return replace(opened, details={**opened.details, "kept_from": idle.run_id})

    def _first_window(self, opened: Opened) -> int | None:
        """Return the initial limit of requests in flight; None if there is no limit."""
        if self._load.is_open_loop:
            return None
        if self._window or opened.max_num_seqs is None:
            return self._window or WINDOW_WITHOUT_FACTS
        return math.ceil(WINDOW_PER_SEQUENCE * opened.max_num_seqs)

    def _take_turn(self, source: RequestSource, schedule: Schedule) -> Generator[Completion, None, bool]:
        """Hand due requests to the host; once the load has ended, yield the remaining input as `not_sent` rows.

        Returns whether there is more to do at once.
        """
        batch = self._window_requests if self._order.engine.mode == "barrier" else None
        if batch and self._in_flight:
            return False
        for _ in range(batch or REQUESTS_PER_TURN):
            now_s = self._order.clock.now_s()
            self._load.check_time(now_s)
            if self._load.end is not None:
                self._take_back(self._load.end)
            elif not self._has_room(source, schedule, now_s):
                return False
            request = source.next()
            if request is None:
                return False
            due_s = schedule.place(now_s, request)
            self._late += due_s is not None and due_s < now_s
            if self._load.end is not None:
                order, message = self._order, self._load.end.message
                yield self._settle(unsent(request.request_id, order.worker, order.engine_generation, message))
            elif not self._hand_over(Generate(request, now_s, self._window_requests, due_s)):
                return False
        return True

    def _has_room(self, source: RequestSource, schedule: Schedule, now_s: float) -> bool:
        """Return whether the host may have another request now."""
        if self._window_requests is None:
            due_s = schedule.next_due_s(source.peek() if schedule.reads_requests else None)
            return due_s is None or due_s <= now_s + LOOKAHEAD_S
        surplus = max(self._window_requests, MIN_SURPLUS_REQUESTS) if self._order.engine.is_streaming else 0
        return self._in_flight < self._window_requests + surplus

    def _hand_over(self, message: Generate) -> bool:
        """Send a request to the host. False if the host is gone: later reads return what it had sent, then raise."""
        self._in_flight += 1
        try:
            self._host.send(message)
        except EngineError:
            return False
        return True

    def _take_back(self, end: LoadEnd) -> None:
        """Take back the requests that wait in the host, if the load ended suddenly."""
        if end.is_sudden and not self._is_stopping:
            self._is_stopping = True
            with contextlib.suppress(EngineError):  # it died: the next read raises
                self._host.send(StopSending(end.message))

    def _settle(self, completion: Completion) -> Completion:
        """Count a completion, and report the load's end with the first row that was not sent."""
        load = self._load
        load.settle(completion)
        if completion.error_kind == NOT_SENT and load.end is not None and not load.is_announced:
            load.is_announced = True
            self._hooks.on_load_ended(load.end)
        return completion

    def _note_late(self) -> None:
        """Report how many requests could not be sent in time."""
        late, self._late = self._late, 0
        if late:
            self._hooks.on_note(
                f"{count(late, 'request')} of the load came to the sender after they were due (see send lag). hint: "
                "give this process a free core, or lower the rate"
            )

    @contextlib.contextmanager
    def _generating(self) -> Iterator[None]:
        """Wrap the body of `generate`, so that the engine is afterwards either usable or marked as lost."""
        self._host.begin_run()
        self._without_step.restart()
        try:
            yield
        except EngineError as error:
            self._lost = not isinstance(error, EngineInterruptedError)
            raise
        finally:
            if self._in_flight and not self._closed and not self._lost:
                try:
                    self._abort()
                except EngineError:  # what ended the generation counts
                    self._lost = True
                    self._host.kill()

    def _check_stop(self) -> None:
        if self._hooks.should_stop():
            raise EngineInterruptedError("Generation was stopped on request; what had finished is stored.")

    def _receive_finished(self, timeout_s: float) -> list[Completion]:
        """Return the completions of the next message, if one comes in time."""
        match self._receive(timeout_s):
            case None:
                return []
            case Finished(completions):
                self._without_step.restart()
                self._in_flight -= len(completions)
                return completions
            case Beat(sample):
                self._hooks.on_sample(sample)
                self._check_progress(sample)
                return []
            case Refused(error):
                raise error
            case Failed() as failed:
                raise self._explain(failed)
            case unexpected:
                raise EngineError(
                    f"The engine's process sent {type(unexpected).__name__}, which was not expected here."
                )

    def _read_log(self, line: str) -> None:
        self._without_log.restart()
        if RANK_FAILED in line and self._rank_failed_s is None:
            self._rank_failed_s = time.monotonic()
        self._hooks.on_log(line)

    def _check_ranks(self) -> None:
        """Raise EngineDiedError if a part of a split model failed and the others still wait for it."""
        if self._rank_failed_s is not None and time.monotonic() - self._rank_failed_s > RANK_GRACE_S:
            self._lost = True
            words = "A process of the split model failed, and the others wait for it."
            death = self._host.evidence(message=words, witness=Witness.LOG)
            raise EngineDiedError(f"{words} {self._host.describe_death()}", death)

    def _receive(self, timeout_s: float) -> Any | None:
        """Return the next message, or None. Raises EngineDiedError if the host has been silent for too long."""
        message = self._host.receive(timeout_s)
        if message is not None:
            self._silence.restart()
        elif self._silence.read() > SILENCE_LIMIT_S:
            raise self._stalled(f"The engine's process has been silent for {SILENCE_LIMIT_S:.0f} s.")
        return message

    def _expect(self, kind: type[Answer], timeout_s: float, checks_stop: bool = True) -> Answer:
        """Wait for one kind of message, and skip completions and beats that were sent before it."""
        waiting = _Waiting()
        self._without_log.restart()
        while self._without_log.read() < timeout_s and waiting.read() < LONGEST_START * timeout_s:
            message = self._host.receive()
            self._silence.restart()  # a host that loads a model sends no beats: the deadline alone counts
            if isinstance(message, kind):
                return message
            if isinstance(message, Resolved):
                self._resolved = message.sizes
            if isinstance(message, Refused):
                raise message.error
            if isinstance(message, Failed):
                raise self._explain(message)
            self._check_ranks()
            if checks_stop and self._hooks.should_stop():
                raise EngineInterruptedError("The engine was stopped on request while it was busy.")
        raise self._stalled(f"The engine did not answer within {timeout_s:.0f} s.")

    def _explain(self, failed: Failed) -> EngineDiedError:
        self._lost = True
        words = f"The engine failed: {failed.exception}: {failed.message}\n    Its whole log: {self._host.log_path}"
        return EngineDiedError(words, self._host.evidence(failed.exception, failed.message, failed.witness))

    def _check_progress(self, sample: TelemetrySample) -> None:
        """Raise EngineDiedError if the engine beats and has requests, but schedules nothing and outputs nothing."""
        progress = (sample.engine_steps, sample.output_tokens)
        if progress != self._progress or not self._in_flight:
            self._progress, self._rank_failed_s = progress, None
            self._without_step.restart()
            return
        self._check_ranks()
        if self._without_step.read() > self._setup.stall_timeout_s:
            raise self._stalled(
                f"The engine has scheduled nothing for {self._setup.stall_timeout_s:.0f} s, with {self._in_flight} "
                "requests in flight."
            )

    def _stalled(self, what: str) -> EngineDiedError:
        self._lost = True
        return EngineDiedError(
            f"{what} {self._host.describe_death()}", self._host.evidence(message=what, witness=Witness.SILENCE)
        )

    def _abort(self) -> None:
        self._host.send(AbortAll())
        self._expect(Aborted, self._setup.close_timeout_s, checks_stop=False)
        self._in_flight = 0


class _Waiting:
    """Seconds since the start. Each call of `read` adds at most `LONGEST_TURN_S`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._seconds, self._read_s = 0.0, time.monotonic()

    def read(self) -> float:
        """Add the time since the last call. Returns the seconds since the start."""
        now = time.monotonic()
        self._seconds += min(now - self._read_s, LONGEST_TURN_S)
        self._read_s = now
        return self._seconds
