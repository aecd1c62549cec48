"""FakeEngine: the whole protocol without a model, for fast tests and for trying a spec out.

It schedules like a real engine (each step gives one token to each of `max_num_seqs` running requests), so order,
windows and error rows look the same; the tokens are a fixed function of the prompt. Its speed proves nothing.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from assayline.engines.base import EngineFacts, EngineHooks, OpenedDetails
from assayline.engines.messages import Open
from assayline.errors import EngineInterruptedError
from assayline.records import Completion, Request, TelemetrySample

MAX_MODEL_LEN = 4096
DEFAULT_OUTPUT_TOKENS = 8
IDLE_SLEEP_S = 0.005


def echo(request: Request) -> str:
    """Return the default answer: the last word of the rendered prompt."""
    return (request.rendered or "").strip().rsplit(" ", 1)[-1]


@dataclass(slots=True)
class _Running:
    request: Request
    sent_s: float
    tokens_left: int
    tokens: int
    first_token_s: float | None = None


class FakeEngine:
    """An engine whose answers are `answer(request)`; a request whose id is in `fail_ids` becomes an error row."""

    def __init__(
        self,
        order: Open,
        hooks: EngineHooks = EngineHooks(),  # noqa: B008 - frozen
        *,
        window: int | None = None,
        max_num_seqs: int = 64,
        step_s: float = 0.0,
        answer: Callable[[Request], str] = echo,
        fail_ids: frozenset[str] = frozenset(),
        kept_from: str | None = None,
    ) -> None:
        """Open it. `kept_from` is the run that opened it first, if it stands for an engine of a pool."""
        self._order = order
        self._max_num_seqs = max_num_seqs
        self._step_s = step_s
        self._answer = answer
        self._fail_ids = fail_ids
        self._hooks = hooks
        self._steps = self._output_tokens = 0
        self._sampled_s = 0.0
        self._window_requests = window or max_num_seqs * 5 // 4
        details = OpenedDetails(
            device="none", device_name="fake", max_num_seqs=max_num_seqs, max_model_len=MAX_MODEL_LEN
        )
        if kept_from is not None:
            details["kept_from"] = kept_from
        self._facts = EngineFacts(self._window_requests, MAX_MODEL_LEN, 0.0, details)

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    def warm_up(self, request: Request) -> float:
        return 0.0

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        source = iter(requests)
        live: list[_Running] = []
        exhausted = False
        while live or not exhausted:
            for request in itertools.islice(source, max(self._window_requests - len(live), 0)):
                if request is None:
                    break
                live.append(self._start(request))
            else:
                exhausted = len(live) < self._window_requests
            yield from self._step(live)
            if self._hooks.should_stop():
                raise EngineInterruptedError("Generation was stopped on request; what had finished is stored.")

    def close(self) -> None:
        """Do nothing: it has no processes."""

    def _start(self, request: Request) -> _Running:
        asked = request.sampling.get("max_tokens")  # a row may say anything here
        tokens = asked if type(asked) is int and 0 < asked < 2**31 else DEFAULT_OUTPUT_TOKENS
        return _Running(request, self._order.clock.now_s(), tokens, tokens)

    def _step(self, live: list[_Running]) -> Iterator[Completion]:
        time.sleep(self._step_s if live else IDLE_SLEEP_S)
        self._steps += 1
        now_s = self._order.clock.now_s()
        for running in live[: self._max_num_seqs]:
            running.first_token_s = running.first_token_s or now_s
            running.tokens_left -= 1
        finished = [running for running in live[: self._max_num_seqs] if running.tokens_left <= 0]
        if finished:
            live[:] = [running for running in live if running.tokens_left > 0]
        for running in finished:
            yield self._finish(running, now_s)
        if now_s - self._sampled_s >= 1.0 or not live:
            self._sampled_s = now_s
            seated = min(len(live), self._max_num_seqs)
            sample = TelemetrySample(
                worker=self._order.worker,
                engine_generation=self._order.engine_generation,
                at_s=now_s,
                engine_steps=self._steps,
                in_flight_requests=len(live),
                output_tokens=self._output_tokens,
                running_requests=seated,
                waiting_requests=len(live) - seated,
                preemptions=0,
            )
            self._hooks.on_sample(sample)

    def _finish(self, running: _Running, now_s: float) -> Completion:
        request = running.request
        common: dict[str, Any] = {
            "request_id": request.request_id,
            "worker": self._order.worker,
            "engine_generation": self._order.engine_generation,
            "window_requests": self._window_requests,
            "sent_at_s": running.sent_s,
            "arrived_at_s": running.sent_s,
            "finished_at_s": now_s,
            "prompt_tokens": len(request.prompt_token_ids),
        }
        if request.request_id in self._fail_ids:
            return Completion(**common, error_kind="fake_error", error_message="asked to fail")
        self._output_tokens += running.tokens
        seed = hashlib.sha256(repr(request.prompt_token_ids).encode()).digest()
        if request.option_tokens is not None:
            answer: dict[str, Any] = {"option_logprob": -request.option_tokens * (seed[0] + 1) / 64}
            if request.sampling.get("prompt_logprobs"):
                read = request.prompt_token_ids[-request.option_tokens :]
                answer["prompt_logprobs"] = [{str(token): -0.25, str(token + 1): -1.75} for token in read]
        else:
            ids = [seed[i % len(seed)] for i in range(running.tokens)]
            answer = {"text": self._answer(request), "output_token_ids": ids}
            if self._order.find_reasoning(request):
                answer["reasoning"] = "It is the fake engine's thinking."
        return Completion(
            **common,
            queued_at_s=running.sent_s,
            scheduled_at_s=running.sent_s,
            first_token_at_s=running.first_token_s,
            last_token_at_s=now_s,
            cached_tokens=0,
            output_tokens=running.tokens,
            preemptions=0,
            finish_reason="length" if request.sampling.get("ignore_eos") else "stop",
            **answer,
        )
