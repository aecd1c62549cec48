"""A vLLM server for benchmarks of clients, on a separate core if the machine has more than one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.client_view import Server

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
MODEL_NAME = "model"


def split_cores() -> tuple[set[int], set[int]]:
    """Return the cores of the server and of its clients: the first one and the others, or one for both."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, set(cores[1:] or cores)


@contextlib.contextmanager
def serve_model(folder: Path, log: Path, max_num_seqs: int) -> Iterator[Server]:
    """Start vLLM's OpenAI-compatible server on the CPU."""
    port, (cores, _) = find_port(), split_cores()
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(cores))),
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    options = {
        "model": folder,
        "served-model-name": MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
        "max-model-len": 1024,
        "max-num-seqs": max_num_seqs,
        "dtype": "float32",
        "kv-cache-memory-bytes": 2**30,
    }
    flags = ["--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    command = ["vllm.entrypoints.openai.api_server", *flags]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with run_server(command, env, port, folder, log) as server:
        yield server


def find_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def run_server(module: list[str], env: dict[str, str], port: int, folder: Path, log: Path) -> Iterator[Server]:
    """Run a module as a server inside the block, once it answers."""
    server = Server(f"http://127.0.0.1:{port}", MODEL_NAME, folder)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            env={**os.environ, **env},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        os.sched_setaffinity(process.pid, split_cores()[0])
        wait_until_healthy(server, process, log)
        yield server
    finally:
        stop_group(process)


def wait_until_healthy(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers. Exit with the end of its log if it does not start."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    sys.exit(f"The server did not start; the end of its log:\n{log.read_text()[-3000:]}")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End the server and its engine processes, which are in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
