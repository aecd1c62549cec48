"""Classify why an engine died or did not start, from its exception, its log and its exit code.

With vLLM in process, the exception arrives with its true type. With vLLM's own processes, it only reports that the core
is dead, so the log is read next, and the exit code last. The texts are those of vLLM 0.26 to 0.33 and of torch.
"""

import re
import signal
from dataclasses import dataclass

from assayline.errors import MEMORY_KINDS, Death, Kind, Witness

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Cause:
    """The conclusion from the evidence, with the numbers in vLLM's message."""

    kind: Kind
    phase: str
    summary: str
    """The deciding line of the evidence, for the user."""
    free_share: float | None = None
    """Free memory over all memory of the device, 0 to 1."""
    free_bytes: int | None = None
    wanted_bytes: int | None = None
    """Memory that the engine wanted: its share of the device's."""
    has_passed: bool = False
    """Whether the missing memory was freed while the worker waited for it."""
    fitting_model_len: int | None = None
    """The context length in tokens that would fit, according to vLLM."""

    @property
    def is_memory(self) -> bool:
        """Return True if another size of engine can help."""
        return self.kind in MEMORY_KINDS


DEVICE_MEMORY = (
    r"OutOfMemoryError|(?i:cuda|hip|xpu)[^\n]{0,40}out of memory"
    r"|(CU|HIP)(BLAS|SOLVER|SPARSE|RAND|FFT)_(STATUS_)?ALLOC(ATION)?_FAILED"
    r"|(CU|HIP)BLAS_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR) when calling `?(cu|hip)blas(Lt)?Create"
    r"|CUDNN_STATUS_\w*ALLOC\w*_FAILED|Buffer overflow when allocating memory for|nvshmem malloc failed"
)
"""An allocation on the device that failed: torch, Triton, NCCL, CUDA's libraries (cuBLAS names the lack of room for its
handles in two more ways), cuDNN, FlashInfer's workspace, NVSHMEM."""

HOST_MEMORY = (
    r"can't allocate memory|[Cc]annot allocate memory(?! in static TLS)|MemoryError|std::bad_alloc"
    r"|could not (create|execute) a (primitive(?! descriptor)|memory object)"
    r"|[Mm]emory allocation failed|allocation of \d+ bytes failed|[Ff]ailed to allocate \d+ bytes|malloc failed in "
    r"|aligned_alloc failed|(?i:out of memory allocating|(error: |C10 )out of memory|oneMKL [^\n]*not enough memory)"
    r"|<jemalloc>: [^\n]*(Allocation failed|out of memory)|unable to allocate shared memory"
)
"""A failed allocation in main memory: torch, Python, C++; oneDNN; Rust, MKL, XNNPACK, OpenBLAS; vLLM's kernels, OpenMP,
ZeroMQ, LLVM; jemalloc; torch's shared memory."""

WEIGHTS_MEMORY = (
    r"Failed to load model - not enough (GPU )?memory.*"
    r"|unable to mmap \d+ bytes from file.*"
    rf"|, in load_model\b(.*\n){{1,60}}?.*({DEVICE_MEMORY}|{HOST_MEMORY}).*"
)
"""The weights did not fit; the last form is a traceback through vLLM's loader."""

START_PATTERNS: tuple[tuple[Kind, str], ...] = (
    (Kind.MEMORY_TAKEN, r"(Free|Available) memory on .* on startup is less than desired .* memory utilization.*"),
    (Kind.CACHE_TOO_LARGE, r"Available memory on .* on kv cache allocation is less than requested memory.*"),
    (Kind.NO_CACHE_ROOM, r"No available memory for the cache blocks.*|Cannot auto-fit max_model_len.*"),
    (Kind.LENGTH_TOO_LONG, r"To serve at least one request with the model.s max seq len.*"),
    (Kind.PROFILE_DISTURBED, r"Error in memory profiling.*"),
    (Kind.MODEL_TOO_LARGE, WEIGHTS_MEMORY),
    (Kind.START_OOM, rf".*({DEVICE_MEMORY}|{HOST_MEMORY}).*"),
)
"""In order: the first match decides, since several texts contain the words of a later one."""

RUN_PATTERNS: tuple[tuple[Kind, str], ...] = (
    (Kind.DEVICE_OOM, rf".*({DEVICE_MEMORY}).*"),
    (Kind.HOST_OOM, rf".*({HOST_MEMORY}).*"),
)

INDIRECT = re.compile(r"RPC call to \w+ timed out|Executor failed|cancelled|NCCL error: unhandled")
"""Exceptions of a rank that waits for another, or of a library that logs the reason: the log has the cause."""

CAUSE_LINE = re.compile(
    "|".join([*(f"({pattern})" for _, pattern in START_PATTERNS[:-2]), DEVICE_MEMORY, HOST_MEMORY])
    + r"|Failed to load model - not enough|unable to mmap|, in load_model\b|estimated maximum model length is"
    r"|exit code: -9|WorkerProc hit an exception"
)
"""Matches every log line that `classify` may need, at any distance from the log's end."""

_SHARE = re.compile(r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)")
_WANTED = re.compile(r"memory utilization \([\d.]+, (?P<wanted>[\d.]+) GiB\)")
_LENGTH = re.compile(r"estimated maximum model length is (?P<length>\d+)")


def classify(death: Death) -> Cause:
    """Return the cause of a death. An exception with a cause takes precedence over the log, the log over exit codes."""
    said = f"{death.exception}: {death.message}"
    if death.phase == "start":
        texts, patterns = [f"{said}\n{death.log}"], START_PATTERNS  # only the log may name the step
    else:
        texts, patterns = [said] if _speaks(death) else [death.log], RUN_PATTERNS
    for text in texts:
        for kind, pattern in patterns:
            if found := re.search(pattern, text):
                return _with_numbers(kind, death.phase, found.group(0).strip().splitlines()[-1].strip(), text)
    return Cause(_kind_by_exit(death), death.phase, _first_line(death))


def _speaks(death: Death) -> bool:
    """Return whether the exception is the cause itself, and not a report that an engine process is gone."""
    is_named = death.witness is Witness.EXCEPTION and bool(death.exception)
    return is_named and not INDIRECT.search(death.message)


def _kind_by_exit(death: Death) -> Kind:
    if death.exit_code == -signal.SIGKILL or "exit code: -9" in death.log:
        if death.oom_kills == 0:
            return Kind.KILLED
        return Kind.START_OOM if death.phase == "start" else Kind.HOST_OOM
    if death.witness is Witness.SILENCE:
        return Kind.STALLED
    return Kind.START_FAILED if death.phase == "start" else Kind.OTHER


def _with_numbers(kind: Kind, phase: str, line: str, text: str) -> Cause:
    share, wanted, length = _SHARE.search(line), _WANTED.search(line), _LENGTH.search(text)
    free = float(share["free"]) if share else None
    return Cause(
        kind,
        phase,
        line[:500],
        free_share=None if share is None or free is None else free / float(share["total"]),
        free_bytes=None if free is None else int(free * GIB),
        wanted_bytes=int(float(wanted["wanted"]) * GIB) if wanted else None,
        fitting_model_len=int(length["length"]) if length else None,
    )


def _first_line(death: Death) -> str:
    if death.exception:
        return f"{death.exception}: {death.message}".splitlines()[0][:500]
    if death.message:
        return death.message.splitlines()[0][:500]
    code = death.exit_code
    if code is None:
        return "its process is unreachable"
    return f"its process died of {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
