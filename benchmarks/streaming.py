"""Overhead of the async engine: inter-token latency, throughput and engine steps compared with vLLM's `AsyncLLM`.

    python -m benchmarks.streaming [--pairs 5] [--requests 256] [--concurrency 32] [--layers 4] [--hidden 256]

Each side keeps one engine in a separate process, with the same environment, for all pairs. Both answer the same token
ids with the same output lengths at the same concurrency, alternately: alone, ours, ours, alone, … `alone` is only a
semaphore and `async for` over `AsyncLLM.generate`. Latencies are differences of the engine core's timestamps on both
sides: they show if the code around the engine slows it down. `ours` sends requests from another process, records every
token's timestamp, and returns completions. CPU time excludes the engine core.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.client import HostedEngine
from assayline.engines.devices.claims import list_devices
from assayline.engines.messages import Open
from assayline.engines.process import HostSetup, engine_environment
from assayline.load.progress import LoadProgress
from assayline.records import Request
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.load import LoadSpec
from benchmarks.random_model import FIRST_WORD, VOCABULARY, build_random_model
from benchmarks.yardstick import Yardstick, describe_ratios, draw_output_tokens

MAX_NUM_SEQS = 64
ARGS = {
    "max_model_len": 1024,
    "max_num_seqs": MAX_NUM_SEQS,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**29,
    "enable_prefix_caching": False,
}


@dataclass(frozen=True)
class Measurement:
    """One side of one pair."""

    seconds: float
    output_tokens: int
    engine_steps: int
    itl_mean_s: float
    """Time between a request's first and last token, divided by the number of gaps, over all requests."""
    itl_median_s: float
    itl_p99_s: float
    merged_outputs: int
    """Outputs with several tokens and one timestamp."""
    client_cpu_s: float
    """CPU time without the engine core: vLLM's front end and the code that feeds it."""

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def make_requests(count: int) -> list[dict[str, Any]]:
    """Make prompts of 16 to 64 tokens with log-normal output lengths (median e^4), 8 to 256 tokens."""
    dice = random.Random(0)
    requests = []
    for _ in range(count):
        ids = [dice.randrange(FIRST_WORD, VOCABULARY) for _ in range(dice.randint(16, 64))]
        length = draw_output_tokens(dice)
        sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": length, "min_tokens": length}
        requests.append({"prompt_token_ids": ids, "sampling": sampling})
    return requests


class Alone(Yardstick):
    """`AsyncLLM.generate` behind a semaphore."""

    def __init__(
        self, model: Path, concurrency: int, env: dict[str, str], log: Path, args: dict[str, Any] = ARGS
    ) -> None:
        order = {"model": str(model), "args": args, "window": concurrency}
        super().__init__("benchmarks.raw_async_vllm", order, env, log)

    def measure(self, requests: list[dict[str, Any]]) -> Measurement:
        before = read_cpu_s(self.pid)
        found = self.ask(requests)
        cpu_s = read_cpu_s(self.pid) - before
        rows = found["rows"]
        gaps = [gap for row in rows for gap in list_gaps(row["stamps"])]
        return summarize_side(
            found["seconds"],
            found["engine_steps"],
            [(row["tokens"], row["last"] - row["first"]) for row in rows],
            gaps,
            sum(row["merged"] for row in rows),
            cpu_s,
        )


class Ours:
    """The async engine, as in a worker."""

    def __init__(
        self, model: Path, concurrency: int, env: dict[str, str], log: Path, args: dict[str, Any] = ARGS
    ) -> None:
        self._steps = 0
        self._count = itertools.count()
        load = LoadProgress(LoadSpec.model_validate({"arrival": {"kind": "concurrency", "requests": concurrency}}))
        order = Open(engine=EngineSpec(backend="async", args=args), model=str(model), clock=RunClock.start())
        hooks = EngineHooks(on_sample=self._take)
        self._engine = HostedEngine(order, HostSetup(env, log), hooks, window=concurrency, load=load)

    def measure(self, requests: list[dict[str, Any]]) -> Measurement:
        number = next(self._count)
        asked = [
            Request(
                request_id=f"{number}-{n}",
                prompt_id="p",
                occurrence=0,
                repeat_index=0,
                prompt_token_ids=request["prompt_token_ids"],
                sampling=request["sampling"],
            )
            for n, request in enumerate(requests)
        ]
        steps, before, started = self._steps, self._read_cpu_s(), time.monotonic()
        rows = list(self._engine.generate(asked))
        seconds, cpu_s = time.monotonic() - started, self._read_cpu_s() - before
        assert all(row.error_kind is None and len(row.token_at_s or []) == row.output_tokens for row in rows)
        spans = [(row.output_tokens or 0, (row.last_token_at_s or 0) - (row.first_token_at_s or 0)) for row in rows]
        gaps = [gap for row in rows for gap in list_gaps(row.token_at_s or [])]
        return summarize_side(seconds, self._steps - steps, spans, gaps, 0, cpu_s)

    def set_window(self, concurrency: int) -> None:
        """Keep this many requests in flight from now on."""
        self._engine.set_window(concurrency)

    def close(self) -> None:
        self._engine.close()

    def _read_cpu_s(self) -> float:
        return read_cpu_s(self._engine.host_pid) + read_cpu_s(os.getpid())

    def _take(self, sample: Any) -> None:
        self._steps = sample.engine_steps or 0


def read_cpu_s(pid: int) -> float:
    """Return CPU seconds of this process so far, without its children."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def list_gaps(stamps: list[Any]) -> list[float]:
    """Return gaps between neighbors that both have a timestamp."""
    return [b - a for a, b in itertools.pairwise(stamps) if a is not None and b is not None]


def summarize_side(
    seconds: float, steps: int, spans: list[tuple[int, float]], gaps: list[float], merged: int, cpu_s: float
) -> Measurement:
    tokens = sum(count for count, _ in spans)
    mean = sum(span for _, span in spans) / sum(count - 1 for count, _ in spans)
    p99 = statistics.quantiles(gaps, n=100)[98]
    return Measurement(seconds, tokens, steps, mean, statistics.median(gaps), p99, merged, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-streaming-") as name:
        report = run_pairs(Path(name), options)
    print(json.dumps(report))


def run_pairs(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    cached = Path(".cache") / f"random-{options.layers}x{options.hidden}"
    model = build_random_model(cached, options.layers, options.hidden)
    env = engine_environment(Settings(data_dir=folder), list_devices("auto", 1)[0].env, {})
    requests = make_requests(options.requests)
    alone = Alone(model, options.concurrency, env, folder / "alone.log")
    ours = Ours(model, options.concurrency, env, folder / "ours.log")
    return compare(alone, ours, requests, options)


def compare(alone: Alone, ours: Ours, requests: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Measure the pairs and return their summary. Closes both sides."""
    pairs: list[tuple[Measurement, Measurement]] = []
    with contextlib.closing(ours), contextlib.closing(alone):
        alone.measure(requests[:64])
        ours.measure(requests[:64])
        print(
            "pair  alone tok/s  ours tok/s   ratio | alone ITL ms   ours ITL ms   ratio | steps alone   ours | "
            "CPU s alone   ours | merged"
        )
        for number in range(options.pairs):
            if number % 2:
                mine, theirs = ours.measure(requests), alone.measure(requests)
            else:
                theirs, mine = alone.measure(requests), ours.measure(requests)
            pairs.append((theirs, mine))
            print(
                f"{number + 1:>4} {theirs.output_tokens_per_s:>12.1f} {mine.output_tokens_per_s:>11.1f} "
                f"{mine.output_tokens_per_s / theirs.output_tokens_per_s:>7.3f} | {1e3 * theirs.itl_mean_s:>12.3f} "
                f"{1e3 * mine.itl_mean_s:>13.3f} {mine.itl_mean_s / theirs.itl_mean_s:>7.3f} | "
                f"{theirs.engine_steps:>11} {mine.engine_steps:>6} | "
                f"{theirs.client_cpu_s:>11.2f} {mine.client_cpu_s:>6.2f} | "
                f"{theirs.merged_outputs:>6}",
                flush=True,
            )
    return summarize(pairs, options)


def summarize(pairs: list[tuple[Measurement, Measurement]], options: argparse.Namespace) -> dict[str, Any]:
    """Return medians and ranges of the ratios ours/alone per pair."""
    assert all(a.output_tokens == b.output_tokens for a, b in pairs), "the sides generated different amounts"
    ratios = {
        "throughput": [ours.output_tokens_per_s / alone.output_tokens_per_s for alone, ours in pairs],
        "itl_mean": [ours.itl_mean_s / alone.itl_mean_s for alone, ours in pairs],
        "itl_median": [ours.itl_median_s / alone.itl_median_s for alone, ours in pairs],
        "itl_p99": [ours.itl_p99_s / alone.itl_p99_s for alone, ours in pairs],
        "client_cpu": [ours.client_cpu_s / alone.client_cpu_s for alone, ours in pairs],
        "engine_steps": [ours.engine_steps / alone.engine_steps for alone, ours in pairs],
    }
    return {
        "benchmark": "streaming",
        "pairs": len(pairs),
        **vars(options),
        "cores": len(os.sched_getaffinity(0)),
        "output_tokens": pairs[0][0].output_tokens,
        "alone_itl_median_ms": round(1e3 * statistics.median(alone.itl_median_s for alone, _ in pairs), 3),
        "ours_itl_median_ms": round(1e3 * statistics.median(ours.itl_median_s for _, ours in pairs), 3),
        **{name: value for ratio, found in ratios.items() for name, value in describe_ratios(ratio, found).items()},
        "alone_merged_outputs": [alone.merged_outputs for alone, _ in pairs],
    }


if __name__ == "__main__":
    main()
