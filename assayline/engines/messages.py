"""The messages between a worker and its engine host, pickled over a socket pair that no other process can reach.

The worker opens the host with `Open`; the host answers `Resolved`, then `Opened`, `Refused` or `Failed`. After that
`Generate` goes one way and `Finished` the other, with one `Beat` per second, so that silence means death.
"""

import contextlib
import pickle
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from assayline.clock import RunClock
from assayline.engines.base import OpenedDetails
from assayline.engines.reasoning import thinks
from assayline.errors import DeviceError, ServerError, SpecError, Witness
from assayline.records import NOT_SENT, Completion, Json, Request, TelemetrySample
from assayline.spec.engine import EngineSpec, ReasoningSpec
from assayline.spec.prompts import MediaSpec

CHUNK_BYTES = 1 << 18
"""Most bytes that either end reads at once."""

_SIZE = struct.Struct("!Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An order for an engine: its spec, model and run. The worker writes it once.

    An open engine that gets another one works for that run from now on, with its clock and names. It answers `Opened`
    again, once counters and caches of the previous run are cleared.
    """

    engine: EngineSpec
    """The spec's. Its `args` include those of the model, and those of a recovery."""
    model: str
    """A folder or a hub id."""
    model_id: str = ""
    """Content identity of the model, and of its adapter."""
    adapter: str | None = None
    """Folder of the model's LoRA adapter."""
    served_root: str | None = None
    """The files behind a running server's name for the model in the run's earlier attempts."""
    vllm_version: str | None = None
    """Version of vLLM in the run's earlier attempts."""
    sampling: dict[str, Json] = field(default_factory=dict)
    """The spec's sampling parameters, checked before the model loads."""
    reasoning: ReasoningSpec | None = None
    """Set if the model thinks before it answers."""
    prefill: str | None = None
    """Text that begins every answer, at the prompt's end."""
    chat_kwargs: dict[str, Json] = field(default_factory=dict)
    """Variables of the chat template, if a server renders."""
    media: MediaSpec = field(default_factory=MediaSpec)
    """Conversion of images, audio and video before the model's own processing."""
    has_media: bool = False
    """Whether requests may have media."""
    clock: RunClock
    run_id: str = ""
    """Id of the run that this engine was opened for; shown when a later run takes it over."""
    worker: str = "worker-0"
    engine_generation: int = 0
    senders: int = 1
    """Number of processes that send to a running server."""

    def check_version(self, version: str | None) -> None:
        """Raise SpecError if another version of vLLM answered the run's earlier requests."""
        if None not in (version, self.vllm_version) and version != self.vllm_version:
            raise SpecError(
                f"vLLM is {version} now, and was {self.vllm_version} when the run began. hint: go back to that "
                "version, or begin a new run with --fresh."
            )

    def find_reasoning(self, request: Request) -> ReasoningSpec | None:
        """Return the tags of the reasoning that an answer to this request begins with; None if it has none."""
        return self.reasoning if thinks(self.reasoning, request.rendered, self.prefill) else None


@dataclass(frozen=True, slots=True)
class Resolved:
    """vLLM has chosen the sizes of the engine, which takes memory from now on."""

    sizes: OpenedDetails


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine is ready."""

    max_num_seqs: int | None
    """Sequences that run at once, in all replicas of the model; None if a server does not report them."""
    max_model_len: int | None
    """Tokens of prompt and answer; None if a server does not report them."""
    details: OpenedDetails = field(default_factory=OpenedDetails)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Generate this, throw it away, set the counters to 0; answered by `Warm`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Warm:
    """Warm-up is over; `error` is the reason if it failed."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """One request, with the window it runs under."""

    request: Request
    sent_at_s: float
    """When it left the worker; a streaming engine replaces it with the time of sending."""
    window_requests: int | None
    """Most requests in flight; None in an open loop."""
    due_at_s: float | None = None
    """When a streaming engine must send it; None: as soon as the window has room."""


@dataclass(frozen=True, slots=True)
class StopSending:
    """Send nothing more: waiting requests are answered `not_sent`, for this reason; those in flight finish."""

    reason: str


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Abort everything in flight; answered by `Aborted`, after which no earlier completion arrives."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """All requests are aborted; none is in flight."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Requests that one engine step finished, errors of single requests among them."""

    completions: list[Completion]


@dataclass(frozen=True, slots=True)
class Beat:
    """Sign of life, with the engine's counters."""

    sample: TelemetrySample


@dataclass(frozen=True, slots=True)
class Refused:
    """The order cannot be fulfilled. The error has a hint for the user."""

    error: SpecError | DeviceError | ServerError


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not start, or died: the name of the exception's type and its text, for people to read."""

    exception: str
    message: str
    witness: Witness = Witness.EXCEPTION


@dataclass(frozen=True, slots=True)
class Close:
    """Shut down and exit."""


def unsent(
    request_id: str,
    worker: str,
    engine_generation: int,
    reason: str,
    error_kind: str = NOT_SENT,
    prompt_tokens: int | None = None,
) -> Completion:
    """Return the row of a request that was never sent, or was lost with an engine or a worker."""
    return Completion(
        request_id=request_id,
        worker=worker,
        engine_generation=engine_generation,
        window_requests=None,
        prompt_tokens=prompt_tokens,
        error_kind=error_kind,
        error_message=reason,
    )


class Channel:
    """One end of a socket pair. Messages cross it whole, each as its size and its pickle; sending does not wait."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._arrived, self._unsent = bytearray(), bytearray()
        self._messages: deque[Any] = deque()

    def send(self, message: Any) -> None:
        """Send what the socket takes now; later calls send the rest. Raises OSError if the other end is gone."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._unsent += _SIZE.pack(len(content)) + content
        self._flush()

    def receive(self, timeout_s: float) -> Any | None:
        """Return the next message, or None after `timeout_s`. Raises EOFError or OSError if the other end is gone."""
        left_s, deadline = timeout_s, time.monotonic() + timeout_s
        while not self._messages and left_s >= 0:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            if not poll.poll(left_s * 1000):
                return None
            self._read()
            with contextlib.suppress(OSError):  # it is gone: reading raises, after its last messages
                self._flush()
            left_s = deadline - time.monotonic()
        return self._messages.popleft() if self._messages else None

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        self._socket.close()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                count = self._socket.send(self._unsent)
                del self._unsent[:count]

    def _read(self) -> bool:
        """Read once, and keep the messages that are complete. Returns whether anything came."""
        try:
            content = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not content:
            raise EOFError
        self._arrived += content
        end = 0
        while len(self._arrived) >= (begin := end + _SIZE.size):
            size = _SIZE.unpack_from(self._arrived, end)[0]
            if len(self._arrived) < begin + size:
                break
            end = begin + size
            self._messages.append(pickle.loads(self._arrived[begin:end]))
        del self._arrived[:end]
        return True
