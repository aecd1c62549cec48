"""A request in flight in the engine host, and its outputs so far."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from assayline.engines.messages import Generate, Open
from assayline.engines.reasoning import AnswerStops, split_reasoning
from assayline.records import Json, Request, TelemetrySample
from assayline.spec.engine import ReasoningSpec


class Live:
    """One request: one output at its end, or one per step if token times or an answer's stops are watched."""

    __slots__ = (
        "arrived",
        "cumulative_logprob",
        "finish_reason",
        "is_stopped",
        "logprobs",
        "media",
        "message",
        "prompt_logprobs",
        "reasoning",
        "stamps",
        "stop_reason",
        "stops",
        "texts",
        "token_ids",
    )

    def __init__(self, message: Generate, arrived: float, reasoning: ReasoningSpec | None = None) -> None:
        self.message = message
        self.arrived = arrived
        self.reasoning = reasoning
        self.stops: AnswerStops | None = None
        self.media: dict[str, Json] = {}
        """Columns that describe its media, once they are prepared."""
        self.is_stopped = False
        """Whether one of `stops` was found, and the engine must abort the request."""
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.stamps: list[float] = []
        self.logprobs: list[Any] = []
        self.prompt_logprobs: list[Any] = []
        self.cumulative_logprob: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def take(self, output: Any) -> None:
        """Add one output. The stats object is shared with vLLM and changes, so its stamp is copied now."""
        part = output.outputs[0]
        self.texts.append(part.text)
        self.token_ids.extend(part.token_ids)
        self.stamps.extend([output.metrics.last_token_ts] * len(part.token_ids))
        self.logprobs.extend(part.logprobs or ())
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs  # streamed, only the first output has it
        self.cumulative_logprob = part.cumulative_logprob
        self.finish_reason = part.finish_reason
        self.stop_reason = part.stop_reason
        if self.stops and (stop := self.stops.feed(part.text, len(self.token_ids))) is not None:
            self.is_stopped, self.finish_reason, self.stop_reason = True, "stop", stop

    def answer(self) -> dict[str, Json]:
        """Return the completion's columns for the answer."""
        request = self.message.request
        if request.option_tokens is not None:
            start = len(request.prompt_token_ids) - request.option_tokens
            return score_option(request, list(map(_plain_logprobs, self.prompt_logprobs[start:])))
        text = self.stops.text if self.stops else "".join(self.texts)
        reasoning, text = split_reasoning(text, self.reasoning) if self.reasoning else (None, text)
        return {
            "text": text,
            "reasoning": reasoning,
            "output_token_ids": self.token_ids,
            "logprobs": [_plain_logprobs(position) for position in self.logprobs] or None,
            "cumulative_logprob": self.cumulative_logprob if self.logprobs else None,
            "prompt_logprobs": [_plain_logprobs(position) for position in self.prompt_logprobs] or None,
        }


def score_option(request: Request, positions: Sequence[Mapping[str, float] | None]) -> dict[str, Json]:
    """Return the log-probability of the option, the prompt's last tokens, whose positions are given.

    The likeliest tokens are kept if requested: they show whether the option is greedy. Raises ValueError or KeyError if
    a position, or the option's token there, is missing.
    """
    ids = request.prompt_token_ids[-(request.option_tokens or 0) :]
    ends = zip(map(str, ids), positions, strict=True)
    wants_others = bool(request.sampling.get("prompt_logprobs"))
    return {
        "option_logprob": sum(float((position or {})[token]) for token, position in ends),
        "prompt_logprobs": positions if wants_others else None,
    }


def _plain_logprobs(position: Any) -> dict[str, float] | None:
    return None if position is None else {str(token): entry.logprob for token, entry in position.items()}


KV_CACHE = "vllm:kv_cache_usage_perc"
"""A share from 0 to 1, despite its name."""
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
NAMES = (KV_CACHE, RUNNING, WAITING, PREEMPTIONS)


class EngineStats(NamedTuple):
    """The last columns of a `TelemetrySample`; None for unreported values."""

    kv_cache_usage_share: float | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    preemptions: int | None = None
    """Since the engine, or the server, was started."""

    def since(self, before: "EngineStats") -> "EngineStats":
        """Count preemptions from an earlier reading. A restarted server counts from 0."""
        if self.preemptions is None or before.preemptions is None or self.preemptions < before.preemptions:
            return self
        return self._replace(preemptions=self.preemptions - before.preemptions)


def read_own_stats() -> EngineStats:
    """Return the counters of the engine in this process or its children. Cheap, and safe in any thread."""
    return _add_up(REGISTRY.restricted_registry(NAMES).collect())


class Counters:
    """Counts of the engine in this process. Each is a single number, so that no other thread reads a torn one."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from 0."""
        self.steps = self.output_tokens = 0
        self._stats_before = read_own_stats()

    def add_steps(self, steps: int) -> None:
        self.steps += steps

    def add_tokens(self, tokens: int) -> None:
        self.output_tokens += tokens

    def sample(self, order: Open, in_flight: int) -> TelemetrySample:
        """Return the counts, with those that vLLM itself keeps. Safe in any thread."""
        return TelemetrySample(
            worker=order.worker,
            engine_generation=order.engine_generation,
            at_s=order.clock.now_s(),
            engine_steps=self.steps,
            in_flight_requests=in_flight,
            output_tokens=self.output_tokens,
            **read_own_stats().since(self._stats_before)._asdict(),
        )


def parse_stats(text: str) -> EngineStats:
    """Return a server's counters, from the text of its `/metrics`. Raises ValueError for any other text."""
    lines = (line for line in text.splitlines() if line.startswith(NAMES))  # skip histograms
    return _add_up(text_string_to_metric_families("\n".join(lines) + "\n"))


def _add_up(families: Iterable[Metric]) -> EngineStats:
    values: dict[str, list[float]] = {name: [] for name in NAMES}
    for family in families:
        for sample in family.samples:
            if sample.name in values:
                values[sample.name].append(sample.value)
    counts = (int(sum(values[name])) if values[name] else None for name in (RUNNING, WAITING, PREEMPTIONS))
    return EngineStats(fmean(values[KV_CACHE]) if values[KV_CACHE] else None, *counts)
