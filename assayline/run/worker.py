"""Worker: one device and one engine with recovery, behind one method, `exchange`.

The engine works in a thread of the worker. `drive.py` hands the worker requests and gets the news since the last
exchange: rows, engine events, samples and log lines. A worker writes no files of the run except its engines' logs, and
has no access to the queue. On one machine it is an object in the flow's process; on a Ray cluster it is an actor.
"""

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from assayline.clock import RunClock
from assayline.digests import digest_package
from assayline.engines import open_engine
from assayline.engines.base import STARTING, AnyEngine, EngineHooks, LoadEndedDetails, OpenedDetails, find_start_phase
from assayline.engines.devices import claims
from assayline.engines.devices.claims import Device, list_devices
from assayline.engines.devices.watch import DeviceMemory, DeviceSampler
from assayline.engines.messages import Open
from assayline.engines.pool import EnginePool
from assayline.engines.process import HostSetup
from assayline.engines.recovery.engine import AdaptiveEngine
from assayline.engines.recovery.policy import RecoveryPolicy, Sizes, choose_window, sizes_of
from assayline.errors import AssaylineError, EngineDiedError, EngineInterruptedError
from assayline.load.progress import LoadEnd, LoadProgress
from assayline.model import ModelIdentity
from assayline.records import Completion, DeviceSample, EngineEvent, Json, Request, TelemetrySample
from assayline.requests.build import write_warm_up
from assayline.requests.model_config import choose_media_args, may_have_media
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec
from assayline.spec.load import Concurrency

NO_DEVICE = Device("none", {}, ())


def order_engine(spec: EvalSpec, model: ModelIdentity, clock: RunClock, run_id: str = "", worker: str = "") -> Open:
    """Return the order for an engine of a spec, with the engine arguments that the model and the prompts require."""
    folder = model.folder
    local = not spec.engine.kind.has_model or Path(spec.model).expanduser().is_dir()
    revision = None if local or folder is None else folder.name
    pinned = {"revision": revision, "tokenizer_revision": revision} if revision else {}
    adapted = {**model.adapter.args, **spec.engine.args} if model.adapter else {}
    return Open(
        engine=spec.engine.with_args({**adapted, **choose_media_args(spec, folder), **pinned}),
        model=str(folder.absolute()) if local and folder else spec.model,
        model_id=model.model_id,
        adapter=str(model.adapter.folder) if model.adapter else None,
        sampling=spec.sampling_defaults,
        reasoning=spec.reasoning,
        prefill=spec.chat.prefill,
        chat_kwargs=spec.chat.kwargs,
        media=spec.prompts.media,
        has_media=may_have_media(spec, folder),
        clock=clock,
        run_id=run_id,
        worker=worker,
        senders=count_senders(spec, len(os.sched_getaffinity(0))),
    )


REQUESTS_PER_SENDER_S, TOKENS_PER_SENDER_S, IN_FLIGHT_PER_SENDER = 500, 30_000, 1_000
"""Load that one process bears with about half a core to spare (docs/design/performance.md)."""


def count_senders(spec: EvalSpec, cores: int) -> int:
    """Return the number of processes that send to a running server; 1 for any other engine."""
    if not spec.engine.is_remote:
        return 1
    load = spec.load
    in_flight = load.arrival.requests if load and isinstance(load.arrival, Concurrency) else spec.engine.max_concurrency
    rate_per_s = getattr(load.arrival, "rate_per_s", 0.0) if load else 0.0
    tokens_per_s = rate_per_s * (spec.sampling.get("max_tokens") or 0)
    shares = (rate_per_s / REQUESTS_PER_SENDER_S, tokens_per_s / TOKENS_PER_SENDER_S)
    return max(1, min(cores - 2, math.ceil(max(*shares, (in_flight or 0) / IN_FLIGHT_PER_SENDER))))


FIRST_WAIT_S = 0.05
"""Seconds between checks for a stop while the engine waits for its first request."""

LOW_REQUESTS = 8
"""With fewer requests waiting, a worker ends an exchange early to get more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOrder:
    """Instructions for a worker. Picklable; contains no prompts or answers."""

    open: Open
    """The order for its engine, with the names of run and worker."""
    settings: Settings
    holder: str
    """Its name for other processes that want its device."""
    attempt: int = 1
    """Number of the run's start, 1 for the first."""
    first_generation: int = 0
    """Number of this worker's first engine: one more than its last in earlier attempts."""
    load: LoadProgress = field(default_factory=LoadProgress)
    """The run's load, with the counts of requests that were settled before this worker started."""
    log_folder: Path
    workers_here: int = 1
    """Number of workers that share the machine's cores if it has no GPUs."""
    whole_machine: bool = True
    """Whether the machine must have a device for each of them, or only for this one."""
    package: str = field(default_factory=digest_package)
    """Digest of the flow's own assayline."""


def claim_device(
    order: WorkOrder,
    stack: contextlib.ExitStack,
    pool: EnginePool | None = None,
    on_wait: Callable[[str], object] = str,
) -> Device:
    """Claim a device for an engine, until `stack` is closed, or for as long as `pool` has room for it.

    For `on_wait` see `claims.claim_device`. Raises DeviceError or SpecError.
    """
    engine, settings, holder = order.open.engine, order.settings, order.holder
    if not engine.needs_device or engine.uses_ray_executor:
        return NO_DEVICE
    gpus = count_devices(engine.args)
    devices = list_devices(engine.device, order.workers_here, gpus, whole_machine=order.whole_machine)
    if pool is not None:
        holder = f"a benchmark, whose first run here was {holder}"
        return pool.claim(devices, settings.lock_dir, settings.device_wait_s, holder, on_wait)
    return stack.enter_context(claims.claim_device(devices, settings.lock_dir, settings.device_wait_s, holder, on_wait))


@dataclass(slots=True, kw_only=True)
class News:
    """Rows, records and log lines of a worker since the last exchange, and its state."""

    finished: list[Completion] = field(default_factory=list)
    records: list[EngineEvent | TelemetrySample | DeviceSample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """The worker's own log lines."""
    engine_lines: list[str] = field(default_factory=list)
    phase: str = ""
    """Phase of the engine's start, such as `loading weights`; empty when the engine is ready."""
    device: str = NO_DEVICE.name
    window: int | None = 0
    """Maximum requests in flight in its engine; None in an open loop, 0 before the engine is open."""
    waiting: int = 0
    """Requests that its engine has not taken."""
    has_ended: bool = False
    error: BaseException | None = None
    """Error that ended the worker; None if it answered every request or was stopped."""


class Exchanger(Protocol):
    """Interface of a worker for the flow, on this or another machine."""

    def exchange(self, requests: Sequence[Request], *, is_last: bool, wait_s: float, gather_s: float) -> News:
        """Hand over requests and return the news; `is_last`: no request will follow.

        Wait up to `wait_s` for the first row, then up to `gather_s` for more.
        """

    def stop(self) -> None:
        """Stop the engine as soon as possible; `News.has_ended` becomes true when it has stopped."""

    def close(self) -> None:
        """Stop the worker and wait until it has ended."""


class Worker:
    """A worker in this process. Its engine starts to open immediately, in a thread."""

    def __init__(
        self, order: WorkOrder, open_engine: Callable[..., AnyEngine] | None = None, pool: EnginePool | None = None
    ) -> None:
        """Begin. The engine is from `pool`, and goes there in the end, if this is the run's only worker."""
        clock = order.open.clock.on_this_machine()
        self._order = order = replace(order, open=replace(order.open, clock=clock))
        self._open_engine = open_engine
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._news = News()
        self._window: int | None = 0
        self._begin_phase(STARTING)
        self._is_urgent = self._is_last = False
        self._stopped = threading.Event()
        self._device = NO_DEVICE
        self._holders = ""
        """Holders of the devices that this worker waits for."""
        self._sampler = DeviceSampler((), order.open.worker, clock)
        self._generation = order.first_generation
        self._pool = pool if order.workers_here == 1 else None
        self._thread = threading.Thread(target=self._run, name=order.open.worker, daemon=True)
        self._thread.start()

    def exchange(
        self, requests: Sequence[Request], *, is_last: bool = False, wait_s: float = 0.1, gather_s: float = 0.0
    ) -> News:
        with self._changed:
            self._waiting.extend(requests)
            self._is_last = self._is_last or is_last
            if self._changed.wait_for(self._has_news, wait_s):
                self._changed.wait_for(self._is_due, gather_s)
            news, self._news = self._news, News()
            self._is_urgent = False
            news.device, news.window, news.phase = self._device.name, self._window, self._phase
            news.waiting = len(self._waiting)
            self._sampler.hand_over(news.records.append, news.notes.append)
            if news.has_ended:
                self._news.has_ended, self._news.error = True, news.error
            return news

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.stop()
        self._thread.join()

    def _has_news(self) -> bool:
        return bool(self._news.finished) or self._is_due()

    def _is_due(self) -> bool:
        """Return True if the news must not wait for more rows."""
        is_short = not self._is_last and len(self._waiting) < LOW_REQUESTS
        return self._is_urgent or self._news.has_ended or (is_short and bool(self._news.finished))

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with contextlib.ExitStack() as stack:
                self._work(stack)
        except EngineInterruptedError as stop:
            self._note(str(stop))
        except BaseException as caught:  # the driver decides how to handle it
            error = caught
        with self._changed:
            self._window = 0
            self._news.has_ended, self._news.error = True, error
            self._changed.notify_all()

    def _work(self, stack: contextlib.ExitStack) -> None:
        """Claim a device, open an engine and answer; record an error. `stack` undoes this in reverse order."""
        # If the device is taken, no engine has failed.
        begun_s = time.monotonic()
        self._device = claim_device(self._order, stack, self._pool, self._wait_for_device)
        if self._holders:
            self._note(f"Waited {time.monotonic() - begun_s:.0f} s for {self._device.name}")
        try:
            engine = self._open(stack)
            stack.callback(engine.close)
            self._answer(engine)
        except (EngineDiedError, EngineInterruptedError):
            raise  # already recorded, or not a failure
        except AssaylineError as error:
            self._record(self._make_event("failed", str(error)))
            raise

    def _open(self, stack: contextlib.ExitStack) -> AdaptiveEngine:
        order = self._order.open
        self._begin_phase(STARTING)
        for orphan in self._device.orphans:
            self._note(f"Ended {orphan}, left by a killed run on {self._device.name}")
        self._sampler = stack.enter_context(DeviceSampler(self._device.gpus, order.worker, order.clock))
        self._note(f"Opening an engine for {order.model} on {self._device.name}")
        hooks = EngineHooks(
            on_sample=self._keep_record,
            on_log=self._keep_line,
            should_stop=self._stopped.is_set,
            on_note=self._note,
            on_load_ended=self._note_end,
        )
        return open_adaptive_engine(
            self._order, self._device, hooks, self._record, pool=self._pool, open_engine_by=self._open_engine
        )

    def _wait_for_device(self, holders: str) -> None:
        """Log the devices' holders whenever they change. Raises EngineInterruptedError if the worker is stopped."""
        if self._stopped.is_set():
            raise EngineInterruptedError("The worker was stopped on request before a device was free.")
        self._phase = "waiting for a device"
        if holders != self._holders:
            self._holders = holders
            wait_s = self._order.settings.device_wait_s
            self._note(f"Every device is taken: {holders}. Waiting up to {wait_s:g} s (ASSAYLINE_DEVICE_WAIT_S)")

    def _answer(self, engine: AdaptiveEngine) -> None:
        if self._order.open.engine.warmup and (first := self._wait_for_first()):
            self._warm_up(engine, first)
        for completion in engine.generate(self._pull()):
            with self._changed:
                self._news.finished.append(completion)
                if completion.window_requests is not None:
                    self._window = completion.window_requests
                if len(self._news.finished) == 1 or self._is_due():
                    self._changed.notify_all()

    def _pull(self) -> Iterator[Request | None]:
        """Yield the waiting requests to the engine; None if there is none now."""
        while True:
            with self._changed:
                request = self._waiting.popleft() if self._waiting else None
                if request is None and self._is_last:
                    return
                if self._is_due():
                    self._changed.notify_all()
            yield request

    def _wait_for_first(self) -> list[Request]:
        """Wait for the first exchange with requests and return them; an empty list if none will follow."""
        with self._changed:
            while not self._waiting and not self._is_last:
                if self._stopped.is_set():
                    raise EngineInterruptedError("The engine was stopped on request before its first request.")
                self._changed.wait(FIRST_WAIT_S)
            return list(self._waiting)

    def _warm_up(self, engine: AdaptiveEngine, first: list[Request]) -> None:
        order = self._order.open
        request, shared_tokens = write_warm_up(first, order.sampling, order.worker, engine.facts.max_model_len)
        self._phase = "warming up"
        duration_s = engine.warm_up(request)
        self._phase = ""
        self._note(f"Warmed up in {duration_s:.2f} s; the prompts share {shared_tokens} leading tokens")

    def _note_end(self, end: LoadEnd) -> None:
        self._note(end.message)
        details = LoadEndedDetails(reason=end.reason, sent_requests=self._order.load.settled)
        self._record(self._make_event("load_ended", end.message, details))

    def _note(self, line: str) -> None:
        with self._changed:
            self._news.notes.append(line)

    def _keep_line(self, line: str) -> None:
        phase = find_start_phase(line) if self._phase else None
        with self._changed:
            self._news.engine_lines.append(line)
            if phase and phase != self._phase:
                self._end_phase(phase)
                self._news.notes.append(f"Engine start: {phase}, after {time.monotonic() - self._start_s:.0f} s")

    def _begin_phase(self, phase: str) -> None:
        """Set the first phase of an engine's start."""
        self._phase = phase
        self._phases_s: dict[str, float] = {}
        self._start_s = self._phase_s = time.monotonic()

    def _end_phase(self, following: str = "") -> None:
        """Add up the time of the phase that ends."""
        now_s = time.monotonic()
        self._phases_s[self._phase] = self._phases_s.get(self._phase, 0.0) + now_s - self._phase_s
        self._phase, self._phase_s = following, now_s

    def _keep_record(self, record: EngineEvent | TelemetrySample | DeviceSample) -> None:
        with self._changed:
            self._news.records.append(record)

    def _make_event(
        self, event: str, message: str | None = None, details: Mapping[str, Json] | None = None
    ) -> EngineEvent:
        order, attempt = self._order.open, self._order.attempt
        now_s = order.clock.now_s()
        return EngineEvent(order.worker, attempt, self._generation, event, now_s, None, message, details or {})

    def _record(self, row: EngineEvent) -> None:
        """Record an engine event and end the exchange early."""
        self._generation = row.engine_generation
        with self._changed:
            if row.event == "opened":
                claimed = OpenedDetails(claimed_device=self._device.name, claimed_gpus=len(self._device.gpus))
                row = replace(row, details={**row.details, **claimed})
                self._window = row.details["window_requests"]
                self._end_phase()
                spent = ", ".join(f"{phase} {spent_s:.0f} s" for phase, spent_s in self._phases_s.items())
                self._news.notes.append(f"The engine is ready after {row.duration_s or 0:.0f} s: {spent}")
            elif row.event == "failed":
                self._begin_phase("restarting the engine")
            self._news.records.append(row)
            self._is_urgent = True
            self._changed.notify_all()


def open_adaptive_engine(
    order: WorkOrder,
    device: Device,
    hooks: EngineHooks,
    report: Callable[[EngineEvent], object],
    *,
    pool: EnginePool | None = None,
    open_engine_by: Callable[..., AnyEngine] | None = None,
    may_isolate: Callable[[int], bool] = lambda isolated: True,
) -> AdaptiveEngine:
    """Open an engine that is replaced after a crash; see AdaptiveEngine.

    `open_engine_by` replaces `assayline.engines.open_engine`.
    """
    engine = order.open.engine

    def open_one(sizes: Sizes, changed_args: dict[str, Json], generation: int) -> AnyEngine:
        log_path = order.log_folder / f"{order.open.worker}-generation-{generation}.log"
        return (open_engine_by or open_engine)(
            replace(order.open, engine=engine.with_args(changed_args), engine_generation=generation),
            sizes.window_requests,
            HostSetup.of(order.settings, engine, device.env, log_path),
            hooks,
            load=order.load,
            pool=pool,
        )

    sizes = sizes_of(engine.args, choose_window(engine, order.load))
    policy = RecoveryPolicy(sizes, engine.min_concurrency, has_window=not order.load.is_open_loop)
    return AdaptiveEngine(
        open_one,
        policy,
        report,
        pool.memory if pool is not None else DeviceMemory(device.gpus),
        clock=order.open.clock,
        worker=order.open.worker,
        attempt=order.attempt,
        first_generation=order.first_generation,
        memory_wait_s=order.settings.engine_memory_wait_s,
        may_isolate=may_isolate,
        should_stop=hooks.should_stop,
    )
