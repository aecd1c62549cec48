"""How many requests in flight suit a KV cache that is too small: each window's steps, preemptions and seconds.

    python -m benchmarks.window [--rounds 3] [--requests 200] [--layers 4] [--hidden 384] [--seats 64] [--fits 20]

One engine, real vLLM, whose cache holds `fits` requests of mean length. vLLM takes a request in when its prompt has
room, and preempts the newest when answers grow: what it had is computed again. The same requests go through windows
from half of what fits to the default (1.25 × seats), in turn, in another order each round. `left_over` is how much
faster the best window is than the default: what a window that follows the cache could win.
"""

import argparse
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.devices.claims import list_devices
from assayline.engines.messages import Open
from assayline.engines.offline import OfflineEngine
from assayline.engines.process import HostSetup
from assayline.records import Request, TelemetrySample
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from benchmarks.random_model import FIRST_WORD, VOCABULARY, build_random_model
from benchmarks.yardstick import draw_output_tokens

PROMPT_TOKENS = 48
MEAN_OUTPUT_TOKENS = 70
"""Of the lengths that `draw_output_tokens` draws."""


@dataclass(frozen=True)
class Round:
    """One window, once."""

    seconds: float
    steps: int
    preemptions: int


class Bench:
    """An open engine with a small cache, and the requests."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.steps = 0
        model = build_random_model(folder / "model", options.layers, options.hidden)
        token_bytes = 2 * options.layers * options.hidden * 4  # keys and values, float32
        args = {
            "max_model_len": 1024,
            "max_num_seqs": options.seats,
            "dtype": "float32",
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": options.fits * (PROMPT_TOKENS + MEAN_OUTPUT_TOKENS) * token_bytes,
        }
        clock = RunClock.start()
        order = Open(backend="offline", model=str(model), model_id="random", args=args, clock=clock)
        settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
        setup = HostSetup.of(settings, EngineSpec(), list_devices("auto", 1)[0].env, folder / "engine.log")
        self.engine = OfflineEngine(order, setup, EngineHooks(on_sample=self._take))
        dice = random.Random(0)
        self._ids = [dice.choices(range(FIRST_WORD, VOCABULARY), k=PROMPT_TOKENS) for _ in range(options.requests)]
        self._lengths = [draw_output_tokens(dice) for _ in range(options.requests)]
        self._turns = itertools.count()

    def _take(self, sample: TelemetrySample) -> None:
        self.steps = sample.engine_steps or 0

    def measure(self, window: int) -> Round:
        turn, steps, started = next(self._turns), self.steps, time.monotonic()
        self.engine.set_window(window)
        answers = list(
            self.engine.generate(
                Request(f"{turn}-{number}", "", 0, 0, ids, {"temperature": 0, "ignore_eos": True, "max_tokens": length})
                for number, (ids, length) in enumerate(zip(self._ids, self._lengths, strict=True))
            )
        )
        seconds = time.monotonic() - started
        assert sum(answer.output_tokens or 0 for answer in answers) == sum(self._lengths), "an answer is cut"
        return Round(seconds, self.steps - steps, sum(answer.preemptions or 0 for answer in answers))


def measure_windows(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every window, `rounds` times, and the table."""
    default = round(1.25 * options.seats)
    shares = [options.fits // 2, options.fits * 3 // 4, options.fits, options.fits * 5 // 4, options.fits * 2]
    windows = sorted({window for window in shares if window < default} | {default})
    bench = Bench(folder, options)
    measured: dict[int, list[Round]] = {window: [] for window in windows}
    with contextlib.closing(bench.engine):
        bench.measure(default)
        for number in range(options.rounds):
            turned = windows[number % len(windows) :] + windows[: number % len(windows)]
            for window in turned if number % 2 else reversed(turned):
                measured[window].append(bench.measure(window))
    rows = [describe_window(window, rounds) for window, rounds in measured.items()]
    best = min(row["seconds_median"] for row in rows)
    return {
        "benchmark": "window",
        "requests": options.requests,
        "seats": options.seats,
        "fits": options.fits,
        "rounds": options.rounds,
        "windows": rows,
        "left_over": round(rows[-1]["seconds_median"] / best, 3),
    }


def describe_window(window: int, rounds: list[Round]) -> dict[str, Any]:
    """One row of the table, printed."""
    seconds = [one.seconds for one in rounds]
    row = {
        "window": window,
        "seconds_median": round(statistics.median(seconds), 2),
        "seconds_range": [round(min(seconds), 2), round(max(seconds), 2)],
        "engine_steps": int(statistics.median(one.steps for one in rounds)),
        "preemptions": int(statistics.median(one.preemptions for one in rounds)),
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--seats", type=int, default=64)
    parser.add_argument("--fits", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-window-") as name:
        report = measure_windows(Path(name), options)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
