"""The interface of every engine: requests in, completions out, in the order in which they finish.

`generate` reads its input lazily and holds at most `window_requests` in flight. The input may yield None for "nothing
to send yet": the engine continues with what it has and asks again. An error of one request is a Completion with
`error_kind`; an exception from `generate` means that the engine itself died or was stopped.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from assayline.load.progress import LoadEnd
from assayline.records import Completion, Json, Request, TelemetrySample


class OpenedDetails(TypedDict, total=False):
    """Details of `opened`, as the engine reports them. Unknown values are left out or None.

    Our own server also reports all its arguments, by their names.
    """

    vllm_version: str | None
    torch_version: str | None
    device: str
    device_name: str | None
    driver_version: str | None
    """Version of the GPU's driver."""
    claimed_device: str
    """Name of the device that the worker claimed."""
    claimed_gpus: int
    """Number of GPUs in it."""
    kept_from: str
    """The run that loaded it, if the engine was taken over."""
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
    """Bytes of KV cache that one request of the full context takes."""
    tensor_parallel_size: int
    enable_prefix_caching: bool | None
    block_size_tokens: int | None
    kv_cache_tokens: int | None
    enforce_eager: bool
    model_runner: str
    """v1 or v2: vLLM's two implementations of a step."""
    has_flashinfer: bool
    is_compiled: bool
    """Whether torch.compile made the kernels."""
    engine_config_hash: str
    endpoint: str
    """completions or chat. This key and the following ones are set for servers only."""
    served_model: str
    served_root: str | None
    """The files behind that name, as a running server names them; of an adapter also those of its base."""
    takes_vllm_extensions: bool
    server: str
    """Its address, or a note that it is our own."""


class WarmedUpDetails(TypedDict):
    """Details of `warmed_up`."""

    prompt_tokens: int | None


class FailedDetails(TypedDict, total=False):
    """Details of `failed`; none if something other than an engine died."""

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
"""Details of `reduced` and `restored`: what changed, by the names of `recovery.sizes.Sizes`."""


class IsolatedDetails(TypedDict):
    """Details of `isolated`."""

    request_id: str


class LoadEndedDetails(TypedDict):
    """Details of `load_ended`."""

    reason: str
    """As in `load.progress.LoadEnd`."""
    sent_requests: int


def _ignore(_: object) -> None:
    """Do nothing: the default of an unused hook."""


@dataclass(frozen=True, slots=True)
class EngineHooks:
    """Callbacks of a worker: reports from its engine, and the request to stop. Called in the generating thread."""

    on_sample: Callable[[TelemetrySample], None] = _ignore
    on_log: Callable[[str], None] = _ignore
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] = _ignore
    """Gets warnings for the user about how requests were sent."""
    on_load_ended: Callable[[LoadEnd], None] = _ignore
    """Called once, with the reason why the rest of the input is not sent."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts about an opened engine, as it reports them."""

    window_requests: int | None
    """Most requests in flight; None in an open loop, which has no limit."""
    max_model_len: int | None
    """None if a server does not report it."""
    load_s: float
    """Seconds from the start of its process until it is ready."""
    details: OpenedDetails = field(default_factory=OpenedDetails)
    """Versions, device and resolved arguments, as stored with the event `opened`."""


STARTING = "starting the engine"
START_PHASES = {
    "Starting to load model": "loading weights",
    "Loading model from scratch": "loading weights",
    "Loading weights took": "initializing memory and kernels",
    "Warming up model for the compilation": "compiling",
    "for vLLM's torch.compile": "compiling",
    "torch.compile took": "initializing memory and kernels",
    "JIT kernel warmup starting": "warming up kernels",
    "DeepGEMM warmup": "warming up kernels",
    "FlashInfer autotune with": "autotuning kernels",
    "Autotuning FlashInfer": "autotuning kernels",
    "Capturing CUDA graphs": "capturing CUDA graphs",
    "init engine (": "finishing the start",
}
"""The phase of an engine's start that begins with a log line of vLLM, by a part of that line."""


def find_start_phase(line: str) -> str | None:
    """Return the phase that begins with a line of vLLM's log, or None."""
    return next((phase for part, phase in START_PHASES.items() if part in line), None)


class AnyEngine(Protocol):
    """An engine that is ready to generate."""

    @property
    def facts(self) -> EngineFacts:
        """Return what the engine resolved at start-up."""

    def warm_up(self, request: Request) -> float:
        """Generate once outside every metric, to compile and to cache the prompts' shared prefix. Returns seconds."""

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answer every request once, in completion order.

        Raises EngineDiedError when the engine dies (after yielding what had finished), EngineInterruptedError when
        `should_stop` returns True. Leaving the iterator early aborts what is in flight; the engine stays usable.
        """

    def close(self) -> None:
        """End the engine's processes and free their memory. Safe to call twice."""


class RequestSource:
    """An input that may have no request ready: `next` then returns None, and `exhausted` is True if that is final."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self._seen: Request | None = None
        self.exhausted = False

    def peek(self) -> Request | None:
        """Return the request that `next` will return, or None if none is ready."""
        self._seen = self._seen or self.next()
        return self._seen

    def next(self) -> Request | None:
        """Return the next request, or None if none is ready."""
        if self._seen is not None:
            seen, self._seen = self._seen, None
            return seen
        try:
            return next(self._requests)
        except StopIteration:
            self.exhausted = True
            return None
