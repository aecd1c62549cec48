"""HostedEngine: an engine in a process of its own, as the worker holds it.

It opens the engine host, talks with it, explains its death and ends it. How requests are fed is what its two kinds
differ in: `offline.py` fills a window, `streaming.py` follows an arrival pattern.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from assayline.answer_spec import ReasoningSpec
from assayline.clock import RunClock
from assayline.engines.base import EngineFacts, EngineHooks
from assayline.engines.deaths import STALL
from assayline.engines.hosting import HostProcess
from assayline.engines.parking import Parked, find_lot, own_variables
from assayline.engines.wire import AbortAll, Aborted, Beat, Failed, Finished, Open, Opened, Rejoin, Warm, WarmUp
from assayline.errors import (
    AssaylineError,
    DeviceError,
    EngineDiedError,
    EngineError,
    EngineInterruptedError,
    ServerError,
    SpecError,
)
from assayline.records import Completion, Json, Request, TelemetrySample
from assayline.server_spec import ServerSpec

Answer = TypeVar("Answer")

WINDOW_PER_SEQUENCE = 1.25
"""Default window over max_num_seqs. At 1.0 a slot stays empty for a step while it is refilled; at 1.25 none does."""
WINDOW_WITHOUT_FACTS = 64
"""Default window of a server, which does not say how many requests it runs at once."""
SILENCE_LIMIT_S = 120.0
"""A host that sends no beat for so long is taken for dead."""
REJOIN_TIMEOUT_S = 60.0
"""A parked engine that does not answer within this is not well, and another one is opened."""


@dataclass(frozen=True, slots=True)
class HostedConfig:
    """What every engine in a host needs to know. `env` is the whole environment of its process."""

    model: str
    model_id: str
    clock: RunClock
    log_path: Path
    run_id: str = ""
    """The run that it is for, so that a later one can say where its engine is from."""
    worker: str = "worker-0"
    engine_generation: int = 0
    device: str = "auto"
    window: int | None = None
    record_token_times: bool = False
    reasoning: ReasoningSpec | None = None
    chat_kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Variables of the chat template, where a server renders."""
    args: Mapping[str, Json] = field(default_factory=dict)
    sampling: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 900.0
    close_timeout_s: float = 20.0
    stall_timeout_s: float = 600.0
    """An engine that has requests and makes no step for so long is taken for dead."""


class HostedEngine:
    """The part that all engines in a host share. Opens in the constructor; use `close` or `contextlib.closing`."""

    def __init__(
        self, config: HostedConfig, hooks: EngineHooks, *, backend: str = "offline", server: ServerSpec | None = None
    ) -> None:
        self._base = config
        self._hooks = hooks
        self._in_flight = 0  # handed to the host and not answered
        self._closed = False
        self._lost = False
        self._progress: tuple[int | None, int] = (0, 0)
        self._stepped_s = time.monotonic()
        self._heard_s = time.monotonic()
        started = time.monotonic()
        self._order = Open(
            config.model,
            dict(config.args),
            dict(config.sampling),
            config.device,
            config.clock,
            config.worker,
            config.engine_generation,
            config.record_token_times,
            config.reasoning,
            backend,
            server,
            dict(config.chat_kwargs),
        )
        self._own_variables = own_variables(config.env)
        opened = self._take_over() or self._start()
        self._window_requests = self._first_window(opened)
        self._facts = EngineFacts(
            self._window_requests, opened.max_model_len, time.monotonic() - started, opened.details
        )

    @property
    def model_id(self) -> str:
        """Content identity of the model that answers."""
        return self._base.model_id

    @property
    def facts(self) -> EngineFacts:
        """What the engine resolved at start-up."""
        return self._facts

    @property
    def host_pid(self) -> int:
        """Process id of the engine host."""
        return self._host.pid

    def set_window(self, window_requests: int) -> None:
        """Requests in flight from now on; in mode barrier, the size of the next batch."""
        self._window_requests = window_requests

    def warm_up(self, request: Request) -> float:
        """Generates once outside every metric. Returns seconds; raises SpecError if the engine refuses the request."""
        started = time.monotonic()
        self._host.send(WarmUp(request))
        answer = self._expect(Warm, self._base.start_timeout_s)
        if answer.error is not None:
            raise SpecError(answer.error)
        return time.monotonic() - started

    def close(self) -> None:
        """Ends the engine's processes and returns their memory, or parks it where that is done. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        is_well = self._host.exit_code is None and not self._lost and not self._in_flight
        if (lot := find_lot()) and is_well and self.may_park:
            kept_from = str(self._facts.details.get("kept_from") or self._base.run_id)
            lot.park(Parked(self._host, self._order, self._own_variables, kept_from, self._base.close_timeout_s))
        elif self._lost:
            self._host.kill()
        else:
            self._host.end(self._base.close_timeout_s)

    @property
    def may_park(self) -> bool:
        """Whether another run can go on with this engine as if it were new."""
        return False

    def _start(self) -> Opened:
        """A process with a new engine in it."""
        self._host = HostProcess(self._base.env, self._base.log_path, self._hooks.on_log)
        try:
            self._host.send(self._order)
            return self._expect(Opened, self._base.start_timeout_s)
        except BaseException:
            self._host.kill()
            raise

    def _take_over(self) -> Opened | None:
        """The engine of a run before, if one is parked that was ordered alike and still answers."""
        lot = find_lot()
        parked = lot.take(self._order, self._own_variables) if lot else None
        if parked is None:
            return None
        self._host = parked.host
        try:
            self._host.listen(self._hooks.on_log)
            self._host.send(Rejoin(self._order))
            opened = self._expect(Opened, REJOIN_TIMEOUT_S)
        except EngineDiedError:
            self._host.kill()
            return None
        except BaseException:
            self._host.kill()
            raise
        self._base.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._base.log_path.write_text(f"Kept from run {parked.run_id}: the log goes on in {self._host.log_path}\n")
        return replace(opened, details={**opened.details, "kept_from": parked.run_id})

    def _first_window(self, opened: Opened) -> int | None:
        """Most requests in flight, as long as nobody says otherwise; None where there is no such limit."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _generating(self) -> Iterator[None]:
        """Around everything that `generate` does: however that ends, the engine is usable afterwards, or lost."""
        self._host.phase = "run"
        self._stepped_s = time.monotonic()
        try:
            yield
        except EngineError as error:
            self._lost = not isinstance(error, EngineInterruptedError)
            raise
        finally:
            if self._in_flight and not self._closed and not self._lost:
                self._abort()

    def _check_stop(self) -> None:
        if self._hooks.should_stop():
            raise EngineInterruptedError("Generation was stopped on request; what had finished is stored.")

    def _receive_finished(self, timeout_s: float) -> list[Completion]:
        """What the next message finished, if one comes in time."""
        match self._receive(timeout_s):
            case None:
                return []
            case Finished(completions):
                self._stepped_s = time.monotonic()
                self._in_flight -= len(completions)
                return completions
            case Beat(sample):
                self._hooks.on_sample(sample)
                self._check_progress(sample)
                self._observe(sample)
                return []
            case Failed() as failed:
                raise self._explain(failed)
            case unexpected:
                raise EngineError(
                    f"The engine's process sent {type(unexpected).__name__}, which was not expected here."
                )

    def _observe(self, sample: TelemetrySample) -> None:
        """Looks at the engine's counters, about once a second."""

    def _receive(self, timeout_s: float) -> Any | None:
        """The next message, or None; raises when the host has been silent for too long."""
        message = self._host.receive(timeout_s)
        if message is not None:
            self._heard_s = time.monotonic()
        elif time.monotonic() - self._heard_s > SILENCE_LIMIT_S:
            raise self._stalled(f"The engine's process has been silent for {SILENCE_LIMIT_S:.0f} s.")
        return message

    def _expect(self, kind: type[Answer], timeout_s: float, heed_stop: bool = True) -> Answer:
        """Waits for one kind of message, passing over completions and beats that were under way before it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            message = self._host.receive()
            self._heard_s = time.monotonic()  # a host that loads a model sends no beats: the deadline alone counts
            if isinstance(message, kind):
                return message
            if isinstance(message, Failed):
                raise self._explain(message)
            if heed_stop and self._hooks.should_stop():
                raise EngineInterruptedError("The engine was stopped on request while it was busy.")
        raise self._stalled(f"The engine did not answer within {timeout_s:.0f} s.")

    def _explain(self, failed: Failed) -> AssaylineError:
        for known in (SpecError, DeviceError, ServerError):
            if failed.kind == known.__name__:
                return known(failed.message)
        self._lost = True
        words = f"The engine failed: {failed.kind}: {failed.message}\n    Its whole log: {self._host.log_path}"
        return EngineDiedError(words, self._host.evidence(failed.kind, failed.message))

    def _check_progress(self, sample: TelemetrySample) -> None:
        """Raises EngineDiedError for an engine that beats, has requests, and makes no step."""
        progress = (sample.engine_steps, sample.output_tokens)
        if progress != self._progress or not self._in_flight:
            self._progress, self._stepped_s = progress, time.monotonic()
        elif time.monotonic() - self._stepped_s > self._base.stall_timeout_s:
            raise self._stalled(
                f"The engine has made no step for {self._base.stall_timeout_s:.0f} s, with {self._in_flight} "
                "requests in flight."
            )

    def _stalled(self, what: str) -> EngineDiedError:
        self._lost = True
        return EngineDiedError(f"{what} {self._host.describe_death()}", self._host.evidence(STALL, what))

    def _abort(self) -> None:
        self._host.send(AbortAll())
        self._expect(Aborted, self._base.close_timeout_s, heed_stop=False)
        self._in_flight = 0


def default_window(opened: Opened) -> int:
    """Requests in flight that keep an engine busy, where nobody gives a number."""
    if opened.max_num_seqs is None:
        return WINDOW_WITHOUT_FACTS
    return math.ceil(WINDOW_PER_SEQUENCE * opened.max_num_seqs)
