"""A worker: one device, an engine that recovers, all the shards it can claim.

It opens its engine, warms it up on the prefix that the prompts share, feeds it from one shard after another without a
pause between them, and writes what finishes as parts. It knows nothing of Prefect: a task calls `run_worker` in a
thread or on another machine of a Ray cluster, and `assayline worker` calls it in a process that anything may start.

It claims under a lease. One that was silent for too long has lost it: it drops what it had not stored, which others
answer meanwhile, and continues under a new one with the same engine.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from assayline.engines.base import Engine, EngineHooks
from assayline.engines.devices.telemetry import DeviceSampler
from assayline.engines.event_details import IsolatedDetails, LoadEndedDetails, OpenedDetails
from assayline.engines.messages import unsent
from assayline.engines.parking import find_lot
from assayline.engines.recovery.engine import AdaptiveEngine
from assayline.errors import (
    AssaylineError,
    EngineDiedError,
    EngineError,
    EngineInterruptedError,
    LeaseLostError,
    StoreError,
)
from assayline.evaluation.conversations import Conversations, count_first
from assayline.evaluation.opening import NO_DEVICE, Opening, claim_device, find_model
from assayline.evaluation.orders import WorkOrder, check_same_folder, name_anew, write_engine_order
from assayline.evaluation.prepare import open_renderer
from assayline.evaluation.repeats import Repeats
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.shards.suspects import note_convicted, write_verdict
from assayline.evaluation.shards.throttle import throttle
from assayline.load.course import LoadCourse, LoadEnd
from assayline.places.documents import share_file
from assayline.records import Completion, EngineEvent, Json, Request, TelemetrySample
from assayline.requests.warm_up import take_first, write_warm_up
from assayline.runs.leases import Lease, Watch
from assayline.runs.locks import check_attempt, hold_worker_lock
from assayline.store.parts import PartWriter, count_table

URGENT_EVENTS = frozenset({"failed", "reduced", "isolated", "restored", "load_ended"})
"""Written at once: the engine has nothing to do anyway, and the next thing to die may be the worker."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker did."""

    worker: str
    answered_requests: int
    device: str
    process_id: int


def run_worker(
    order: WorkOrder,
    log: Callable[[str], None],
    on_engine_log: Callable[[str], None],
    on_event: Callable[[EngineEvent], None] = lambda event: None,
) -> WorkerReport:
    """Answers requests until the queue is closed and empty, or stopped.

    `log` gets the worker's own lines, `on_engine_log` those that the engine prints, `on_event` what happens to engines.
    Raises DeviceError, SpecError or EngineError; what had finished until then is stored.
    """
    check_same_folder(order)
    order = name_anew(order)
    worker = Worker(order, log, on_engine_log, on_event)
    with contextlib.suppress(EngineInterruptedError), contextlib.ExitStack() as stack:
        worker.run(stack)
    return WorkerReport(order.worker, worker.answered, worker.device.name, os.getpid())


class Worker:
    """One worker's device, writer and queue. `run_worker` is the way to use it; `serve` alone is for an open engine."""

    def __init__(
        self,
        order: WorkOrder,
        log: Callable[[str], None],
        on_engine_log: Callable[[str], None],
        on_event: Callable[[EngineEvent], None] = lambda event: None,
    ) -> None:
        self.order = order
        self.log = log
        self.on_engine_log = on_engine_log
        self.on_event = on_event
        self.clock = order.clock.on_this_machine()
        self.lot = find_lot()
        self.lease = Lease(order.run_dir, order.worker, order.lease_s)
        watch = Watch(order.run_dir, order.lease_s)
        self.queue = ShardQueue(order.run_dir, self.lease, watch, self._convict)
        self.device = NO_DEVICE
        self.sampler = DeviceSampler((), order.worker, self.clock)
        self.answered = 0
        self.conversations = self._begin_conversations()
        self.is_warm = False
        self.generation = order.first_generation
        self.ordered = write_engine_order(order, self.clock)
        self.course = LoadCourse(
            order.spec.load, settled=order.sent_before, errors=order.errors_before, end_before=order.load_end_before
        )
        self.writer = PartWriter(
            order.run_dir,
            self.lease.owner,
            order.settings.flush_rows,
            order.settings.flush_interval_s,
            may_store_answers=lambda: self.lease.is_held(),  # noqa: PLW0108 - it is not always the same
            on_stored=self.queue.mark_stored,
        )

    def run(self, stack: contextlib.ExitStack) -> None:
        """Claims, opens, generates. `stack` undoes it in reverse order, however this ends."""
        stack.enter_context(hold_worker_lock(self.order.run_dir, self.order.attempt))
        self.lease.begin()
        stack.callback(lambda: self.lease.end())  # noqa: PLW0108
        self.device = claim_device(self.order, self.lot, stack)
        for orphan in self.device.orphans:
            self.log(f"Ended {orphan}, which a killed run had left on {self.device.name}")
        stack.enter_context(self.writer)
        stack.callback(self._keep_device_samples)
        self.sampler = stack.enter_context(DeviceSampler(self.device.gpus, self.order.worker, self.clock))
        try:
            stack.callback(self._share_logs)
            engine = self._open()
            stack.callback(engine.close)
            self.serve(engine)
        except EngineInterruptedError as stop:
            self.log(str(stop))
            raise
        except AssaylineError as error:
            if not isinstance(error, EngineDiedError):  # which is on record already
                self.record(self.generation, "failed", message=str(error))
            raise

    def serve(self, engine: Engine) -> None:
        """Warms the engine up and answers everything that the queue has."""
        while True:
            try:
                self._answer(engine)
                return
            except LeaseLostError as loss:
                self.log(str(loss))
                check_attempt(self.order.run_dir, self.order.attempt)
                self._begin_anew()

    def _answer(self, engine: Engine) -> None:
        """Answers until nothing is left, and stores it. Raises LeaseLostError."""
        conversations = self.conversations = self._begin_conversations()
        repeats = Repeats.of(self.order, engine.facts.window_requests)
        requests = conversations.feed(repeats.feed(self._pull()))
        most = count_first(self.order.spec, engine.facts.window_requests, holds_repeats=repeats.holds)
        first = take_first(requests, most, self.queue.is_stopped)
        if first and self.order.spec.engine.warm_up and not self.is_warm:
            self._warm_up(engine, first)
        for completion in engine.generate(itertools.chain(first, requests)):
            self._keep(completion)
            conversations.settle(completion)
            repeats.settle(completion)
            self._check_lease()
        self.writer.flush()
        self._check_lease()

    def _pull(self) -> Iterator[Request | None]:
        for request in self.queue.pull():
            if request is None:
                self.writer.flush_old()  # others wait for what this worker has answered
                self._check_lease()
            yield request

    def _begin_conversations(self) -> Conversations:
        spec = self.order.spec
        return Conversations(lambda: open_renderer(spec, find_model(self.order)), spec.chat.prefill, self._fail_turn)

    def _fail_turn(self, request: Request, error_kind: str, why: str, prompt_tokens: int | None) -> None:
        """Stores the error row of a turn that cannot be asked."""
        row = unsent(request.request_id, self.order.worker, self.generation, why)
        self._keep(replace(row, error_kind=error_kind, prompt_tokens=prompt_tokens))

    def _keep(self, completion: Completion) -> None:
        self.queue.settle(completion.request_id)
        self.writer.add(completion)
        self.answered += 1

    def _convict(self, request: Request, words: str) -> None:
        """Stores the error row of a request that kills workers, at once: the next to die may be this one."""
        words = f"Request {request.request_id} kills whoever asks it: {words}"
        self._keep(write_verdict(request, self.order.worker, self.generation, words))
        self.conversations.give_up(request, words)
        self.record(self.generation, "isolated", message=words, details=IsolatedDetails(request_id=request.request_id))
        convicted = note_convicted(self.order.run_dir, request.request_id)
        if not self._may_isolate(convicted):
            raise EngineError(
                f"{convicted} requests killed the workers that asked them, more than max_error_fraction allows. "
                f"The last one: {words}. What was answered is kept."
            )

    def _check_lease(self) -> None:
        if self.lease.is_lost:
            raise LeaseLostError(
                f"{self.order.worker} was silent for {self.order.lease_s:g} s, and others have taken over what it had "
                "not stored. It continues with what is left."
            )

    def _begin_anew(self) -> None:
        """Takes a new lease; what was under way under the old one is others' business."""
        self.lease.end()
        self.lease = Lease(self.order.run_dir, self.order.worker, self.order.lease_s)
        self.writer.begin_anew(self.lease.owner)
        self.queue.forget(self.lease)
        self.lease.begin()

    def _open(self) -> AdaptiveEngine:
        order, spec = self.order, self.order.spec
        self.log(f"Opening an engine for {order.model} on {self.device.name}")
        hooks = EngineHooks(
            on_sample=self._keep_sample,
            on_log=self.on_engine_log,
            should_stop=throttle(self.queue.is_stopped, askers=1 if spec.workers == "auto" else spec.workers),
            on_note=self.log,
            on_load_ended=self._note_end,
        )
        logs = order.run_dir / "logs"
        engine = Opening(spec, order.settings, self.ordered, self.device, logs, hooks, self.course, self.lot).open(
            self.record,
            first_generation=order.first_generation,
            may_isolate=self._may_isolate,
            should_stop=self.queue.is_stopped,
        )
        self.writer.flush()
        return engine

    def _share_logs(self) -> None:
        """At the end: what the worker's engines printed. A log that a store does not take is no reason to fail."""
        for log in (self.order.run_dir / "logs").glob(f"{self.order.worker}-*"):
            try:
                share_file(self.order.run_dir, f"logs/{log.name}")
            except StoreError as error:
                self.log(str(error))

    def _keep_sample(self, sample: TelemetrySample) -> None:
        self.writer.add(sample)
        self._keep_device_samples()

    def _keep_device_samples(self) -> None:
        """The sampler has a thread of its own, and the writer is this thread's."""
        self.sampler.hand_over(self.writer.add, self.log)

    def _note_end(self, end: LoadEnd) -> None:
        self.log(end.message)
        details = LoadEndedDetails(reason=end.reason, sent_requests=self.course.settled)
        self.record(self.generation, "load_ended", message=end.message, details=details)

    def _may_isolate(self, isolated: int) -> bool:
        """Whether so many requests may be given up: one always, else a share of those prepared so far."""
        requests = count_table(self.order.run_dir, "requests")
        return isolated <= max(1.0, self.order.spec.max_error_fraction * requests)

    def _warm_up(self, engine: Engine, first: list[Request]) -> None:
        order = self.order
        request, shared_tokens = write_warm_up(
            first, order.spec.sampling_defaults, order.worker, engine.facts.max_model_len
        )
        duration_s = engine.warm_up(request)
        self.is_warm = True
        self.log(f"Warmed up in {duration_s:.2f} s; the prompts share {shared_tokens} leading tokens")

    def record(
        self,
        generation: int,
        event: str,
        duration_s: float | None = None,
        message: str | None = None,
        details: Mapping[str, Json] | None = None,
    ) -> None:
        """Stores an engine event and tells whoever listens."""
        self.generation = generation
        if event == "opened":
            claimed = OpenedDetails(claimed_device=self.device.name, claimed_gpus=len(self.device.gpus))
            details = {**(details or {}), **claimed}
        worker, attempt, now_s = self.order.worker, self.order.attempt, self.clock.now_s()
        row = EngineEvent(worker, attempt, generation, event, now_s, duration_s, message, details or {})
        self.writer.add(row)
        self._keep_device_samples()
        if event in URGENT_EVENTS:
            self.writer.flush()
        self.on_event(row)
