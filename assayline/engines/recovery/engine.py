"""AdaptiveEngine: an engine that survives running out of memory.

It holds one engine at a time. When that dies, it records why, closes it, waits until its memory is free, opens the next
one with the sizes of `policy.py`, and sends unanswered requests again, in the old order. Each completion is passed on
once, even if the engine dies afterwards. A dead engine is never used again: vLLM would hang, or give wrong text from
cache blocks that were never computed. If no other size helps, the request that kills engines is found by bisection and
becomes an error row.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from assayline.clock import RunClock
from assayline.engines.base import (
    AnyEngine,
    EngineFacts,
    FailedDetails,
    IsolatedDetails,
    OpenedDetails,
    WarmedUpDetails,
)
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.recovery.causes import Cause, classify
from assayline.engines.recovery.policy import Isolate, Rebuild, RecoveryPolicy, Sizes, Stop, describe_changes
from assayline.errors import EngineDiedError, EngineError, EngineInterruptedError, Kind
from assayline.records import NOT_SENT, Completion, EngineEvent, Json, Request


class Ledger:
    """An input that can be sent again. Iterate over it, and `settle` answered requests; None passes through."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._source = iter(requests)
        self._unanswered: dict[str, Request] = {}
        self._again: deque[Request] = deque()

    def __iter__(self) -> Iterator[Request | None]:
        return self

    def __next__(self) -> Request | None:
        if self._again:
            return self._again.popleft()
        request = next(self._source)
        if request is not None:
            self._unanswered[request.request_id] = request
        return request

    def settle(self, request_id: str) -> None:
        """Mark a request as answered, so that it is not sent again."""
        del self._unanswered[request_id]

    def unanswered(self) -> list[Request]:
        """Return the requests that were taken and are not settled, oldest first."""
        return list(self._unanswered.values())

    def in_flight(self) -> list[Request]:
        """Return the unanswered requests that went to the engine since the last `send_again`."""
        waiting = {request.request_id for request in self._again}
        return [request for request in self._unanswered.values() if request.request_id not in waiting]

    def send_again(self) -> None:
        """Yield the unanswered requests again, before new ones."""
        self._again = deque(self._unanswered.values())


KILLED_ENGINE = "killed_engine"
"""error_kind of a request that kills an engine without other requests."""

PHASES = {"start": "starting", "run": "generating"}
MOST_KILLERS = 8
"""Most requests in a row that each kill an engine alone, with no answer between: beyond it, the engine is at fault."""

PAUSE_POLL_S = 0.5


class AdaptiveEngine:
    """A policy around engines that `open_engine(sizes, changed arguments, generation)` opens; the first one at once.

    Raises EngineDiedError with the whole history if nothing is left to try. Other errors of opening pass (SpecError,
    DeviceError, EngineInterruptedError).
    """

    def __init__(
        self,
        open_engine: Callable[[Sizes, dict[str, Json], int], AnyEngine],
        policy: RecoveryPolicy,
        report: Callable[[EngineEvent], object],
        memory: DeviceMemory,
        *,
        clock: RunClock,
        worker: str = "worker-0",
        attempt: int = 1,
        first_generation: int = 0,
        memory_wait_s: float = 30.0,
        may_isolate: Callable[[int], bool] = lambda isolated: True,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._open_engine = open_engine
        self._policy = policy
        self._report = report
        self._memory = memory
        self._clock = clock
        self._worker = worker
        self._attempt = attempt
        self._memory_wait_s = memory_wait_s
        self._may_isolate = may_isolate
        self._should_stop = should_stop
        self._warm_up_request: Request | None = None
        self._warm_up_s = 0.0
        self._history: list[str] = []
        self._last: EngineDiedError | None = None
        self._isolated = self._killers_in_a_row = 0
        self._missing_bytes: int | None = None
        """Memory that other processes held when an engine started, and did not free in time."""
        self.generation = first_generation - 1
        self._current: AnyEngine | None = None
        self._open()

    @property
    def facts(self) -> EngineFacts:
        """Return what the open engine resolved."""
        return self._engine.facts

    def warm_up(self, request: Request) -> float:
        """Warm this engine up, and each later one with the same request. Returns the seconds it took."""
        self._warm_up_request = request
        try:
            self._warm()
        except EngineDiedError as error:
            self._replace(error, [])
        return self._warm_up_s

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answer every request once, in completion order; see `base.AnyEngine.generate`."""
        ledger = Ledger(requests)
        while True:
            try:
                yield from self._answer(ledger)
                return
            except EngineDiedError as error:
                suspects = ledger.in_flight()
                if self._replace(error, suspects):
                    yield from self._search(suspects, ledger)
            ledger.send_again()

    def close(self) -> None:
        """End the engine's processes and free their memory. Safe to call twice."""
        if self._current is not None:
            engine, self._current = self._current, None
            started = time.monotonic()
            engine.close()
            self._record("closed", time.monotonic() - started)

    def _record(
        self,
        event: str,
        duration_s: float | None = None,
        message: str | None = None,
        details: Mapping[str, Json] | None = None,
    ) -> None:
        now_s = self._clock.now_s()
        self._report(
            EngineEvent(self._worker, self._attempt, self.generation, event, now_s, duration_s, message, details or {})
        )

    @property
    def _engine(self) -> AnyEngine:
        if self._current is None:
            raise EngineError("The engine is closed. hint: open another one.")
        return self._current

    def _answer(self, ledger: Ledger) -> Iterator[Completion]:
        """Answer from one engine for as long as it lives."""
        for completion in self._engine.generate(ledger):
            ledger.settle(completion.request_id)
            yield completion
            if completion.error_kind == NOT_SENT:
                continue  # no engine had anything to do with it
            self._killers_in_a_row = 0
            self._policy.answered()

    def _search(self, suspects: list[Request], ledger: Ledger) -> Iterator[Completion]:
        """Find the request that kills engines: send only the suspects, then each half of a group that still kills.

        Killing requests are reported with the next answer, which proves that engines survive without them.
        """
        killers: list[Completion] = []
        has_found = False
        for completion in self._probe(suspects):
            if completion.error_kind == KILLED_ENGINE:
                killers.append(completion)
                has_found = True
                continue
            for settled in (*killers, completion):
                ledger.settle(settled.request_id)
                yield settled
            killers = []
        for killer in killers:
            ledger.settle(killer.request_id)
            yield killer
        if stop := self._policy.searched(has_found):
            raise self._give_up(stop.reason)

    def _probe(self, group: list[Request], is_repeat: bool = False) -> Iterator[Completion]:
        """Yield the answers of a group, and error rows of its killing requests. `is_repeat`: it has killed before."""
        ledger = Ledger(group)
        try:
            yield from self._answer(ledger)
            return
        except EngineDiedError as error:
            cause = self._end_dead(error, ledger.in_flight())
        left = ledger.unanswered()
        if len(left) == 1:
            is_guilty = self._follow(cause, left) if cause.is_memory else is_repeat
            if is_guilty:
                yield self._isolate(left[0], cause)
            self._open()
            if not is_guilty:
                yield from self._probe(left, is_repeat=True)
            return
        self._open()
        half = (len(left) + 1) // 2
        for part in (left[:half], left[half:]):
            if part:
                yield from self._probe(part)

    def _isolate(self, request: Request, cause: Cause) -> Completion:
        self._isolated += 1
        self._killers_in_a_row += 1
        words = f"Request {request.request_id} kills an engine that has no other requests"
        self._record("isolated", message=words, details=IsolatedDetails(request_id=request.request_id))
        if not self._may_isolate(self._isolated):
            raise self._give_up(f"{self._isolated} requests killed it, more than max_error_share allows")
        if self._killers_in_a_row > MOST_KILLERS:
            raise self._give_up(f"{self._killers_in_a_row} requests in a row killed it, each by itself")
        window_requests = self._policy.sizes.window_requests
        if changes := self._policy.isolated(request.request_id):
            undone = f"That request caused the reductions: back to {describe_changes(changes)}"
            self._record("restored", message=undone, details=changes)
        return Completion(
            request_id=request.request_id,
            worker=self._worker,
            engine_generation=self.generation,
            window_requests=window_requests,
            prompt_tokens=len(request.prompt_token_ids) or None,
            error_kind=KILLED_ENGINE,
            error_message=f"{words}: {cause.summary}",
        )

    def _replace(self, error: EngineDiedError, in_flight: list[Request]) -> bool:
        """End the dead engine and open the next. True if only a search among `in_flight` can help."""
        cause = self._end_dead(error, in_flight)
        searching = self._follow(cause, in_flight)
        self._open()
        return searching

    def _open(self) -> None:
        """Open and warm up an engine; repeat with smaller sizes until one starts."""
        while self._current is None:
            self._check_stop()
            self._lift_utilization()
            self.generation += 1
            try:
                self._current = self._open_engine(self._policy.sizes, self._policy.changed_arguments, self.generation)
                facts = self._current.facts
                self._policy.opened(facts.details, facts.window_requests)
                details: OpenedDetails = {**facts.details, "window_requests": facts.window_requests}
                self._record("opened", facts.load_s, details=details)
                self._warm()
            except EngineDiedError as error:
                self._policy.resolved(error.death.resolved)
                self._follow(self._end_dead(error, []), [])

    def _lift_utilization(self) -> None:
        """Ask for as much memory as at first, if other processes have freed it."""
        if self._missing_bytes and self._memory.is_free(self._missing_bytes):
            self._missing_bytes = None
            if changes := self._policy.lift_utilization():
                words = f"The memory that other processes held is free: {describe_changes(changes)}"
                self._record("restored", message=words, details=changes)

    def _warm(self) -> None:
        if self._warm_up_request is not None:
            self._warm_up_s = self._engine.warm_up(self._warm_up_request)
            tokens = len(self._warm_up_request.prompt_token_ids) or None
            self._record("warmed_up", self._warm_up_s, details=WarmedUpDetails(prompt_tokens=tokens))

    def _end_dead(self, error: EngineDiedError, in_flight: list[Request]) -> Cause:
        """Record the death, end the engine's remaining processes, and wait for their memory."""
        self._last = error
        cause = classify(error.death)
        holders = self._memory.describe_holders() if cause.is_memory else ""
        self._record(
            "failed",
            message=f"{error} {holders}".strip(),
            details=FailedDetails(
                kind=str(cause.kind),
                is_memory=cause.is_memory,
                phase=cause.phase,
                summary=cause.summary,
                exit_code=error.death.exit_code,
                in_flight_requests=len(in_flight),
                window_requests=self._policy.sizes.window_requests,
            ),
        )
        window = f", {len(in_flight)} in flight" if cause.phase == "run" else ""
        self._history.append(
            f"engine {self.generation} died while {PHASES[cause.phase]} ({cause.kind}{window}): {cause.summary}"
        )
        if self._current is not None:
            engine, self._current = self._current, None
            engine.close()
        wanted = cause.wanted_bytes
        if cause.kind is not Kind.MEMORY_TAKEN or wanted is None:
            self._memory.wait_until_back(self._memory_wait_s, self._should_stop)
        elif self._memory.wait_until_free(wanted, self._memory_wait_s, self._should_stop):
            cause = replace(cause, has_passed=True)
        else:
            self._missing_bytes = max(wanted, self._missing_bytes or 0)
        return cause

    def _follow(self, cause: Cause, in_flight: list[Request]) -> bool:
        """Change the sizes for the next engine as the policy decides. True if only a search in `in_flight` can help."""
        longest = max((len(request.prompt_token_ids) for request in in_flight), default=0)
        ids = [request.request_id for request in in_flight]
        # In the requests, not the spec: rows, the likelihood of options and a harness's tasks ask for them, too.
        prompt_logprobs = any(request.sampling.get("prompt_logprobs") is not None for request in in_flight)
        match self._policy.react(cause, ids, longest, prompt_logprobs=prompt_logprobs):
            case Stop(reason):
                raise self._give_up(reason)
            case Isolate():
                return True
            case Rebuild(changes, pause_s):
                if changes:
                    words = f"The next engine gets {describe_changes(changes)} ({cause.kind})"
                    self._history.append(words)
                    self._record("reduced", message=words, details=changes)
                self._pause(pause_s)
        return False

    def _pause(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while (left_s := until - time.monotonic()) > 0:
            self._check_stop()
            time.sleep(min(PAUSE_POLL_S, left_s))

    def _check_stop(self) -> None:
        if self._should_stop():
            raise EngineInterruptedError("The engine was stopped on request before it started.")

    def _give_up(self, reason: str) -> EngineError:
        """Return an error with the history and the last engine's error."""
        if self._last is None:
            return EngineError(reason)
        earlier = "".join(f"\n    {line}" for line in self._history[:-1])
        history = f"\nBefore that:{earlier}" * bool(earlier)
        return EngineDiedError(f"{self._last}\nThe engine cannot recover: {reason}.{history}", self._last.death)
