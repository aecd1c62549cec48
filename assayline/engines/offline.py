"""OfflineEngine: `vllm.LLM` in an engine host, fed continuously.

Mode `continuous` keeps `window` requests in flight and sends the next one as soon as one finishes; mode `barrier` sends
`batch_size`, waits for the slowest, and sends the next batch, as classic micro-batching does. Everything else is the
same, so the two can be compared.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from assayline.answer_spec import ReasoningSpec
from assayline.clock import RunClock
from assayline.engines.base import EngineFacts, EngineHooks
from assayline.engines.deaths import STALL
from assayline.engines.hosting import POLL_INTERVAL_S, HostProcess
from assayline.engines.wire import (
    AbortAll,
    Aborted,
    Beat,
    Close,
    Failed,
    Finished,
    Generate,
    Open,
    Opened,
    Warm,
    WarmUp,
)
from assayline.errors import (
    AssaylineError,
    DeviceError,
    EngineDiedError,
    EngineError,
    EngineInterruptedError,
    SpecError,
)
from assayline.records import Completion, Json, Request, TelemetrySample

Answer = TypeVar("Answer")

WINDOW_PER_SEQUENCE = 1.25
"""Default window over max_num_seqs. At 1.0 a slot stays empty for a step while it is refilled; at 1.25 none does."""
IDLE_POLL_INTERVAL_S = 0.02
SILENCE_LIMIT_S = 120.0
"""A host that sends no beat for so long is taken for dead."""


@dataclass(frozen=True, slots=True)
class OfflineConfig:
    """What an OfflineEngine needs to know. `env` is laid over this process's environment."""

    model: str
    model_id: str
    clock: RunClock
    log_path: Path
    worker: str = "worker-0"
    engine_generation: int = 0
    device: str = "auto"
    mode: str = "continuous"
    window: int | None = None
    batch_size: int = 32
    record_token_times: bool = False
    reasoning: ReasoningSpec | None = None
    args: Mapping[str, Json] = field(default_factory=dict)
    sampling: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 900.0
    close_timeout_s: float = 20.0
    stall_timeout_s: float = 600.0
    """An engine that has requests and makes no step for so long is taken for dead."""


class OfflineEngine:
    """An engine on `vllm.LLM`. Opens in the constructor; use `close` or a `with contextlib.closing(...)`."""

    def __init__(self, config: OfflineConfig, hooks: EngineHooks = EngineHooks()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._hooks = hooks
        self._in_flight = 0
        self._closed = False
        self._lost = False
        self._progress: tuple[int | None, int] = (0, 0)
        self._stepped_s = time.monotonic()
        self._heard_s = time.monotonic()
        started = time.monotonic()
        self._host = HostProcess(config.env, config.log_path, hooks.on_log)
        try:
            self._host.send(
                Open(
                    config.model,
                    dict(config.args),
                    dict(config.sampling),
                    config.device,
                    config.clock,
                    config.worker,
                    config.engine_generation,
                    config.record_token_times,
                    config.reasoning,
                )
            )
            opened = self._expect(Opened, config.start_timeout_s)
        except BaseException:
            self._host.kill()
            raise
        self._window_requests = self._first_window(opened.max_num_seqs)
        self._facts = EngineFacts(
            self._window_requests, opened.max_model_len, time.monotonic() - started, opened.details
        )

    @property
    def model_id(self) -> str:
        """Content identity of the model that answers."""
        return self._config.model_id

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
        """Generates once outside every metric. Returns seconds; raises SpecError if vLLM refuses the request."""
        started = time.monotonic()
        self._host.send(WarmUp(request))
        answer = self._expect(Warm, self._config.start_timeout_s)
        if answer.error is not None:
            raise SpecError(answer.error)
        return time.monotonic() - started

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answers every request once, in completion order; see `base.Engine.generate`."""
        feed = _Feed(requests)
        self._host.phase = "run"
        self._stepped_s = time.monotonic()
        try:
            while True:
                self._send_more(feed)
                if feed.exhausted and not self._in_flight:
                    return
                for completion in self._receive_finished():
                    self._in_flight -= 1
                    yield completion
                if self._hooks.should_stop():
                    raise EngineInterruptedError("Generation was stopped on request; what had finished is stored.")
        except EngineError as error:
            self._lost = not isinstance(error, EngineInterruptedError)
            raise
        finally:
            if self._in_flight and not self._closed and not self._lost:
                self._abort()

    def close(self) -> None:
        """Ends the engine's processes and returns their memory. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._host.exit_code is None and not self._lost:
                self._host.send(Close())
                self._drain_until_exit()
        except EngineError:
            pass  # it died while closing: there is nothing left to ask
        finally:
            self._host.kill()

    def _first_window(self, max_num_seqs: int) -> int:
        if self._config.mode == "barrier":
            return self._config.batch_size
        return self._config.window or math.ceil(WINDOW_PER_SEQUENCE * max_num_seqs)

    def _send_more(self, feed: "_Feed") -> None:
        window = self._window_requests
        if self._config.mode == "barrier" and self._in_flight:
            return
        while self._in_flight < window and (request := feed.next()) is not None:
            self._in_flight += 1
            try:
                self._host.send(Generate(request, self._config.clock.now_s(), window))
            except EngineError:
                return  # it died: what it sent before is read first, and after that reading says so

    def _receive_finished(self) -> list[Completion]:
        # Idle, the next request may turn up at any moment: look at the input again soon.
        match self._receive(POLL_INTERVAL_S if self._in_flight else IDLE_POLL_INTERVAL_S):
            case None:
                return []
            case Finished(completions):
                self._stepped_s = time.monotonic()
                return completions
            case Beat(sample):
                self._hooks.on_sample(sample)
                self._check_progress(sample)
                return []
            case Failed() as failed:
                raise self._explain(failed)
            case unexpected:
                raise EngineError(
                    f"The engine's process sent {type(unexpected).__name__}, which was not expected here."
                )

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
        known: dict[str, type[AssaylineError]] = {"SpecError": SpecError, "DeviceError": DeviceError}
        if failed.kind in known:
            return known[failed.kind](failed.message)
        words = f"The engine failed: {failed.kind}: {failed.message}\n    Its whole log: {self._host.log_path}"
        return EngineDiedError(words, self._host.evidence(failed.kind, failed.message))

    def _check_progress(self, sample: TelemetrySample) -> None:
        """Raises EngineDiedError for an engine that beats, has requests, and makes no step."""
        progress = (sample.engine_steps, sample.output_tokens)
        if progress != self._progress or not self._in_flight:
            self._progress, self._stepped_s = progress, time.monotonic()
        elif time.monotonic() - self._stepped_s > self._config.stall_timeout_s:
            raise self._stalled(
                f"The engine has made no step for {self._config.stall_timeout_s:.0f} s, with {self._in_flight} "
                "requests in flight."
            )

    def _stalled(self, what: str) -> EngineDiedError:
        return EngineDiedError(f"{what} {self._host.describe_death()}", self._host.evidence(STALL, what))

    def _drain_until_exit(self) -> None:
        deadline = time.monotonic() + self._config.close_timeout_s
        while self._host.exit_code is None and time.monotonic() < deadline:
            self._host.receive(0.05)

    def _abort(self) -> None:
        self._host.send(AbortAll())
        self._expect(Aborted, self._config.close_timeout_s, heed_stop=False)
        self._in_flight = 0


class _Feed:
    """The input, one request at a time: None means nothing to send now; `exhausted` says whether that is final."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self.exhausted = False

    def next(self) -> Request | None:
        """The next request, if there is one at this moment."""
        try:
            return next(self._requests)
        except StopIteration:
            self.exhausted = True
            return None
