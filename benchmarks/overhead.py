"""Overhead of the pipeline after the model has loaded, compared with raw `vllm.LLM.generate`.

    python -m benchmarks.overhead [--pairs 5] [--requests 1024] [--layers 12] [--hidden 512] [--mode barrier]
                                  [--order longest_first] [--shares 2]

Each side keeps one engine in a separate process, with the same environment, for all pairs. Both answer the same prompts
with the same log-normal output lengths, alternately: raw, pipeline, pipeline, raw, … so that drift of the machine
affects both. Raw gets token ids, and only `generate` is timed. The pipeline is timed from opening the prompt file to
having the metrics: reading, rendering, feeding, Parquet, DuckDB, SQL. Prefix caching is off. With `--shares 2`, each
side's engine has half of the cores and the rest of the side the other half. CPU seconds are those of raw's process, of
the engine's process, and of this process (flow and worker). They include engine threads that wait busily for each
other.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from assayline.engines import open_engine
from assayline.engines.base import AnyEngine, EngineHooks
from assayline.engines.devices.claims import list_devices
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.messages import Open
from assayline.engines.process import HostSetup, engine_environment
from assayline.engines.recovery.engine import AdaptiveEngine
from assayline.engines.recovery.policy import RecoveryPolicy, Sizes, sizes_of
from assayline.run.begin import begin_evaluation
from assayline.run.drive import drive_worker
from assayline.run.worker import Worker, WorkOrder
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.manifest import NEVER
from benchmarks.process_tree import find_host, read_cpu_s, spend
from benchmarks.random_model import build_random_model
from benchmarks.yardstick import Yardstick, describe_ratios, draw_output_tokens


@dataclass(frozen=True)
class Measurement:
    """One side of one pair."""

    seconds: float
    output_tokens: int
    engine_steps: int
    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds by process, if measured."""

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def write_prompts(path: Path, count: int, draw: Callable[[random.Random], int] = draw_output_tokens) -> None:
    """Write chat prompts of 16 to 64 bytes with output lengths from this distribution."""
    dice = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            text = "".join(dice.choices("abcdefghij klmnop qrstuvwxyz", k=dice.randint(16, 64)))
            length = draw(dice)
            file.write(json.dumps({"prompt": text, "sampling": {"max_tokens": length, "min_tokens": length}}) + "\n")


def make_spec(model: Path, prompts: Path, args: dict[str, Any], **engine: Any) -> EvalSpec:
    """Make a spec of greedy answers with forced lengths. `args` override vLLM's arguments, `engine` spec fields."""
    usual = {
        "max_model_len": 1024,
        "max_num_seqs": 64,
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 2**30,
        "enable_prefix_caching": False,
    }
    return parse_spec({
        "name": "overhead",
        "model": str(model),
        "prompts": {"source": {"kind": "file", "path": str(prompts)}, "columns": {"sampling": "sampling"}},
        "sampling": {"temperature": 0, "ignore_eos": True},
        "engine": {**engine, "args": usual | args},
    })  # fmt: skip


class RawVllm(Yardstick):
    """Measure `LLM.generate` over all requests."""

    def __init__(self, spec: EvalSpec, env: dict[str, str], log: Path) -> None:
        super().__init__("benchmarks.raw_vllm", {"model": spec.model, "args": spec.engine.args}, env, log)

    def measure(self, requests: list[dict[str, Any]]) -> Measurement:
        answer = self.ask(requests)
        return Measurement(answer["seconds"], answer["output_tokens"], answer["engine_steps"])


class SteppingEngine:
    """The open engine. It keeps the newest sample of its counters and passes samples on to the run's writer."""

    def __init__(self, spec: EvalSpec, settings: Settings, env: dict[str, str], log: Path) -> None:
        self.steps = 0
        self.writer = None
        evaluation = begin_evaluation(spec, settings, NEVER)

        def open_one(sizes: Sizes, changed_args: dict[str, Any], generation: int) -> AnyEngine:
            order = Open(
                engine=spec.engine.with_args(changed_args),
                model=spec.model,
                model_id="random",
                sampling=spec.sampling_defaults,
                clock=evaluation.clock,
                engine_generation=generation,
            )
            setup = HostSetup.of(settings, spec.engine, env, log)
            return open_engine(order, sizes.window_requests, setup, EngineHooks(on_sample=self._take))

        policy = RecoveryPolicy(sizes_of(spec.engine.args, spec.engine.max_concurrency))
        memory = DeviceMemory(())
        self.engine: AnyEngine = AdaptiveEngine(open_one, policy, lambda _: None, memory, clock=evaluation.clock)

    def _take(self, sample: Any) -> None:
        self.steps = sample.engine_steps
        if self.writer is not None:
            self.writer.add(sample)


class KeptWorker(Worker):
    """A worker with an open engine that stays open."""

    def __init__(self, order: WorkOrder, engine: AnyEngine) -> None:
        self._engine = engine
        super().__init__(order)

    def _work(self, stack: contextlib.ExitStack) -> None:
        window = self._engine.facts.window_requests
        self._record(self._make_event("opened", None, {"window_requests": window}))
        self._answer(self._engine)


def measure_pipeline(spec: EvalSpec, settings: Settings, stepping: SteppingEngine) -> tuple[Measurement, str]:
    """Run the pipeline once with an open engine. Return the measurement and the run's id.

    The measured time includes the warm-up, which resets the engine's step counter.
    """
    started = time.monotonic()
    evaluation = begin_evaluation(spec, settings, NEVER)
    counts: list[Any] = []
    preparing = threading.Thread(target=lambda: counts.append(evaluation.prepare()))
    preparing.start()
    loading = threading.Event()

    def load_now_and_then() -> None:
        while not loading.wait(settings.load_interval_s):
            evaluation.try_load()

    loader = threading.Thread(target=load_now_and_then)
    loader.start()
    stepping.writer = evaluation.writer
    drive_worker(evaluation, "worker-0", launch=lambda order: KeptWorker(order, stepping.engine))
    stepping.writer = None
    preparing.join()
    loading.set()
    loader.join()
    result = evaluation.finish(counts[0])
    seconds = time.monotonic() - started
    tokens = read_output_tokens(settings, result.run_id)
    return Measurement(seconds, tokens, stepping.steps), result.run_id


def read_output_tokens(settings: Settings, run_id: str) -> int:
    with connect(settings.database_path, 10, read_only=True) as connection:
        return connection.execute("select output_tokens from main.run where run_id = ?", [run_id]).fetchall()[0][0]


def read_requests(settings: Settings, run_id: str) -> list[dict[str, Any]]:
    """Return the token ids and sampling that the engine was sent, for the raw side."""
    with connect(settings.database_path, 10, read_only=True) as connection:
        rows = connection.execute(
            "select prompt_token_ids, sampling_json from requests join prompts using (run_id, prompt_id, occurrence) "
            "where run_id = ? order by source_row",
            [run_id],
        ).fetchall()
    return [{"prompt_token_ids": list(ids), "sampling": json.loads(sampling)} for ids, sampling in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--mode", default="continuous")
    parser.add_argument("--order", default="given")
    parser.add_argument("--seats", type=int, default=64)
    parser.add_argument(
        "--shares", type=int, default=1, help="split the cores into this many shares; the engine gets one"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-overhead-") as name:
        report = run_pairs(Path(name), options)
    print(json.dumps(report))


def run_pairs(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    cached = Path(".cache") / f"random-{options.layers}x{options.hidden}"
    model = build_random_model(cached, options.layers, options.hidden)
    write_prompts(folder / "prompts.jsonl", options.requests)
    args = {"max_num_seqs": options.seats}
    spec = make_spec(model, folder / "prompts.jsonl", args, mode=options.mode, order=options.order)
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    device_env = list_devices("auto", options.shares)[0].env
    stepping = SteppingEngine(spec, settings, device_env, folder / "pipeline.log")
    raw = RawVllm(spec, engine_environment(settings, device_env, {}), folder / "raw.log")
    pairs: list[tuple[Measurement, Measurement]] = []
    with contextlib.closing(stepping.engine), contextlib.closing(raw):
        _, run_id = measure_pipeline(spec, settings, stepping)  # not measured: the first run warms up both sides
        requests = read_requests(settings, run_id)
        raw.measure(requests[:64])
        yardstick, host, here = psutil.Process(raw.pid), find_host(os.getpid()), psutil.Process()
        assert host is not None

        def measure_raw() -> Measurement:
            found, cpu_s = spend({"raw": lambda: read_cpu_s(yardstick)}, lambda: raw.measure(requests))
            return replace(found, cpu_s=cpu_s)

        def measure_ours() -> Measurement:
            watched = {"engine": lambda: read_cpu_s(host), "flow": lambda: sum(here.cpu_times()[:2])}
            (found, _), cpu_s = spend(watched, lambda: measure_pipeline(spec, settings, stepping))
            return replace(found, cpu_s=cpu_s)

        print("pair  raw tok/s ours tok/s   ratio  raw steps  our steps   ratio  CPU-s raw, engine, flow")
        for number in range(options.pairs):
            if number % 2:
                ours, theirs = measure_ours(), measure_raw()
            else:
                theirs, ours = measure_raw(), measure_ours()
            pairs.append((theirs, ours))
            print(
                f"{number + 1:>4} {theirs.output_tokens_per_s:>10.1f} {ours.output_tokens_per_s:>10.1f} "
                f"{ours.output_tokens_per_s / theirs.output_tokens_per_s:>7.3f} {theirs.engine_steps:>10} "
                f"{ours.engine_steps:>10} {ours.engine_steps / theirs.engine_steps:>7.3f}  "
                + " ".join(f"{seconds:.2f}" for seconds in {**theirs.cpu_s, **ours.cpu_s}.values()),
                flush=True,
            )
    return summarize(pairs, options)


def summarize(pairs: list[tuple[Measurement, Measurement]], options: argparse.Namespace) -> dict[str, Any]:
    """Return medians and ranges of the ratios per pair."""
    assert all(raw.output_tokens == ours.output_tokens for raw, ours in pairs), "the sides generated different amounts"
    speed = [ours.output_tokens_per_s / raw.output_tokens_per_s for raw, ours in pairs]
    steps = [ours.engine_steps / raw.engine_steps for raw, ours in pairs]
    return {
        "benchmark": "overhead",
        **vars(options),
        "cores": len(os.sched_getaffinity(0)),
        "output_tokens": pairs[0][0].output_tokens,
        "raw_seconds_median": round(statistics.median(raw.seconds for raw, _ in pairs), 2),
        "pipeline_seconds_median": round(statistics.median(ours.seconds for _, ours in pairs), 2),
        "raw_cpu_s_median": round(statistics.median(raw.cpu_s["raw"] for raw, _ in pairs), 2),
        "engine_cpu_s_median": round(statistics.median(ours.cpu_s["engine"] for _, ours in pairs), 2),
        "flow_cpu_s_median": round(statistics.median(ours.cpu_s["flow"] for _, ours in pairs), 2),
        **describe_ratios("throughput", speed),
        **describe_ratios("engine_steps", steps),
    }


if __name__ == "__main__":
    main()
