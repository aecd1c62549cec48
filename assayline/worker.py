"""A worker: one device, one engine, all the shards it can claim.

It opens its engine once, warms it up on the prefix that the prompts share, feeds it from one shard after another
without a pause between them, and writes what finishes as parts. It knows nothing of Prefect: a task calls `run_worker`
in a thread, in a process, or on another machine of a Ray cluster.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assayline.clock import RunClock
from assayline.engines import open_engine
from assayline.engines.base import Engine, EngineHooks
from assayline.engines.devices import claim_device, list_devices
from assayline.errors import AssaylineError, EngineInterruptedError
from assayline.records import EngineEvent, Request
from assayline.settings import Settings
from assayline.shards import ShardQueue
from assayline.spec import EvalSpec
from assayline.store.parts import PartWriter

STOP_CHECK_INTERVAL_S = 0.25
MIN_WARM_UP_TOKENS = 32
"""A first prefill of a few tokens kills vLLM's CPU worker on AMX machines (SIGILL); 32 is safe everywhere."""
WARM_UP_OUTPUT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """What a worker must know. Small and picklable: prompts and completions never travel in it."""

    run_id: str
    run_dir: Path
    spec: EvalSpec
    settings: Settings
    model: str
    model_id: str
    model_args: dict[str, str]
    clock: RunClock
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker did."""

    worker: str
    answered_requests: int
    engines_opened: int
    device: str
    process_id: int


def run_worker(order: WorkOrder, log: Callable[[str], None]) -> WorkerReport:
    """Answers requests until the queue is closed and empty, or stopped.

    Raises DeviceError, SpecError or EngineError; what had finished until then is stored.
    """
    spec, settings, clock = order.spec, order.settings, order.clock.on_this_machine()
    queue = ShardQueue(order.run_dir)
    with contextlib.ExitStack() as stack:
        device_env: dict[str, str] = {}
        device_name = "none"
        if spec.engine.backend == "offline":
            devices = list_devices(
                spec.engine.device, spec.workers, int(spec.engine.args.get("tensor_parallel_size", 1))
            )
            device = stack.enter_context(claim_device(devices, settings.lock_dir, settings.device_wait_s))
            device_env, device_name = device.env, device.name
        writer = stack.enter_context(
            PartWriter(order.run_dir, order.worker, settings.flush_rows, settings.flush_interval_s)
        )
        log(f"{order.worker} opens an engine for {order.model} on {device_name}")
        engine = open_engine(
            spec.engine,
            model=order.model,
            model_id=order.model_id,
            model_args=order.model_args,
            sampling=spec.sampling_defaults,
            clock=clock,
            worker=order.worker,
            device_env=device_env,
            log_path=order.run_dir / "logs" / f"{order.worker}-generation-0.log",
            settings=settings,
            hooks=EngineHooks(on_sample=writer.add, on_log=log, should_stop=_throttle(queue.is_stopped)),
        )
        stack.callback(_close, engine, order.worker, clock, writer)
        writer.add(
            EngineEvent(
                order.worker,
                0,
                "opened",
                clock.now_s(),
                engine.facts.load_s,
                details={
                    **engine.facts.details,
                    "window_requests": engine.facts.window_requests,
                    "claimed_device": device_name,
                },
            )
        )
        writer.flush()
        answered = _generate(engine, order, queue, clock, writer, log)
    return WorkerReport(order.worker, answered, 1, device_name, os.getpid())


def _generate(
    engine: Engine, order: WorkOrder, queue: ShardQueue, clock: RunClock, writer: PartWriter, log: Callable[[str], None]
) -> int:
    requests = queue.pull()
    first = _take_first(requests, order.spec.shard_requests, queue)
    if first and order.spec.engine.warm_up:
        _warm_up(engine, order, first, clock, writer, log)
    answered = 0
    try:
        for completion in engine.generate(itertools.chain(first, requests)):
            writer.add(completion)
            answered += 1
    except AssaylineError as error:
        if not isinstance(error, EngineInterruptedError):
            writer.add(EngineEvent(order.worker, 0, "failed", clock.now_s(), message=str(error)))
        raise
    return answered


def _take_first(requests: Iterator[Request | None], most: int, queue: ShardQueue) -> list[Request]:
    """The first shard's requests: waits for the first one, takes at most one shard."""
    first: list[Request] = []
    for request in requests:
        if request is not None:
            first.append(request)
            if len(first) >= most:
                break
        elif first or queue.is_stopped():
            break
        else:
            time.sleep(STOP_CHECK_INTERVAL_S / 5)
    return first


def _warm_up(
    engine: Engine,
    order: WorkOrder,
    first: list[Request],
    clock: RunClock,
    writer: PartWriter,
    log: Callable[[str], None],
) -> None:
    prefix = shared_prefix([request.prompt_token_ids for request in first])
    tokens = prefix[: engine.facts.max_model_len - WARM_UP_OUTPUT_TOKENS - 1]
    filler = first[0].prompt_token_ids[0]
    tokens += [filler] * (min(MIN_WARM_UP_TOKENS, engine.facts.max_model_len - WARM_UP_OUTPUT_TOKENS - 1) - len(tokens))
    sampling = {name: value for name, value in order.spec.sampling_defaults.items() if name not in ("min_tokens", "n")}
    sampling["max_tokens"] = WARM_UP_OUTPUT_TOKENS
    duration_s = engine.warm_up(Request(f"warm-up-{order.worker}", "", 0, 0, tokens, sampling))
    log(f"{order.worker} warmed up in {duration_s:.2f} s; {len(prefix)} leading tokens are shared by the prompts")
    writer.add(
        EngineEvent(
            order.worker, 0, "warmed_up", clock.now_s(), duration_s, details={"shared_prefix_tokens": len(prefix)}
        )
    )


def shared_prefix(prompts: list[list[int]]) -> list[int]:
    """The longest common prefix of two or more prompts; empty for a single one, which shares with nobody."""
    if len(prompts) < 2:
        return []
    low, high = min(prompts), max(prompts)
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]


def _close(engine: Engine, worker: str, clock: RunClock, writer: PartWriter) -> None:
    started = time.monotonic()
    engine.close()
    writer.add(EngineEvent(worker, 0, "closed", clock.now_s(), time.monotonic() - started))


def _throttle(check: Callable[[], bool]) -> Callable[[], bool]:
    """Asks the file system at most every STOP_CHECK_INTERVAL_S."""
    asked_s = float("-inf")

    def throttled() -> bool:
        nonlocal asked_s
        if time.monotonic() - asked_s < STOP_CHECK_INTERVAL_S:
            return False
        asked_s = time.monotonic()
        return check()

    return throttled
