"""What the evidence of a death comes to. The texts are those that vLLM 0.32 and torch 2.13 write."""

import signal
from pathlib import Path

import pytest

from assayline.engines.process import count_oom_kills
from assayline.engines.recovery.causes import classify
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
def test_kinds(death: Death, kind: Kind) -> None:
    cause = classify(death)
    assert cause.kind == kind and cause.phase == death.phase
    assert cause.is_memory == (kind not in {Kind.KILLED, Kind.OTHER, Kind.STALLED, Kind.START_FAILED})
    assert cause.summary and len(cause.summary) <= 500 and "\n" not in cause.summary


def test_the_numbers_of_vllms_messages_are_read() -> None:
    taken = classify(Death("start", None, "ValueError", TAKEN))
    assert taken.free_share == pytest.approx(20.5 / 79.11) and taken.free_bytes == int(20.5 * 2**30)
    assert classify(Death("start", None, "ValueError", TOO_LONG)).fitting_model_len == 128


def test_the_kernels_kills_are_those_of_the_own_control_group(tmp_path: Path) -> None:
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
