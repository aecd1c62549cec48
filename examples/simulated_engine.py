"""A simulated engine: deterministic answers, times and crashes for examples/two_weeks.py. Nothing is measured.

It schedules like a real engine: a step generates one token for each request with a slot.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from assayline.records import Completion, EngineEvent, Request, TelemetrySample

DEVICE = "an invented device"
LOAD_S, WARM_UP_S = 12.5, 0.75
WORKER = "worker-0"


@dataclass(frozen=True, slots=True)
class Night:
    """Parameters of a simulated run."""

    run_id: str
    started: str
    """UTC."""
    name: str = "nightly"
    model: str = "invented/sums-of-two"
    model_id: str = "sha256:00000000000000000000000000000001"
    prompts: int | None = None
    window: int = 80
    seats: int = 64
    step_s: float = 0.25
    thinking_tokens: int = 0
    """Number of tokens before each answer."""
    max_tokens: int | None = None
    """Maximum tokens of an answer; None: 4 more than the longest answer."""
    wrong: frozenset[int] = frozenset()
    """Rows of the prompt set with a wrong answer."""
    dies_after: int | None = None
    """Number of answers after which the engine runs out of memory; the next one has half the max concurrency."""
    deadly: int | None = None
    """The row that crashes every engine."""
    rate_per_s: float | None = None
    """Requests per second of an open loop; None for a closed loop."""
    euros_per_hour: float | None = None
    benchmark_id: str | None = None

    @property
    def most_tokens(self) -> int:
        """Return the maximum tokens of an answer."""
        return self.max_tokens or 20 + self.thinking_tokens


@dataclass(slots=True)
class Told:
    """Records of a simulated run, and its current time."""

    now_s: float = 0.0
    completions: list[Completion] = field(default_factory=list)
    events: list[EngineEvent] = field(default_factory=list)
    samples: list[TelemetrySample] = field(default_factory=list)


@dataclass(slots=True)
class _Running:
    row: int
    request: Request
    target: str
    arrived_at_s: float
    tokens: int
    is_cut_off: bool
    made_tokens: int = 0
    scheduled_at_s: float | None = None
    first_token_at_s: float | None = None


def simulate(night: Night, requests: list[Request], targets: list[str]) -> Told:
    """Simulate engines that generate one token per step for each request with a slot, and crash as specified."""
    told = Told()
    left = [(row, *pair) for row, pair in enumerate(zip(requests, targets, strict=True))]
    window, seats, generation = night.window, night.seats, 0
    while left:
        _open(told, generation, window, seats)
        died_of = _work(told, night, left, generation, window, seats)
        if died_of is None:
            break
        _die(told, generation, died_of, window)
        window, seats, generation = window // 2, seats // 2, generation + 1
        if generation == 2:  # two crashes identify the request
            culprit = next(asked for asked in left if asked[0] == night.deadly)
            left.remove(culprit)
            _isolate(told, generation - 1, window, culprit[1])
    told.now_s += 0.4
    told.events.append(EngineEvent(WORKER, 1, generation, "closed", told.now_s, 0.4))
    return told


def _work(
    told: Told, night: Night, left: list[tuple[int, Request, str]], generation: int, window: int, seats: int
) -> int | None:
    """Answer the remaining requests, removing them from the list. Return the number in flight if the engine crashed."""
    dice = random.Random(f"{night.run_id}/{generation}")
    unsent, live, steps, tokens = deque(left), [], 0, 0
    began_s = sampled_s = told.now_s
    while True:
        while unsent and (night.rate_per_s or len(live) < window):
            row, request, target = unsent[0]
            due_s = round(began_s + row / night.rate_per_s, 6) if night.rate_per_s else told.now_s
            if due_s > told.now_s and live:
                break
            told.now_s = max(told.now_s, due_s)
            wanted = night.thinking_tokens + 4 + row % 13
            is_cut_off = wanted > night.most_tokens
            live.append(_Running(row, request, target, due_s, min(wanted, night.most_tokens), is_cut_off))
            unsent.popleft()
        if not live:
            return None
        step_s = night.step_s * (0.8 + 0.4 * dice.random())
        started_s, told.now_s, steps = told.now_s, round(told.now_s + step_s, 6), steps + 1
        for running in live[:seats]:
            running.scheduled_at_s = running.scheduled_at_s or round(started_s + 0.001, 6)
            running.first_token_at_s = running.first_token_at_s or told.now_s
            running.made_tokens += 1
        for running in [running for running in live[:seats] if running.made_tokens == running.tokens]:
            if running.row == night.deadly and generation == 1:
                return len(live)
            if running.row == night.deadly and generation == 0:
                continue
            live.remove(running)
            left.remove((running.row, running.request, running.target))
            tokens += running.tokens
            told.completions.append(_answer(running, night, generation, window, told.now_s))
        if told.now_s - sampled_s >= 1.0 or not live:
            sampled_s = told.now_s
            told.samples.append(
                TelemetrySample(
                    worker=WORKER,
                    engine_generation=generation,
                    at_s=told.now_s,
                    engine_steps=steps,
                    in_flight_requests=len(live),
                    output_tokens=tokens,
                )
            )
        if generation == 0 and night.dies_after is not None and len(told.completions) >= night.dies_after:
            return len(live)


def _answer(running: _Running, night: Night, generation: int, window: int, now_s: float) -> Completion:
    text = str(int(running.target) + 1) if running.row in night.wrong else running.target
    return Completion(
        request_id=running.request.request_id,
        worker=WORKER,
        engine_generation=generation,
        window_requests=None if night.rate_per_s else window,
        due_at_s=running.arrived_at_s if night.rate_per_s else None,
        sent_at_s=running.arrived_at_s,
        arrived_at_s=running.arrived_at_s,
        queued_at_s=running.arrived_at_s,
        scheduled_at_s=running.scheduled_at_s,
        first_token_at_s=running.first_token_at_s,
        last_token_at_s=now_s,
        finished_at_s=now_s,
        prompt_tokens=len(running.request.prompt_token_ids),
        cached_tokens=0,
        output_tokens=running.tokens,
        preemptions=0,
        finish_reason="length" if running.is_cut_off else "stop",
        text="The sum is" if running.is_cut_off else text,
    )


def _open(told: Told, generation: int, window: int, seats: int) -> None:
    details = {
        "device": "none",
        "device_name": DEVICE,
        "max_model_len": 512,
        "max_num_seqs": seats,
        "vllm_version": "0.0",
        "window_requests": window,
    }
    told.now_s += LOAD_S
    told.events.append(EngineEvent(WORKER, 1, generation, "opened", told.now_s, LOAD_S, details=details))
    told.now_s += WARM_UP_S
    told.events.append(EngineEvent(WORKER, 1, generation, "warmed_up", told.now_s, WARM_UP_S))


def _die(told: Told, generation: int, in_flight: int, window: int) -> None:
    message = "CUDA out of memory. Tried to allocate 1.2 GiB."
    told.now_s = round(told.now_s + 0.02, 6)
    details = {
        "kind": "device_oom",
        "is_memory": True,
        "phase": "run",
        "exit_code": 1,
        "in_flight_requests": in_flight,
    }
    told.events.append(EngineEvent(WORKER, 1, generation, "failed", told.now_s, None, message, details))
    change = {"window_requests": {"from": window, "to": window // 2}}
    words = f"window_requests from {window} to {window // 2}"
    told.events.append(EngineEvent(WORKER, 1, generation, "reduced", told.now_s, None, words, change))


def _isolate(told: Told, generation: int, window: int, request: Request) -> None:
    words = "It was in flight whenever an engine died."
    details = {"request_id": request.request_id}
    told.events.append(EngineEvent(WORKER, 1, generation, "isolated", told.now_s, None, words, details))
    told.completions.append(
        Completion(
            request_id=request.request_id,
            worker=WORKER,
            engine_generation=generation,
            window_requests=window,
            finished_at_s=told.now_s,
            prompt_tokens=len(request.prompt_token_ids),
            error_kind="engine_died",
            error_message="Every engine that had this request died: CUDA out of memory. Tried to allocate 1.2 GiB.",
        )
    )
