"""(c) SIGKILL an engine in the middle of a run, then the process that drives the run; then resume the run.

Measured with the engine core in the engine's process, and in one of vLLM's, which is then the one killed. No process of
a session may be left, the device's memory must be free again, and every request must be answered once.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable

import psutil

from assayline.engines.devices.nvidia import read_free_bytes
from benchmarks.gpu.runs import list_parts, start_run
from benchmarks.gpu.setup import PROCESSES, Row, Setup, Shape, Tell
from benchmarks.process_tree import find_host

LIMIT_S = 300.0
POLL_S = 0.02
BACK_BYTES = 2**29
"""Memory counts as freed if at most this much is missing."""

ANSWER_TOKENS = 256


def measure_kills(setup: Setup, tell: Tell) -> None:
    """Record one row per placement of the engine core."""
    for processes in PROCESSES:
        tell(kill_one_after_another(setup, setup.shapes[0], processes))


def kill_one_after_another(setup: Setup, shape: Shape, processes: str) -> Row:
    """Kill the engine, then the run, then nothing: the third start resumes and completes the run."""
    folder = setup.folder / f"kills-{processes}"
    spec = make_spec(setup, shape, processes)
    before = read_free(setup)
    run = start_run(spec, folder)
    wait_for(lambda: list_parts(folder) > 0 or run.poll() is not None, "answers are durable")
    host = find_host(run.pid)
    assert host is not None, f"the run ended early; see {folder / 'run.log'}"
    held = measure_held(setup, before, host)
    victim = find_core(host) if processes == "vllm" else host
    row: Row = {"processes": processes, "held_mib": held}
    victim.kill()
    row["engine_processes_gone_s"] = wait_for(lambda: not members(host.pid), "the engine's processes are gone")
    starting_s = wait_for(lambda: find_host(run.pid) not in (None, host), "another engine starts")
    second, parts = find_host(run.pid), list_parts(folder)
    assert second is not None
    answering_s = wait_for(lambda: list_parts(folder) > parts or run.poll() is not None, "another engine answers")
    if run.poll() is not None:
        raise RuntimeError(f"the run ended with {run.returncode} before it could be killed; see {folder / 'run.log'}")
    row["answers_again_s"] = row["engine_processes_gone_s"] + starting_s + answering_s
    row["second_engine_held_mib"] = measure_held(setup, before, second)
    run.kill()
    row["run_processes_gone_s"] = wait_for(lambda: not members(second.pid), "no orphan is left")
    row["memory_back_s"] = row["run_processes_gone_s"] + wait_for(lambda: is_back(setup, before), "memory is back")
    run.wait()
    resumed = start_run(spec, folder)
    output, _ = resumed.communicate(timeout=LIMIT_S)
    row["memory_back_at_end_s"] = wait_for(lambda: is_back(setup, before), "memory is back")
    ended = json.loads(output.splitlines()[-1]) if resumed.returncode == 0 else {"failed": resumed.returncode}
    return {**{name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}, **ended}


def make_spec(setup: Setup, shape: Shape, processes: str) -> Row:
    """Make a spec with long outputs, so that the run can be interrupted in the middle."""
    rows = [{"prompt": f"{number:06}" * 8} for number in range(8 * shape.seats)]
    return {
        "name": "kills",
        "model": str(setup.build_model(shape)),
        "prompts": {"source": {"kind": "inline", "rows": rows}},
        "sampling": {"temperature": 0, "max_tokens": ANSWER_TOKENS, "min_tokens": ANSWER_TOKENS},
        "engine": {"device": setup.device, "env": PROCESSES[processes], "args": setup.make_args(shape)},
    }


def find_core(host: psutil.Process) -> psutil.Process:
    """Return vLLM's process with the engine core: the largest child of the engine's process."""
    return max(host.children(recursive=True), key=lambda process: process.memory_info().rss)


def members(session: int) -> list[psutil.Process]:
    """Return the living processes of a session. vLLM's processes change their names, but not their session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def measure_held(setup: Setup, before: int | None, host: psutil.Process) -> int:
    """Return the engine's memory in MiB, on the device or in main memory."""
    if before is not None:
        return (before - (read_free(setup) or before)) >> 20
    return sum(process.memory_info().rss for process in members(host.pid)) >> 20


def read_free(setup: Setup) -> int | None:
    """Return the free memory of the first GPU; None on a CPU, where memory is freed with the process."""
    return read_free_bytes(setup.gpus[0]) if setup.gpus else None


def is_back(setup: Setup, before: int | None) -> bool:
    """Return True if about as much memory is free as before the run."""
    return before is None or (read_free(setup) or 0) >= before - BACK_BYTES


def wait_for(is_so: Callable[[], bool], what: str) -> float:
    """Wait until the condition holds and return the seconds. Raises TimeoutError."""
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > LIMIT_S:
            raise TimeoutError(f"Not within {LIMIT_S:.0f} s: {what}.")
        time.sleep(POLL_S)
    return time.monotonic() - started
