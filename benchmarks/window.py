"""How many requests in flight suit a KV cache that is too small: each window's steps, preemptions and seconds.

    python -m benchmarks.window [--rounds 3] [--requests 200] [--layers 4] [--hidden 384] [--seats 64] [--fits 20]
                                [--lengths log-normal|heavy] [--order given|longest_first]

Two engines, real vLLM, whose caches hold `fits` requests of mean length. vLLM takes a request in when its prompt has
room, and preempts the newest when answers grow: what it had is computed again. The same requests go through windows
from half of what fits to the default (1.25 × seats), and with lengths known through the default window of an engine
that holds back what its cache will not hold (`engines/host/admission.py`), in turn, in another order each round.
`held_over_best` is the time of that over the best fixed window's, `default_over_best` that of the default.
"""

import argparse
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
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
HELD = 0
"""In place of a window: held back, in the default window."""


def draw_heavy_tokens(dice: random.Random) -> int:
    """Heavier-tailed, from 8 to 900 tokens."""
    return min(max(int(dice.lognormvariate(4.6, 1.0)), 8), 900)


LENGTHS: dict[str, Callable[[random.Random], int]] = {"log-normal": draw_output_tokens, "heavy": draw_heavy_tokens}


@dataclass(frozen=True)
class Round:
    """One window, once."""

    seconds: float
    steps: int
    preemptions: int


class Bench:
    """An open engine with a small cache, and the requests."""

    def __init__(self, folder: Path, options: argparse.Namespace, *, holds_back: bool) -> None:
        self.steps = 0
        model = build_random_model(folder / "model", options.layers, options.hidden)
        token_bytes = 2 * options.layers * options.hidden * 4  # keys and values, float32
        dice = random.Random(0)
        ids = [dice.choices(range(FIRST_WORD, VOCABULARY), k=PROMPT_TOKENS) for _ in range(options.requests)]
        lengths = [LENGTHS[options.lengths](dice) for _ in range(options.requests)]
        mean_tokens = PROMPT_TOKENS + statistics.fmean(lengths)
        self._asked = list(zip(ids, lengths, strict=True))
        if options.order == "longest_first":
            self._asked.sort(key=lambda one: -one[1])
        args = {
            "max_model_len": 1024,
            "max_num_seqs": options.seats,
            "dtype": "float32",
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": round(options.fits * mean_tokens * token_bytes),
        }
        self._holds_back = holds_back
        order = Open(
            backend="offline",
            model=str(model),
            model_id="random",
            args=args,
            clock=RunClock.start(),
            holds_back=holds_back,
        )
        settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
        setup = HostSetup.of(settings, EngineSpec(), list_devices("auto", 1)[0].env, folder / "engine.log")
        self.engine = OfflineEngine(order, setup, EngineHooks(on_sample=self._take))
        self._turns = itertools.count()

    def _take(self, sample: TelemetrySample) -> None:
        self.steps = sample.engine_steps or 0

    def measure(self, window: int) -> Round:
        turn, steps, started = next(self._turns), self.steps, time.monotonic()
        self.engine.set_window(window)
        answers = list(
            self.engine.generate(
                Request(
                    f"{turn}-{number}",
                    "",
                    0,
                    0,
                    ids,
                    {"temperature": 0, "ignore_eos": True, "max_tokens": length},
                    expected_output_tokens=length if self._holds_back else None,
                )
                for number, (ids, length) in enumerate(self._asked)
            )
        )
        seconds = time.monotonic() - started
        expected = sum(length for _, length in self._asked)
        assert sum(answer.output_tokens or 0 for answer in answers) == expected, "an answer is cut"
        return Round(seconds, self.steps - steps, sum(answer.preemptions or 0 for answer in answers))


def measure_windows(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every window, `rounds` times, and the table."""
    default = round(1.25 * options.seats)
    tried = {int(share * options.fits) for share in options.shares}
    windows = sorted({window for window in tried if window < default} | {default})
    ways = [*windows, HELD]
    measured: dict[int, list[Round]] = {way: [] for way in ways}
    with contextlib.ExitStack() as stack:
        benches = {holds: Bench(folder / str(holds), options, holds_back=holds) for holds in (False, True)}
        for bench in benches.values():
            stack.callback(bench.engine.close)
            bench.measure(default)
        for number in range(options.rounds):
            turned = ways[number % len(ways) :] + ways[: number % len(ways)]
            for way in turned if number % 2 else reversed(turned):
                measured[way].append(benches[way == HELD].measure(way or default))
    rows = [describe_window(way, rounds) for way, rounds in measured.items()]
    fixed = {row["window"]: row["seconds_median"] for row in rows if row["window"] != "held back"}
    return {
        "benchmark": "window",
        **{name: vars(options)[name] for name in ("requests", "seats", "fits", "rounds", "lengths", "order")},
        "windows": rows,
        "default_over_best": round(fixed[default] / min(fixed.values()), 3),
        "held_over_best": round(rows[-1]["seconds_median"] / min(fixed.values()), 3),
    }


def describe_window(window: int, rounds: list[Round]) -> dict[str, Any]:
    """One row of the table, printed."""
    seconds = [one.seconds for one in rounds]
    row = {
        "window": window or "held back",
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
    parser.add_argument("--lengths", choices=list(LENGTHS), default="log-normal")
    parser.add_argument("--order", choices=["given", "longest_first"], default="given")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.75, 1.0, 1.25, 2.0], help="windows / fits")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-window-") as name:
        report = measure_windows(Path(name), options)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
