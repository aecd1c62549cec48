"""The rows that travel: one frozen dataclass per raw table of `sql/schema/`, same names, same order.

Times named `*_at_s` are seconds on one monotonic clock, relative to the run's start (see `clock.py`).
What was not measured is None and becomes NULL, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Json = Any
"""A value that `json.dumps` takes."""
NOT_SENT = "not_sent"
"""error_kind of a request whose turn never came, as its load had ended; no error, and in no way an answer."""
EARLIER_TURN = "earlier_turn"
"""error_kind of a turn of a conversation that was not asked, as one before it has no answer."""

MediaKind = Literal["image", "audio", "video"]
"""As content parts of a chat name them, and vLLM."""


class Media(TypedDict):
    """A picture, a sound or a film of a prompt: where it is, never its content."""

    kind: MediaKind
    path: str
    """A file's absolute path; one relative to the run's folder, where its content came with the row; or, of synthetic
    media, what it is made from (`media/synthetic.py`)."""
    digest: str
    """sha256 of its content, first 32 hex digits."""


@dataclass(frozen=True, slots=True)
class AskedBody:
    """What the body of a batch file's line asks beside messages and sampling."""

    text: str | None = None
    """A prompt as it stands, which gets the tokenizer's own special tokens and no chat template."""
    variables: dict[str, Json] = field(default_factory=dict)
    """Of the chat template, tools among them."""
    continues: bool = False
    """Whether the last message is the beginning of the answer."""
    samples: int = 1
    """Answers wanted, each a request of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    media: list[Media] | None = None
    """In the order of their parts in `messages`, which say of what kind each is and no more."""
    body: AskedBody | None = None
    """Set by the source openai_batch."""
    due_offset_s: float | None = None
    """Of a trace: how long after its first request this one came, in seconds."""
    turn_sizes: list[int] | None = None
    """Of a conversation that is asked turn by turn: how many of the messages each turn adds."""


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """A turn of a conversation that came before: what was said to the model, and what it said, where that is stored."""

    messages: list[dict[str, Json]]
    answer: str | None = None
    error_kind: str | None = None
    """This and what follows: where it has an error row."""
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing to generate: a prompt occurrence × a repeat, rendered to token ids; × a turn, of a conversation."""

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
    media: list[Media] | None = None
    """What the prompt's placeholders stand for, in their order; None where it is text alone."""
    expected_output_tokens: int | None = None
    """Median length of the answers that earlier runs of the model gave to the prompt, where it was sent by that."""
    due_offset_s: float | None = None
    """How long after a trace's first request this one came, in seconds; None where its prompt comes from none."""
    turn_index: int | None = None
    """0-based turn of its conversation; None where that is not asked turn by turn."""
    turns: int | None = None
    """How many turns the conversation has."""
    turn_messages: list[dict[str, Json]] | None = None
    """What this turn adds to the conversation. The prompt of a later turn is rendered when it is asked."""
    earlier_turns: list[EarlierTurn] | None = None
    """As its shard has them; not stored with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    images: int | None = None
    """How many the prompt has; None, as all that follow, where it has no media."""
    image_pixels: int | None = None
    """Width times height as the model's own processing got them, summed."""
    audios: int | None = None
    audio_s: float | None = None
    videos: int | None = None
    video_frames: int | None = None
    """Frames that were taken from them."""
    video_s: float | None = None
    media_bytes: int | None = None
    """Size of the files, or of what came in the row."""
    media_tokens: int | None = None
    """Tokens of the prompt that stand for media: its length less what was sent, placeholders counted here."""
    media_prepare_s: float | None = None
    """Reading, decoding and the model's own processing, before the engine could have it."""


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to an engine; `sql/schema/05_engine_events.sql` says what."""

    worker: str
    attempt: int
    """Which start of the run it belongs to, 1 for the first."""
    engine_generation: int
    event: str
    at_s: float
    duration_s: float | None = None
    message: str | None = None
    details: Mapping[str, Json] = field(default_factory=dict)
    """Of the event's own kind, as in `engines/base.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySample:
    """The engine's counters at one moment, about once a second. Counters grow from 0 per engine generation."""

    worker: str
    engine_generation: int
    at_s: float
    engine_steps: int | None
    """None of a server, which does not say."""
    in_flight_requests: int
    output_tokens: int
    kv_cache_usage_share: float | None = None
    """Share of the KV cache's blocks that are in use, 0 to 1; None, as what follows, where the engine does not say."""
    running_requests: int | None = None
    waiting_requests: int | None = None
    preemptions: int | None = None
    """So far, counted from 0 per engine generation, warm-up left out."""
    loop_lags_s: list[float] | None = None
    """How late each 10 ms timer of a streaming engine's event loop was since the sample before, while requests were in
    flight; None of an engine without such a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """What the sensors of a worker's device, or of its machine, say about once a second; None: it has no sensor."""

    worker: str
    device: str
    """A GPU as in CUDA_VISIBLE_DEVICES, with `cuda-` before it; or `host`, the machine that the worker is on."""
    at_s: float
    utilization_share: float | None = None
    """Share of the last sample period in which a kernel ran on the GPU; of `host`, the mean over its cores."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    """The device's own counter: since its driver was loaded."""
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    """Why clocks are below the highest, comma-separated, as NVML names the reasons; empty where they are not."""
