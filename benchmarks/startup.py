"""What the engine host adds to vLLM's own start: from nothing to ready, ours against a plain `vllm.LLM` process.

    python -m benchmarks.startup [--pairs 3]

Both start a Python process, import vLLM, load the same small model and make a first token, in turn.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

from assayline.clock import RunClock
from assayline.engines import open_engine
from assayline.engines.base import EngineHooks
from assayline.engines.devices import list_devices
from assayline.engines.environment import engine_environment
from assayline.records import Request
from assayline.settings import Settings
from assayline.spec import EvalSpec
from assayline.spec_file import parse_spec
from benchmarks.overhead import RawVllm
from benchmarks.random_model import build_random_model


def start_ours(spec: EvalSpec, settings: Settings, device_env: dict[str, str], log: Path) -> float:
    started = time.monotonic()
    engine = open_engine(
        spec.engine,
        model=spec.model,
        model_id="random",
        model_args={},
        sampling=spec.sampling_defaults,
        clock=RunClock.start(),
        worker="worker-0",
        device_env=device_env,
        log_path=log,
        settings=settings,
        hooks=EngineHooks(),
    )
    with contextlib.closing(engine):
        engine.warm_up(Request("warm-up", "", 0, 0, [5] * 40, {"max_tokens": 4}))
        return time.monotonic() - started


def start_raw(spec: EvalSpec, env: dict[str, str], log: Path) -> float:
    started = time.monotonic()
    with contextlib.closing(RawVllm(spec, env, log)):
        return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    model = build_random_model(Path(".cache") / "random-4x256", 4, 256)
    spec = parse_spec(
        {
            "model": str(model),
            "prompts": {"source": {"kind": "synthetic", "count": 1, "prompt_tokens": 8, "output_tokens": 8}},
            "engine": {
                "args": {
                    "max_model_len": 512,
                    "dtype": "float32",
                    "enforce_eager": True,
                    "kv_cache_memory_bytes": 2**28,
                }
            },
        }
    )
    device_env = list_devices("auto", 1)[0].env
    pairs = []
    with tempfile.TemporaryDirectory(prefix="assayline-startup-") as name:
        folder = Path(name)
        settings = Settings(data_dir=folder)
        start_raw(spec, engine_environment(settings, device_env, {}), folder / "raw.log")  # fills vLLM's own caches
        print(f"{'pair':>4} {'raw s':>8} {'ours s':>8} {'more s':>8}")
        for number in range(options.pairs):
            raw = start_raw(spec, engine_environment(settings, device_env, {}), folder / "raw.log")
            ours = start_ours(spec, settings, device_env, folder / f"ours-{number}.log")
            pairs.append((raw, ours))
            print(f"{number + 1:>4} {raw:>8.2f} {ours:>8.2f} {ours - raw:>8.2f}", flush=True)
    print(
        json.dumps(
            {
                "benchmark": "startup",
                "pairs": len(pairs),
                "raw_seconds_median": round(statistics.median(raw for raw, _ in pairs), 2),
                "ours_seconds_median": round(statistics.median(ours for _, ours in pairs), 2),
                "more_seconds_median": round(statistics.median(ours - raw for raw, ours in pairs), 2),
                "more_seconds_range": [round(f(ours - raw for raw, ours in pairs), 2) for f in (min, max)],
            }
        )
    )


if __name__ == "__main__":
    main()
