"""Causes of crashes, from their evidence. The texts are those of vLLM 0.32 and torch 2.13."""

import signal
import subprocess
import sys

import pytest

from assayline.engines.process import count_oom_kills
from assayline.engines.recovery.causes import CAUSE_LINE, classify
from assayline.errors import Death, Kind, Witness

CPU_OOM = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "524823552 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA_OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.11 GiB in all."
TAKEN = (
    "Free memory on device cuda:0 (20.5/79.11 GiB) on startup is less than desired GPU memory utilization (0.92, 72.78 "
    "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
TOO_LONG = (
    "To serve at least one request with the model's max seq len (8192), (0.06 GiB KV cache is needed, which is larger "
    "than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated maximum model length "
    "is 128. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
LOST = "EngineCore encountered an issue. See stack trace (above) for the root cause."
FAILED_START = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


def lost(log: str, oom_kills: int = 0) -> Death:
    """vLLM's word that its engine core's process is gone."""
    return Death("run", 1, "EngineDeadError", LOST, log, oom_kills, Witness.LOG)


@pytest.mark.parametrize(
    ("death", "kind"),
    [
        (Death("run", None, "OutOfMemoryError", CUDA_OOM), Kind.DEVICE_OOM),
        (Death("run", None, "AcceleratorError", "CUDA error: out of memory"), Kind.DEVICE_OOM),
        (Death("run", None, "RuntimeError", "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), Kind.DEVICE_OOM),
        (Death("run", None, "RuntimeError", CPU_OOM), Kind.HOST_OOM),
        (Death("run", None, "MemoryError", ""), Kind.HOST_OOM),
        (Death("run", -6, log="terminate called after throwing an instance of 'std::bad_alloc'"), Kind.HOST_OOM),
        # With vLLM's own processes the exception says nothing, the log does.
        (lost(f"ERROR RuntimeError: {CPU_OOM}\nlater lines"), Kind.HOST_OOM),
        (lost(f"torch.OutOfMemoryError: {CUDA_OOM}"), Kind.DEVICE_OOM),
        (lost("AssertionError"), Kind.OTHER),
        # An exception that names its cause counts before whatever the log has from earlier.
        (Death("run", None, "ValueError", "bad block", log=f"recovered from {CUDA_OOM}"), Kind.OTHER),
        (Death("run", -signal.SIGKILL, oom_kills=1), Kind.HOST_OOM),
        (Death("run", -signal.SIGKILL), Kind.KILLED),
        (lost("EngineCore (exit code: -9)", oom_kills=1), Kind.HOST_OOM),
        (Death("run", -signal.SIGSEGV), Kind.OTHER),
        (Death("run", -signal.SIGILL), Kind.OTHER),
        (Death("run", message="no step for 600 s", witness=Witness.SILENCE), Kind.STALLED),
        (Death("start", None, "ValueError", TAKEN), Kind.MEMORY_TAKEN),
        (Death("start", None, "ValueError", TAKEN.replace("Free memory on device cuda:0", "Available memory on node 0")
               .replace("desired GPU", "desired CPU")), Kind.MEMORY_TAKEN),
        (Death("start", None, "ValueError", "Available memory on node 0 (17.0/23.5 GiB) on kv cache allocation is less "
               "than requested memory for kv (200.0 GiB)."), Kind.CACHE_TOO_LARGE),
        (Death("start", None, "ValueError", "No available memory for the cache blocks. Try increasing "
               "`gpu_memory_utilization` when initializing the engine."), Kind.NO_CACHE_ROOM),
        (Death("start", None, "ValueError", TOO_LONG), Kind.LENGTH_TOO_LONG),
        (Death("start", 1, "RuntimeError", FAILED_START, log=f"ValueError: {TOO_LONG}"), Kind.LENGTH_TOO_LONG),
        (Death("start", None, "OutOfMemoryError", CUDA_OOM, log="ERROR Failed to load model - not enough GPU memory. "
               "Try lowering --gpu-memory-utilization"), Kind.MODEL_TOO_LARGE),
        (Death("start", None, "RuntimeError", "CUDA out of memory occurred when warming up sampler with 1024 dummy "
               "requests. Please try lowering `max_num_seqs`"), Kind.START_OOM),
        (Death("start", None, "AssertionError", "Error in memory profiling. Initial free memory 70.1 GiB, current free "
               "memory 75.2 GiB."), Kind.PROFILE_DISTURBED),
        (Death("start", -signal.SIGKILL, oom_kills=2), Kind.START_OOM),
        (Death("start", None, "ValidationError", "User-specified max_model_len (100000) is greater than the derived "
               "max_model_len (max_position_embeddings=1024)"), Kind.START_FAILED),
        (Death("start", 1), Kind.START_FAILED),
    ],
)  # fmt: skip
def test_kinds(death, kind):
    cause = classify(death)
    assert cause.kind == kind and cause.phase == death.phase
    assert cause.is_memory == (kind not in {Kind.KILLED, Kind.OTHER, Kind.STALLED, Kind.START_FAILED})
    assert cause.summary and len(cause.summary) <= 500 and "\n" not in cause.summary


DEVICE_TEXTS = {
    # wtdcode/vllm-backport#18, on four A100
    "triton": "Triton Error [CUDA]: out of memory",
    # vllm-project/vllm#19865
    "nccl": "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.26.2\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'",
    # vllm-project/vllm#18446
    "old nccl": "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'",
    # QwenLM/Qwen#120
    "cublas": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    # vllm-project/vllm#18335
    "cublas on a rank": "Worker failed with error 'CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling "
    "`cublasCreate(handle)`', please check the stack trace above for the root cause",
    # torch's c10/cuda/driver_api.h, with expandable segments
    "driver": "CUDA driver error: out of memory",
    # vllm-project/vllm#12981 and verl-project/verl#302
    "sleep mode": "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
    "cublasLt": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate(&handle)`",
    "cusolver": "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cusparse": "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
    "curand": "CURAND_STATUS_ALLOCATION_FAILED",
    "cufft": "cuFFT error: CUFFT_ALLOC_FAILED",
    "nvshmem": "nvshmem malloc failed",
    # KupynOrest/DeblurGAN#128
    "cudnn": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "hip": "HIP error: out of memory\nHIP kernel errors might be asynchronously reported at some other API call",
    # torch's text for hipBLAS is the one for cuBLAS with the names replaced
    "hipblas": "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    # vllm-project/vllm#40023
    "flashinfer": "Error in function 'aligned_alloc' at /workspace/include/flashinfer/allocator.h:49:\n  "
    "Buffer overflow when allocating memory for batch_prefill_tmp_v\n  with size 536346624 and alignment 16",
}
MMAP = "unable to mmap 269060552 bytes from file </models/smollm2/model.safetensors>: Cannot allocate memory (12)"
LOADER = """Traceback (most recent call last):
  File "/site-packages/vllm/v1/worker/gpu_worker.py", line 380, in load_model
    self.model_runner.load_model(load_dummy_weights=dummy_weights)
  File "/site-packages/vllm/model_executor/layers/linear.py", line 170, in create_weights
    torch.empty(
"""


@pytest.mark.parametrize("text", DEVICE_TEXTS.values(), ids=DEVICE_TEXTS.keys())
def test_classify_finds_device_memory(text):
    assert classify(Death("run", None, "RuntimeError", text)).kind is Kind.DEVICE_OOM
    assert classify(Death("start", None, "RuntimeError", text)).kind is Kind.START_OOM
    assert classify(lost(f"ERROR 08-02 23:01:30 {text}\nlater")).kind is Kind.DEVICE_OOM
    assert any(CAUSE_LINE.search(line) for line in text.splitlines())


LAST_WORDS = {
    # oneDNN, of a bfloat16 model with too little memory
    "primitive": "could not create a primitive",
    "memory object": "could not create a memory object",
    "execution": "could not execute a primitive",
    "Rust, as it grows a list": "memory allocation failed because the memory allocator returned an error",
    "vLLM's kernels": "ScratchPadManager: aligned_alloc failed for size 536870912",
    "torch's core": "C10 Out of Memory. Trying to allocate 268435456",
    "torch's shared memory": "unable to allocate shared memory(shm) for file </torch_12_34_0>: Cannot allocate (12)",
    "OpenMP": "libgomp: Out of memory allocating 268435456 bytes",
    "OpenBLAS": "OpenBLAS: malloc failed in gemm_driver",
    "MKL": "Intel oneMKL ScaLAPACK fatal error: cannot allocate memory, aborted.",
    "MKL's transforms": "Intel oneMKL DFTI ERROR: Not enough memory to allocate",
    "PARDISO": "*** Error in PARDISO memory allocation: FACTORIZE_SOLVING_LU_DATA, allocation of 99 bytes failed",
    "XNNPACK": "failed to allocate 268435456 bytes for packed weights",
    "ZeroMQ": "FATAL ERROR: OUT OF MEMORY (src/msg.cpp:133)",
    "LLVM": "LLVM ERROR: out of memory",
    "jemalloc": "<jemalloc>: Allocation failed and opt.experimental_infallible_new is true. Aborting.",
}
"""What the libraries of an engine's process print, as found in their files."""


@pytest.mark.parametrize("text", LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_classify_knows_the_last_words_of_each_allocator(text):
    for phase, kind in (("run", Kind.HOST_OOM), ("start", Kind.START_OOM)):
        assert classify(Death(phase, None, "RuntimeError", text)).kind is kind
        assert classify(Death(phase, -signal.SIGABRT, log=f"INFO loading\n{text}\nlater")).kind is kind
    assert CAUSE_LINE.search(text)


LIMITED = """
import resource
def limit():
    size = int(open("/proc/self/statm").read().split()[0]) * 4096 + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
"""


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("code", "signal_or_code", "words"),
    [
        ("import tokenizers; text = 'x' * 2**29; limit(); tokenizers.AddedToken(text)", -6, "memory allocation of"),
        ("import xgrammar; text = 'root ::= ' + '\"a\" ' * 2**24; limit(); xgrammar.Grammar.from_ebnf(text)", 1, "bad"),
        ("import ctypes; limit(); ctypes.CDLL('libstdc++.so.6')._Znwm(ctypes.c_size_t(2**31))", -6, "std::bad_alloc"),
        ("import numpy; limit(); numpy.ones(2**28)", 1, "_ArrayMemoryError"),
        ("import torch; limit(); torch.zeros(2**28)", 1, "can't allocate memory"),
        ("import pyarrow; limit(); pyarrow.allocate_buffer(2**31)", 1, "ArrowMemoryError"),
    ],
)
def test_classify_knows_a_process_that_died_of_too_little_memory(code, signal_or_code, words):
    died = subprocess.run([sys.executable, "-c", LIMITED + code], capture_output=True, text=True, check=False)
    assert died.returncode == signal_or_code and words in died.stderr
    assert classify(Death("run", died.returncode, log=died.stderr)).kind is Kind.HOST_OOM
    assert any(CAUSE_LINE.search(line) for line in died.stderr.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        # A shape that oneDNN has no kernel for.
        "could not create a primitive descriptor for the matmul primitive. Run workload with environment variable "
        "ONEDNN_VERBOSE=all to get additional diagnostic information.",
        "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx(handle, ...)`",
        "CUDA error: an illegal memory access was encountered",
        "libgomp-d22c30c5.so.1: cannot allocate memory in static TLS block",
    ],
)
def test_classify_takes_no_other_failure_for_memory(text):
    assert classify(Death("run", None, "RuntimeError", text)).kind is Kind.OTHER


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        # vllm 0.32, v1/executor/multiproc_executor.py: the rank that replies waits for the one that failed
        ("TimeoutError", "RPC call to execute_model timed out."),
        ("TimeoutError", "RPC call to sample_tokens timed out."),
        ("RuntimeError", "Executor failed."),
        ("RuntimeError", "cancelled"),
        # vllm-project/vllm#21661: pynccl leaves the reason to NCCL's log
        ("RuntimeError", "NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
    ],
)
def test_classify_reads_the_log_when_the_exception_names_no_cause(exception, message):
    reasons = (
        f"torch.OutOfMemoryError: {CUDA_OOM}",
        "host:213:213 [1] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'",
    )
    for reason in reasons:
        assert classify(Death("run", None, exception, message, log=reason)).kind is Kind.DEVICE_OOM
        assert CAUSE_LINE.search(reason)
    assert classify(Death("run", None, exception, message, log="")).kind is Kind.OTHER


def test_classify_finds_weights_that_do_not_fit():
    mapped = classify(Death("start", None, "RuntimeError", MMAP))
    assert mapped.kind is Kind.MODEL_TOO_LARGE and mapped.summary == MMAP
    for text in (CPU_OOM, CUDA_OOM, *DEVICE_TEXTS.values()):
        loading = classify(Death("start", None, "RuntimeError", text, log=f"{LOADER}RuntimeError: {text}"))
        assert loading.kind is Kind.MODEL_TOO_LARGE, text
    caching = LOADER.replace("in load_model", "in initialize_kv_cache")
    assert classify(Death("start", None, "RuntimeError", CPU_OOM, log=caching)).kind is Kind.START_OOM


@pytest.mark.parametrize(
    "text",
    [CUDA_OOM, CPU_OOM, TAKEN, TOO_LONG, MMAP, LOADER.splitlines()[1], "std::bad_alloc", "EngineCore (exit code: -9)",
     "ERROR Failed to load model - not enough GPU memory.", "Error in memory profiling. Initial free memory 70.1 GiB",
     "(Worker_TP1 pid=4) ERROR WorkerProc hit an exception."],
)  # fmt: skip
def test_cause_line_matches_each_line_that_classify_reads(text):
    assert CAUSE_LINE.search(text)
    assert not CAUSE_LINE.search("INFO 08-02 Loading safetensors checkpoint shards: 100% Completed | 1/1")


def test_the_numbers_of_vllms_messages_are_read():
    taken = classify(Death("start", None, "ValueError", TAKEN))
    assert taken.wanted_bytes == int(72.78 * 2**30)
    assert taken.free_share == pytest.approx(20.5 / 79.11) and taken.free_bytes == int(20.5 * 2**30)
    assert classify(Death("start", None, "ValueError", TOO_LONG)).fitting_model_len == 128


def test_the_kernels_kills_are_those_of_the_own_control_group(tmp_path):
    for name, text in {
        "proc/vmstat": "pgfault 1\noom_kill 40\n",
        "proc/self/cgroup": "4:memory:/a/b\n0::/\n",
        "sys/fs/cgroup/memory/a/b/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path) == 3
    (tmp_path / "proc/self/cgroup").write_text("0::/a.slice\n")
    (tmp_path / "sys/fs/cgroup/a.slice").mkdir()
    (tmp_path / "sys/fs/cgroup/a.slice/memory.events").write_text("low 0\noom 9\noom_kill 5\noom_group_kill 0\n")
    assert count_oom_kills(tmp_path) == 5
    (tmp_path / "proc/self/cgroup").unlink()
    assert count_oom_kills(tmp_path) == 40
    assert count_oom_kills(tmp_path / "nowhere") == 0
