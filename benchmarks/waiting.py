"""Speed of a CPU engine on an idle and on a busy machine, by how its threads wait for each other.

    python -m benchmarks.waiting [--rounds 3] [--model FOLDER] [--spins 1000,3000,10000]

All engines are open at once and answer the same requests in turn, first on the idle machine, then next to one busy
loop a core. Those whose turn it is not are stopped: their threads would spin. `raw` is `vllm.LLM` with its own
threads, one core fewer than there are. The others have a thread on each core and wait as assayline's engines do, with
these counts of GOMP_SPINCOUNT; `endless` never sleeps.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from assayline.engines.devices.claims import list_devices
from assayline.engines.process import engine_environment
from assayline.settings import Settings
from benchmarks.overhead import RawVllm, make_spec, write_prompts
from benchmarks.yardstick import draw_output_tokens
from examples.tiny_model import ensure_tiny_model

REQUESTS = 96
PROMPT_TOKENS = 24


@contextlib.contextmanager
def load_cores() -> Iterator[None]:
    """Keep every core busy with another process."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def signal_all(engine: RawVllm, number: int) -> None:
    """Send a signal to an engine's processes."""
    own = psutil.Process(engine.pid)
    for process in [*own.children(recursive=True), own]:
        process.send_signal(number)


@contextlib.contextmanager
def take_turn(engine: RawVllm) -> Iterator[None]:
    """Let an engine go on that was stopped, and stop it again."""
    signal_all(engine, signal.SIGCONT)
    try:
        yield
    finally:
        signal_all(engine, signal.SIGSTOP)


def make_requests() -> list[dict[str, Any]]:
    """Return requests with different prompts and log-normal forced lengths."""
    dice = random.Random(0)
    requests = []
    for _ in range(REQUESTS):
        tokens = min(draw_output_tokens(dice), 96)
        sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens, "min_tokens": tokens}
        ids = [dice.randrange(5, 200) for _ in range(PROMPT_TOKENS)]
        requests.append({"prompt_token_ids": ids, "sampling": sampling})
    return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="folder of the model (default: the tiny model)")
    parser.add_argument("--spins", default="1000,3000,10000")
    options = parser.parse_args()
    model = options.model or ensure_tiny_model()
    requests = make_requests()
    with tempfile.TemporaryDirectory(prefix="assayline-waiting-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", 1)
        args = {
            "max_model_len": 256,
            "kv_cache_memory_bytes": 2**28,
            "dtype": "bfloat16" if options.model else "float32",
        }
        spec = make_spec(model, folder / "prompts.jsonl", args)
        settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
        device_env = list_devices("cpu", 1)[0].env
        ways = {"raw": ({}, {}), "endless": (device_env, {"GOMP_SPINCOUNT": "INFINITY"})}
        ways |= {f"spin {count}": (device_env, {"GOMP_SPINCOUNT": count}) for count in options.spins.split(",")}
        engines = {}
        for way, (device, own) in ways.items():
            env = engine_environment(settings, device, own)
            if way == "raw":
                env.pop("GOMP_SPINCOUNT", None)
            engine = RawVllm(spec, env, folder / f"{way}.log")
            engines[way] = stack.enter_context(contextlib.closing(engine))
            stack.callback(signal_all, engine, signal.SIGCONT)
            engine.measure(requests[:16])
            signal_all(engine, signal.SIGSTOP)
        rows = [row for beside in (False, True) for row in measure(engines, requests, beside, options.rounds)]
    print(
        json.dumps({"benchmark": "waiting", "model": str(model), "cores": len(os.sched_getaffinity(0)), "rows": rows})
    )


def measure(
    engines: dict[str, RawVllm], requests: list[dict[str, Any]], beside: bool, rounds: int
) -> list[dict[str, Any]]:
    """Measure the engines in turn, forwards and backwards. Return a row per engine."""
    found: dict[str, list[float]] = {way: [] for way in engines}
    with load_cores() if beside else contextlib.nullcontext():
        for number in range(rounds):
            for way in list(engines)[:: 1 if number % 2 == 0 else -1]:
                with take_turn(engines[way]):
                    found[way].append(engines[way].measure(requests).output_tokens_per_s)
                print(f"{'busy' if beside else 'idle'} {way:>12} {found[way][-1]:>8.0f} tokens/s", flush=True)
    return [
        {
            "machine": "busy" if beside else "idle",
            "way": way,
            "output_tokens_per_s": [round(speed) for speed in speeds],
            "ratio_to_raw": round(statistics.median(map(lambda ours, raw: ours / raw, speeds, found["raw"])), 3),
        }
        for way, speeds in found.items()
    ]


if __name__ == "__main__":
    main()
