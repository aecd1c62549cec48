"""Records passed between processes: one frozen dataclass per raw table of `sql/schema/`, same names, same order.

Times named `*_at_s` are seconds on one monotonic clock, relative to the run's start (see `clock.py`). A value that was
not measured is None and becomes NULL, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Json = Any
"""A value that `json.dumps` accepts."""
NOT_SENT = "not_sent"
"""error_kind of a request that was not sent because its load had ended; neither an error nor an answer."""
EARLIER_TURN = "earlier_turn"
"""error_kind of a conversation turn that was not sent because an earlier turn has no answer."""

MediaKind = Literal["image", "audio", "video"]
"""As named in chat content parts and in vLLM."""


class Media(TypedDict):
    """An image, audio clip or video of a prompt: its location, never its content."""

    kind: MediaKind
    path: str
    """A file's absolute path; a path relative to the run's folder if the content came with the row; or the recipe of
    synthetic media (`media/load.py`)."""
    digest: str
    """First 32 hex digits of the content's SHA-256."""


@dataclass(frozen=True, slots=True)
class BatchBody:
    """Parts of a request other than messages and sampling: of a batch file's body, or a row's tools."""

    text: str | None = None
    """A raw prompt, which gets the tokenizer's special tokens and no chat template."""
    variables: dict[str, Json] = field(default_factory=dict)
    """Chat template variables, including tools."""
    continues: bool = False
    """Whether the last message is a prefix of the answer."""
    samples: int | None = None
    """Number of answers, each a separate request; None: the spec's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of a prompt set, after its columns became chat messages.

    A reader of rows leaves out its identity: `prompt_id` hashes question, target and options; `occurrence` counts
    earlier rows of the run with the same id (0 for the first), so that duplicates stay separate rows and can be
    counted.
    """

    prompt_id: str = ""
    occurrence: int = 0
    source_row: int = 0
    """0-based position in the source, before shuffling."""
    source_id: str | None = None
    """The row's own id column, as text."""
    messages: list[dict[str, Json]]
    target: str | None = None
    metadata: dict[str, Json] = field(default_factory=dict)
    sampling: dict[str, Json] = field(default_factory=dict)
    """This row's overrides of the spec's sampling parameters."""
    prompt_token_ids: list[int] | None = None
    """Set by the synthetic source, whose prompts are token ids and need no template."""
    options: list[str] | None = None
    """Choices whose likelihoods are requested instead of a generated text."""
    media: list[Media] | None = None
    """In the order of their parts in `messages`, which give only the kind of each."""
    body: BatchBody | None = None
    """Set by the source openai_batch."""
    due_offset_s: float | None = None
    """Seconds between the trace's first request and this one."""
    turn_sizes: list[int] | None = None
    """Number of messages that each turn of a conversation adds, if it is sent turn by turn."""


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """An earlier turn of a conversation: its messages and the model's stored answer."""

    messages: list[dict[str, Json]]
    answer: str | None = None
    error_kind: str | None = None
    """This field and the following are set if the turn has an error row."""
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation: a prompt occurrence × a repeat (× a turn, in a conversation), rendered to token ids."""

    request_id: str
    prompt_id: str
    occurrence: int
    repeat_index: int
    prompt_token_ids: list[int]
    sampling: dict[str, Json]
    """All arguments of `vllm.SamplingParams` for this request: the spec's, overridden by the row's."""
    rendered: str | None = None
    """The prompt as text, special tokens included."""
    option_index: int | None = None
    """0-based option whose likelihood is requested; None if an answer is generated."""
    option: str | None = None
    """Text of that option, as it ends the prompt."""
    option_tokens: int | None = None
    """Number of tokens at the prompt's end that form the option."""
    messages: list[dict[str, Json]] | None = None
    """The chat, if a server renders it; then there are no token ids."""
    media: list[Media] | None = None
    """Media for the prompt's placeholders, in order; None for text-only prompts."""
    expected_output_tokens: int | None = None
    """Median length of the answers to this prompt in earlier runs of the model, if requests were ordered by it."""
    due_offset_s: float | None = None
    """Seconds between the trace's first request and this one; None if the prompt is not from a trace."""
    turn_index: int | None = None
    """0-based turn of its conversation; None unless sent turn by turn."""
    turns: int | None = None
    """Number of turns in the conversation."""
    turn_messages: list[dict[str, Json]] | None = None
    """Messages that this turn adds to the conversation. The prompt of a later turn is rendered when it is sent."""
    earlier_turns: list[EarlierTurn] | None = None
    """Read from the shard; not stored with the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The outcome of one request: a result or an error row, never both and never neither."""

    request_id: str
    worker: str
    engine_generation: int
    """Number of engines that this worker had started before this one, over all attempts of the run: 0 for its first."""
    window_requests: int | None
    """Limit of requests in flight when this one ran; None for an open loop, which has no limit."""
    due_at_s: float | None = None
    """Time at which an open-loop arrival pattern scheduled it; None if it was sent as soon as the window had room."""
    sent_at_s: float | None = None
    """Time at which it was handed to the engine's process or the async engine, or first sent to the server."""
    arrived_at_s: float | None = None
    """Time at which it reached the engine; the start of TTFT and end-to-end latency. For a server, sent_at_s."""
    queued_at_s: float | None = None
    scheduled_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    finished_at_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    preemptions: int | None = None
    draft_tokens: int | None = None
    """Number of tokens that speculative decoding proposed; None without it, or if the engine does not report it."""
    acceptance_histogram: list[int] | None = None
    """Number of drafts by their number of accepted tokens, from 0 to `num_speculative_tokens`."""
    retries: int | None = None
    """Number of retries before the server answered; None for local engines."""
    finish_reason: str | None = None
    stop_reason: str | None = None
    text: str | None = None
    """The answer; for a reasoning model, the text after the closing tag."""
    reasoning: str | None = None
    """Text before a reasoning model's closing tag, if the spec sets `reasoning`."""
    output_token_ids: list[int] | None = None
    token_at_s: list[float] | None = None
    """One timestamp per output token, if the engine was asked to record them."""
    cumulative_logprob: float | None = None
    logprobs: Json = None
    """{token id: log-probability} per output token, if requested."""
    prompt_logprobs: Json = None
    option_logprob: float | None = None
    """Sum of the log-probabilities of the option's tokens, natural logarithm."""
    error_kind: str | None = None
    error_message: str | None = None
    images: int | None = None
    """Number of images in the prompt; None, like the following columns, if it has no media."""
    image_pixels: int | None = None
    """Sum of width × height, as the model's preprocessor received them."""
    audios: int | None = None
    audio_s: float | None = None
    videos: int | None = None
    video_frames: int | None = None
    """Number of frames sampled from the videos."""
    video_s: float | None = None
    media_bytes: int | None = None
    """Size of the files, or of the content in the row."""
    media_tokens: int | None = None
    """Prompt tokens that stand for media: the prompt's length minus the text tokens sent, without placeholders."""
    media_prepare_s: float | None = None
    """Seconds for reading, decoding and the model's preprocessing, before the engine received it."""
    reasoning_tokens: int | None = None
    """Output tokens that are reasoning, as a server counts them."""
    hidden_tokens: int | None = None
    """Reasoning tokens that the server counted and did not send; None if unknown."""
    response_model: str | None = None
    """Name of the model in a server's answer."""


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """An event in an engine's life; `sql/schema/05_engine_events.sql` defines the events."""

    worker: str
    attempt: int
    """Number of the run's start that it belongs to, 1 for the first."""
    engine_generation: int
    event: str
    at_s: float
    duration_s: float | None = None
    message: str | None = None
    details: Mapping[str, Json] = field(default_factory=dict)
    """Fields specific to the event, as in `engines/base.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySample:
    """The engine's counters at one moment, about once a second. Counters start at 0 per engine generation."""

    worker: str
    engine_generation: int
    at_s: float
    engine_steps: int | None
    """None for a server, which does not report it."""
    in_flight_requests: int
    output_tokens: int
    kv_cache_usage_share: float | None = None
    """Share of the KV cache's blocks in use, 0 to 1; None, like the following columns, if the engine does not report
    it."""
    running_requests: int | None = None
    waiting_requests: int | None = None
    preemptions: int | None = None
    """Count since the start of the engine generation, without the warm-up."""
    loop_lags_s: list[float] | None = None
    """Delays of a streaming engine's 10 ms event-loop timers since the previous sample, while requests were in flight;
    None for an engine without such a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """Sensor readings of a worker's device, or of its machine, about once a second; None without that sensor."""

    worker: str
    device: str
    """A GPU as in CUDA_VISIBLE_DEVICES, prefixed with `cuda-`; or `host`, the worker's machine."""
    at_s: float
    utilization_share: float | None = None
    """Share of the last sample period in which a kernel ran on the GPU; for `host`, the mean over its cores."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    """The device's own counter, since its driver was loaded."""
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    """Reasons for reduced clocks, comma-separated, by their NVML names; empty if clocks are not reduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token of a stored answer, as an engine that reads the answer sees it."""

    request_id: str
    position: int
    """0-based, in the answer."""
    token_id: int
    logprob: float
    """Natural logarithm, at temperature 1."""
    rank: int | None
    """1 for the engine's first choice; None if it is not among the likeliest."""
    top_token_ids: list[int]
    """The likeliest tokens, the first choice first."""
    top_logprobs: list[float]
    rest_share: float
    """Probability of all other tokens together."""
