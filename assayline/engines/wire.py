"""The messages between a worker and its engine host, pickled over a socket pair that nobody else can reach.

The worker opens the host with `Open`; the host answers `Opened` or `Failed`. After that `Generate` goes one way and
`Finished` the other, with a `Beat` a second so that silence means death.
"""

from dataclasses import dataclass, field

from assayline.answer_spec import ReasoningSpec
from assayline.clock import RunClock
from assayline.records import Completion, Json, Request, TelemetrySample
from assayline.server_spec import ServerSpec


@dataclass(frozen=True, slots=True)
class Open:
    """How to build the engine. `model` is a folder or hub id, `args` are vLLM's EngineArgs."""

    model: str
    args: dict[str, Json]
    sampling: dict[str, Json]
    """The spec's sampling parameters, checked before the model loads."""
    device: str
    clock: RunClock
    worker: str
    engine_generation: int
    record_token_times: bool
    reasoning: ReasoningSpec | None = None
    """Set where the model thinks before it answers."""
    backend: str = "offline"
    """offline, async or server, as in the spec."""
    server: ServerSpec | None = None
    """Which endpoint answers; backend server alone."""
    chat_kwargs: dict[str, Json] = field(default_factory=dict)
    """Variables of the chat template, where a server renders."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Work for another run from now on: the same engine, with the clock and the names of this order.

    Answered by `Opened`, once nothing is left of the run before: no counters, and no cached prefixes.
    """

    order: Open


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine is ready."""

    max_num_seqs: int | None
    """Sequences that run at once; None of a server that does not say."""
    max_model_len: int | None
    """Tokens of prompt and answer; None of a server that does not say."""
    details: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Generate this, throw it away, set the counters to 0; answered by `Warm`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Warm:
    """Warm-up is over; `error` says why it failed, where it did."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """One request, with the window it runs under."""

    request: Request
    sent_at_s: float
    """When it left the worker; a streaming engine stamps anew when it really sends."""
    window_requests: int | None
    """Most requests in flight; None in an open loop."""
    due_at_s: float | None = None
    """When a streaming engine is to send it; None: as soon as the window has room."""


@dataclass(frozen=True, slots=True)
class StopSending:
    """Send nothing more: every request that waits is answered `not_sent`, for this reason. What is sent finishes."""

    reason: str


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Forget everything in flight; answered by `Aborted`, after which no earlier completion arrives."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing is in flight any more."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Requests that one engine step finished, errors of single requests among them."""

    completions: list[Completion]


@dataclass(frozen=True, slots=True)
class Beat:
    """Still alive, and how far."""

    sample: TelemetrySample


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not start, or died: the exception's type and text as the host saw them."""

    kind: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Close:
    """Shut down and exit."""
