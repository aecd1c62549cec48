"""RecoveryPolicy: decides how to replace a dead engine. A state machine of plain values; it opens and kills nothing.

After running out of memory, the next engine is smaller: at run time, first the window and max_num_seqs (halved), then
max_num_batched_tokens; at start, as vLLM's message asks. A share of memory that was lowered for room next to the KV
cache is raised again if the cache then does not fit. The context keeps its length once a request was answered, so that
all answers of a worker have the same limit. After another death, the next engine has the same size. If
that dies too before answering much, or nothing is left to reduce, the requests in flight are suspects: one of them
kills engines, and `engine.py` finds it by bisection. A start that fails for another reason than memory is final if no
request has been answered yet; later ones are tried again after a pause. Decisions depend only on the order of deaths,
so runs with the same deaths recover in the same way.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from assayline.engines.base import Changes
from assayline.engines.recovery.causes import Cause
from assayline.errors import Kind
from assayline.load.progress import LoadProgress
from assayline.records import Json
from assayline.spec.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an engine that cost memory. None: vLLM's own choice, known once it is open."""

    window_requests: int | None = None
    """Most requests in flight. Only this bounds memory that grows at run time; the others are vLLM's arguments."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    """Share of the device's memory, 0 to 1; on a CPU, of the machine's."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache; if given, vLLM ignores gpu_memory_utilization for it."""

    def resolve(self, details: Mapping[str, Json], window_requests: int | None) -> "Sizes":
        """Return these sizes, with vLLM's own choices filled in from an opened engine's details."""
        values = {name: details.get(name) if value is None else value for name, value in asdict(self).items()}
        return Sizes(**{**values, "window_requests": self.window_requests or window_requests})


def sizes_of(args: Mapping[str, Json], window_requests: int | None) -> Sizes:
    """Return the sizes that a spec's engine arguments give."""
    names = [name for name in Sizes.__dataclass_fields__ if name != "window_requests"]
    return Sizes(window_requests=window_requests, **{name: args.get(name) for name in names})


def choose_window(engine: EngineSpec, load: LoadProgress) -> int | None:
    """Return the most requests in flight, from load or spec. None: the engine's default; in an open loop, no limit."""
    if load.is_open_loop:
        return None
    return load.window_requests or (engine.batch_size if engine.mode == "barrier" else engine.max_concurrency)


def list_changes(before: Sizes, after: Sizes) -> Changes:
    """Return the differing sizes, as {name: {from, to}}."""
    old, new = asdict(before), asdict(after)
    return {name: {"from": old[name], "to": new[name]} for name in old if old[name] != new[name]}


def describe_changes(changes: Changes) -> str:
    """Return the changes as text for a message."""
    words = {"window_requests": "max concurrency"}
    return ", ".join(f"{words.get(name, name)} {change['from']} → {change['to']}" for name, change in changes.items())


MIN_BATCHED_TOKENS = 64
"""vLLM's CPU kernels crash on a first prefill of a few tokens, and smaller values save nothing."""

UTILIZATION_STEP = 0.05
MIN_UTILIZATION, MAX_UTILIZATION = 0.1, 0.97
DEFAULT_UTILIZATION = 0.92
DEFAULT_NUM_SEQS, DEFAULT_BATCHED_TOKENS = 256, 8192
"""For an engine that died before vLLM had chosen its sizes: those of a small GPU."""

FREE_SHARE_MARGIN = 0.98
"""Share of the memory free at start that is asked for."""

MAX_DEATHS = 50
"""Most engines in a row that die without an answer between them; halving everything takes about 30."""

MAX_STARTS = 12
"""Most engines in a row that fail to start."""

RESTART_PAUSES_S = (5.0, 30.0, 120.0)
"""Pauses before new starts, after a start that failed for another reason than memory."""

FRUITLESS_SEARCHES = 2
"""Searches in a row without a killing request, after which the engine itself is at fault."""

STEADY_WINDOWS = 8
"""Sustained success, in answered requests as a multiple of the window."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Open another engine; `changes` has its smaller or larger sizes, {} for the same."""

    changes: Changes
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Isolate:
    """No other size helps: find the request that kills engines among those in flight."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Give up, for this reason."""

    reason: str


class RecoveryPolicy:
    """The sizes of the open or next engine, and their changes after deaths and answers."""

    def __init__(
        self,
        sizes: Sizes,
        min_concurrency: int = 1,
        *,
        has_window: bool = True,
        restart_pauses_s: tuple[float, ...] = RESTART_PAUSES_S,
    ) -> None:
        """Start with `sizes`. `has_window` is False in an open loop, where only max_num_seqs bounds concurrency."""
        self.sizes = sizes
        self._min_concurrency = min_concurrency
        self._given = sizes
        self._has_window = has_window
        self._pauses_s = restart_pauses_s
        self._chunked_prefill = True
        self._chunks_logprobs = False
        self._failed_starts = self._strikes = self._answered = self._deaths = self._restarts = self._fruitless = 0
        self._has_answered = self._has_waited = False
        self._utilization_limit = MAX_UTILIZATION
        self._utilization_floor = MIN_UTILIZATION
        self._untaken_utilization: float | None = None
        self._least_cache_bytes = 1
        self._before_descent: Sizes | None = None
        self._suspects: frozenset[str] = frozenset()

    @property
    def window_requests(self) -> int:
        """Most requests in flight; in an open loop, most requests that run at once."""
        bound = self.sizes.window_requests if self._has_window else self.sizes.max_num_seqs
        return bound or DEFAULT_NUM_SEQS

    @property
    def changed_arguments(self) -> dict[str, Json]:
        """Arguments of vLLM that differ from the choices of the spec and vLLM."""
        changes = list_changes(replace(self._given, window_requests=None), replace(self.sizes, window_requests=None))
        return {name: change["to"] for name, change in changes.items()}

    def resolved(self, details: Mapping[str, Json], window_requests: int | None = None) -> None:
        """Note the sizes that vLLM has chosen for an engine, even if it then fails to start."""
        if not details:
            return
        cache = details.get("kv_cache_memory_bytes")
        if cache and self.sizes.kv_cache_memory_bytes == self._given.kv_cache_memory_bytes:  # chosen for each engine
            self.sizes, self._given = (replace(s, kv_cache_memory_bytes=cache) for s in (self.sizes, self._given))
        self.sizes = self.sizes.resolve(details, window_requests)
        self._given = self._given.resolve(details, window_requests)
        self._chunked_prefill = bool(details.get("enable_chunked_prefill", True))
        self._chunks_logprobs = details.get("model_runner") == "v2"
        self._least_cache_bytes = details.get("min_kv_cache_bytes") or self._least_cache_bytes

    def opened(self, details: Mapping[str, Json], window_requests: int | None) -> None:
        """Note that an engine has started, with these sizes."""
        self.resolved(details, window_requests)
        self._failed_starts = 0
        self._has_waited = False

    def answered(self) -> None:
        """Count an answered request."""
        self._answered += 1
        self._deaths = self._restarts = 0
        self._has_answered = True
        if self._answered >= STEADY_WINDOWS * self.window_requests:
            self._answered = self._strikes = self._fruitless = 0
            self._before_descent, self._suspects = None, frozenset()  # later deaths are unrelated

    def react(
        self, cause: Cause, in_flight: Iterable[str] = (), longest_prompt_tokens: int = 0, prompt_logprobs: bool = False
    ) -> Rebuild | Isolate | Stop:
        """Decide what follows a death.

        `in_flight` are the ids of the engine's requests, `prompt_logprobs` whether any of them asked for the
        log-probabilities of its prompt.
        """
        before = self.sizes
        suspects = frozenset(in_flight)
        self._answered = 0
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            return Stop(f"{MAX_DEATHS} engines in a row died without an answer between them")
        if cause.phase == "start":
            return self._react_to_start(cause, before)
        if not cause.is_memory:
            self._strikes += 1
            return Isolate() if self._strikes > 1 else Rebuild({})
        self._note_descent(before, suspects)
        if not self._reduce(cause, len(suspects), longest_prompt_tokens, prompt_logprobs):
            return Isolate()
        return Rebuild(list_changes(before, self.sizes))

    def isolated(self, request_id: str) -> Changes:
        """Note the request that kills engines. If it was in flight at every death, undo the reductions."""
        before = self.sizes
        if self._before_descent is not None and request_id in self._suspects:
            self.sizes = self._before_descent
            self._utilization_limit = MAX_UTILIZATION
        self._before_descent, self._suspects = None, frozenset()
        return list_changes(before, self.sizes)

    def searched(self, has_found: bool) -> Stop | None:
        """Note the end of a search. Returns Stop after too many without a killing request."""
        self._strikes = 0
        self._fruitless = 0 if has_found else self._fruitless + 1
        if self._fruitless < FRUITLESS_SEARCHES:
            return None
        return Stop("engines keep dying, and no single request is to blame")

    def lift_utilization(self) -> Changes:
        """Restore the first share of memory, as other processes have freed theirs."""
        before = self.sizes
        if self._untaken_utilization is not None:
            self.sizes = replace(self.sizes, gpu_memory_utilization=self._untaken_utilization)
            self._utilization_limit, self._untaken_utilization = MAX_UTILIZATION, None
        return list_changes(before, self.sizes)

    def _note_descent(self, before: Sizes, suspects: frozenset[str]) -> None:
        if self._before_descent is None:
            self._before_descent, self._suspects = before, suspects
        else:
            self._suspects &= suspects

    def _reduce(self, cause: Cause, in_flight: int, longest_prompt_tokens: int, prompt_logprobs: bool) -> bool:
        """Make the next engine smaller. False if nothing that helps is left."""
        if prompt_logprobs and not self._chunks_logprobs:  # their memory grows with the tokens of a step
            reduced = self._reduce_batched_tokens(longest_prompt_tokens) or self._reduce_window(in_flight)
        else:
            reduced = self._reduce_window(in_flight) or self._reduce_batched_tokens(longest_prompt_tokens)
        if not reduced:
            return False
        if cause.kind is Kind.DEVICE_OOM and self.sizes.kv_cache_memory_bytes is None:
            self._lower_utilization()  # the KV cache never shrinks by itself
        return True

    def _reduce_window(self, in_flight: int) -> bool:
        window = self.window_requests
        smaller = max(self._min_concurrency, min(window, in_flight or window) // 2)
        if smaller >= window:
            return False
        if not self._has_window:
            self.sizes = replace(self.sizes, max_num_seqs=smaller)
            return True
        num_seqs = self.sizes.max_num_seqs
        if num_seqs is not None:
            num_seqs = max(1, min(smaller, num_seqs // 2 if num_seqs <= window else smaller))
        self.sizes = replace(self.sizes, window_requests=smaller, max_num_seqs=num_seqs)
        return True

    def _reduce_batched_tokens(self, longest_prompt_tokens: int) -> bool:
        """Halve max_num_batched_tokens. At the smallest window, start from the longest prompt: no step has more."""
        tokens = self.sizes.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
        reach = min(tokens, longest_prompt_tokens) if self._at_min_window() and longest_prompt_tokens else tokens
        floor = max(MIN_BATCHED_TOKENS, self.sizes.max_num_seqs or 1)
        if not self._chunked_prefill or reach <= floor:
            return False
        self.sizes = replace(self.sizes, max_num_batched_tokens=max(floor, reach // 2))
        return True

    def _at_min_window(self) -> bool:
        return self.window_requests <= self._min_concurrency

    def _react_to_start(self, cause: Cause, before: Sizes) -> Rebuild | Stop:
        if not cause.is_memory or cause.kind is Kind.MODEL_TOO_LARGE:
            return self._start_again(cause)
        self._failed_starts += 1
        if self._failed_starts > MAX_STARTS:
            return Stop(f"{MAX_STARTS} engines in a row failed to start")
        if cause.kind is Kind.PROFILE_DISTURBED:
            return Rebuild({})
        if cause.has_passed and not self._has_waited:
            self._has_waited = True  # a second such message is not about another process's memory
            return Rebuild({})
        if not self._resize_start(cause):
            return Stop(f"nothing is left to change about it: {cause.summary}")
        return Rebuild(list_changes(before, self.sizes))

    def _start_again(self, cause: Cause) -> Rebuild | Stop:
        """Try the same start again if it may succeed: after answers, or once for an engine that was killed."""
        self._restarts += 1
        if self._has_answered and self._restarts <= len(self._pauses_s):
            return Rebuild({}, pause_s=self._pauses_s[self._restarts - 1])
        if self._has_answered:
            return Stop(f"{self._restarts} starts in a row failed, and not for memory")
        if cause.kind in (Kind.START_FAILED, Kind.MODEL_TOO_LARGE):
            return Stop("the first engine does not start, and another size does not help")
        return Rebuild({}) if self._restarts == 1 else Stop("the first engine does not start, and not for memory")

    def _resize_start(self, cause: Cause) -> bool:
        match cause.kind:
            case Kind.MEMORY_TAKEN:
                return self._fit_utilization(cause.free_share)
            case Kind.CACHE_TOO_LARGE:
                return self._shrink_cache(int(FREE_SHARE_MARGIN * (cause.free_bytes or 0)))
            case Kind.NO_CACHE_ROOM:
                return self._raise_utilization() or self._reduce_batched_tokens(0)
            case Kind.LENGTH_TOO_LONG:
                return self._raise_utilization() or (
                    self._reduce_batched_tokens(0) if self._has_answered else self._shorten(cause.fitting_model_len)
                )
            case Kind.START_OOM:
                return self._reduce_start_peak()
        return False

    def _reduce_start_peak(self) -> bool:
        """Halve the KV cache, down to one request of the full context, then sequences and tokens.

        Profiling, graphs and the sampler's warm-up all run with as many of these as are allowed.
        """
        sizes = self.sizes
        cache = sizes.kv_cache_memory_bytes
        if cache is not None and cache > self._least_cache_bytes:
            return self._shrink_cache(max(self._least_cache_bytes, cache // 2))
        num_seqs = sizes.max_num_seqs or DEFAULT_NUM_SEQS
        fewer = max(self._min_concurrency, num_seqs // 2)
        if fewer >= num_seqs:
            return False
        window = min(sizes.window_requests, fewer) if sizes.window_requests else None
        tokens = max(MIN_BATCHED_TOKENS, fewer, (sizes.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS) // 2)
        if not self._chunked_prefill and sizes.max_model_len:
            tokens = max(tokens, sizes.max_model_len)
        self.sizes = replace(sizes, max_num_seqs=fewer, window_requests=window, max_num_batched_tokens=tokens)
        if cache is None:
            self._lower_utilization()
        return True

    def _shrink_cache(self, smaller: int | None) -> bool:
        size = self.sizes.kv_cache_memory_bytes
        if not smaller or (size is not None and smaller >= size):
            return False
        self.sizes = replace(self.sizes, kv_cache_memory_bytes=smaller)
        return True

    def _fit_utilization(self, free_share: float | None) -> bool:
        fitting = math.floor(100 * FREE_SHARE_MARGIN * (free_share or 0.0)) / 100
        if not MIN_UTILIZATION <= fitting < self._utilization():
            return False
        if self._untaken_utilization is None:
            self._untaken_utilization = self._utilization()
        self.sizes = replace(self.sizes, gpu_memory_utilization=fitting)
        self._utilization_limit = fitting  # more was not available: no message may raise it again
        return True

    def _lower_utilization(self) -> None:
        """Leave room next to the KV cache, unless the cache has already been found not to fit then."""
        before = self._utilization()
        if (lower := round(before - UTILIZATION_STEP, 2)) >= self._utilization_floor:
            self.sizes = replace(self.sizes, gpu_memory_utilization=lower)
            self._utilization_limit = min(self._utilization_limit, before)

    def _raise_utilization(self) -> bool:
        higher = round(self._utilization() + UTILIZATION_STEP, 2)
        if higher > self._utilization_limit or self.sizes.kv_cache_memory_bytes is not None:
            return False
        self.sizes = replace(self.sizes, gpu_memory_utilization=higher)
        self._utilization_floor = higher
        return True

    def _utilization(self) -> float:
        return self.sizes.gpu_memory_utilization or DEFAULT_UTILIZATION

    def _shorten(self, fitting_model_len: int | None) -> bool:
        if not fitting_model_len or fitting_model_len >= (self.sizes.max_model_len or math.inf):
            return False
        self.sizes = replace(self.sizes, max_model_len=fitting_model_len)
        return True
