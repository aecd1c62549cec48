"""What every engine is: requests in, completions out, in the order in which they finish.

`generate` reads its input lazily and holds at most `window_requests` in flight. The input may yield None for "nothing
to send yet": the engine continues with what it has and asks again. An error of one request is a Completion with
`error_kind`; an exception from `generate` means that the engine itself is gone, or was told to stop.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from assayline.load.course import LoadEnd
from assayline.records import Completion, Json, Request, TelemetrySample


class OpenedDetails(TypedDict, total=False):
    """Details of `opened`: what an engine says of itself. What it does not know is left out or None.

    A server of our own tells all its arguments beside these, by their names.
    """

    vllm_version: str | None
    torch_version: str | None
    device: str
    device_name: str | None
    driver_version: str | None
    """Of the GPU's driver."""
    claimed_device: str
    """The device as the worker holds it."""
    claimed_gpus: int
    """How many GPUs that is."""
    kept_from: str
    """The run that loaded it, where an engine was taken over."""
    window_requests: int | None
    dtype: str
    quantization: str | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    enable_chunked_prefill: bool | None
    gpu_memory_utilization: float | None
    kv_cache_memory_bytes: int | None
    min_kv_cache_bytes: int | None
    """What one request of the full context takes of it."""
    tensor_parallel_size: int
    enable_prefix_caching: bool | None
    block_size_tokens: int | None
    kv_cache_tokens: int | None
    enforce_eager: bool
    engine_config_hash: str
    endpoint: str
    """completions or chat; this and what follows, of a server."""
    served_model: str
    takes_vllm_extensions: bool
    server: str
    """Its address, or that it is ours."""


class WarmedUpDetails(TypedDict):
    """Details of `warmed_up`."""

    prompt_tokens: int | None


class FailedDetails(TypedDict, total=False):
    """Details of `failed`; none where it was no engine that died."""

    kind: str
    is_memory: bool
    phase: str
    """start or run."""
    summary: str
    exit_code: int | None
    in_flight_requests: int
    window_requests: int | None


Change = TypedDict("Change", {"from": Json, "to": Json})
Changes = dict[str, Change]
"""Details of `reduced`, `restored` and `grown`: what changed, by the names of `recovery.sizes.Sizes`."""


class IsolatedDetails(TypedDict):
    """Details of `isolated`."""

    request_id: str


class LoadEndedDetails(TypedDict):
    """Details of `load_ended`."""

    reason: str
    """As in `load.course.LoadEnd`."""
    sent_requests: int


def _ignore(_: object) -> None:
    """Return a hook that nobody asked for."""


@dataclass(frozen=True, slots=True)
class EngineHooks:
    """What a worker wants to hear from its engine, and how it stops it. Called in the thread that generates."""

    on_sample: Callable[[TelemetrySample], None] = _ignore
    on_log: Callable[[str], None] = _ignore
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] = _ignore
    """Gets what a person should know of how requests were sent, in sentences."""
    on_load_ended: Callable[[LoadEnd], None] = _ignore
    """Hears, once, why the rest of the input is not sent."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an opened engine says of itself."""

    window_requests: int | None
    """Most requests in flight; None in an open loop, which knows no limit."""
    max_model_len: int | None
    """None of a server that does not say."""
    load_s: float
    """From the start of its process to ready."""
    details: OpenedDetails = field(default_factory=OpenedDetails)
    """Versions, device and resolved arguments, as stored with the event `opened`."""


STARTING = "starting the engine"
START_PHASES = {
    "Starting to load model": "loading weights",
    "Loading weights took": "initializing memory and kernels",
    "Warming up model for the compilation": "compiling",
    "for vLLM's torch.compile": "compiling",
    "torch.compile took": "initializing memory and kernels",
    "Capturing CUDA graphs": "capturing CUDA graphs",
    "init engine (": "finishing the start",
}
"""The phase of an engine's start that begins with a log line of vLLM, by a part of that line."""


def find_start_phase(line: str) -> str | None:
    """Return the phase that begins with a line of vLLM's log, or None."""
    return next((phase for part, phase in START_PHASES.items() if part in line), None)


class Engine(Protocol):
    """An engine that is ready to generate."""

    @property
    def facts(self) -> EngineFacts:
        """What the engine resolved at start-up."""

    def set_window(self, window_requests: int) -> None:
        """Requests in flight from now on."""

    def warm_up(self, request: Request) -> float:
        """Generate once outside every metric: compiles, primes the prompts' shared prefix. Returns seconds taken."""

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answer every request once, in completion order.

        Raises EngineDiedError when the engine dies (what had finished was yielded before), EngineInterruptedError when
        `should_stop` says so. Leaving the iterator early aborts what is in flight; the engine stays usable.
        """

    def close(self) -> None:
        """End the engine's processes and returns their memory. Safe to call twice."""


class Feed:
    """An input that may have nothing now: `next` is None then, and `exhausted` says whether that is final."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self._seen: Request | None = None
        self.exhausted = False

    def peek(self) -> Request | None:
        """What `next` will give, if there is something at this moment."""
        self._seen = self._seen or self.next()
        return self._seen

    def next(self) -> Request | None:
        """Return the next request, if there is one at this moment."""
        if self._seen is not None:
            seen, self._seen = self._seen, None
            return seen
        try:
            return next(self._requests)
        except StopIteration:
            self.exhausted = True
            return None
