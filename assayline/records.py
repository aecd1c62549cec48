"""The rows that travel: one frozen dataclass per raw table of `sql/schema/`, same names, same order.

Times named `*_at_s` are seconds on one monotonic clock, relative to the run's start (see `clock.py`).
What was not measured is None and becomes NULL, never 0.
"""

from dataclasses import dataclass, field
from typing import Any

Json = Any
"""A value that `json.dumps` takes."""
NOT_SENT = "not_sent"
"""error_kind of a request whose turn never came, as its load had ended; no error, and in no way an answer."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt set, after its columns became chat messages.

    `prompt_id` hashes question, target and options; `occurrence` counts earlier rows of the run with the same id
    (0 for the first), so a duplicate is a row of its own and can be counted.
    """

    prompt_id: str
    occurrence: int
    source_row: int
    """0-based position in the source, before shuffling."""
    source_id: str | None
    """The row's own id column, as text."""
    messages: list[dict[str, Json]]
    target: str | None = None
    metadata: dict[str, Json] = field(default_factory=dict)
    sampling: dict[str, Json] = field(default_factory=dict)
    """This row's overrides of the spec's sampling parameters."""
    prompt_token_ids: list[int] | None = None
    """Set by the synthetic source, whose prompts are token ids and need no template."""
    options: list[str] | None = None
    """Answers to choose from, where their likelihood is asked for and no text."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to generate: a prompt occurrence × a repeat, rendered to token ids."""

    request_id: str
    prompt_id: str
    occurrence: int
    repeat_index: int
    prompt_token_ids: list[int]
    sampling: dict[str, Json]
    """All arguments of `vllm.SamplingParams` for this request: the spec's with the row's laid over them."""
    rendered: str | None = None
    """The prompt as text, special tokens included."""
    option_index: int | None = None
    """0-based option whose likelihood is asked for; None where an answer is to be generated."""
    option: str | None = None
    """That option's text, as it ends the prompt."""
    option_tokens: int | None = None
    """How many of the prompt's last tokens are the option."""
    messages: list[dict[str, Json]] | None = None
    """The chat, where a server is to render it; then there are no token ids."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The outcome of one request: a result, or an error row. Never absent, never both."""

    request_id: str
    worker: str
    engine_generation: int
    """How many engines this worker had started before this one, over all attempts of the run: 0 for its first."""
    window_requests: int | None
    """The most requests that were allowed in flight when this one ran; None in an open loop, which knows no limit."""
    due_at_s: float | None = None
    """When an open-loop arrival pattern wanted it sent; None where it was sent because there was room."""
    sent_at_s: float | None = None
    """When it was handed to the engine's process, to the async engine, or for the first time to the server."""
    arrived_at_s: float | None = None
    """When it reached the engine; the zero of TTFT and end-to-end latency. Of a server that is sent_at_s."""
    queued_at_s: float | None = None
    scheduled_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    finished_at_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    preemptions: int | None = None
    retries: int | None = None
    """How often a server was asked again before it answered; None where no server was."""
    finish_reason: str | None = None
    stop_reason: str | None = None
    text: str | None = None
    """The answer; of a model that reasons, what comes after the closing tag."""
    reasoning: str | None = None
    """What a model wrote before its closing tag, where the spec says that it reasons."""
    output_token_ids: list[int] | None = None
    token_at_s: list[float] | None = None
    """One stamp per output token, where the engine was asked to record them."""
    cumulative_logprob: float | None = None
    logprobs: Json = None
    """Per output token, {token id: log-probability}, where asked for."""
    prompt_logprobs: Json = None
    option_logprob: float | None = None
    """Sum of the log-probabilities of the option's tokens, natural logarithm."""
    error_kind: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to an engine; `sql/schema/05_engine_events.sql` says what, and what `details` hold."""

    worker: str
    attempt: int
    """Which start of the run it belongs to, 1 for the first."""
    engine_generation: int
    event: str
    at_s: float
    duration_s: float | None = None
    message: str | None = None
    details: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """The engine's counters at one moment, about once a second. Counters grow from 0 per engine generation."""

    worker: str
    engine_generation: int
    at_s: float
    engine_steps: int | None
    """None of a server, which does not say."""
    in_flight_requests: int
    output_tokens: int
