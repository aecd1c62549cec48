"""Effect of the request order: longest outputs first and file order, compared with raw `LLM.generate`.

    python -m benchmarks.ordering [--pairs 5] [--layers 1] [--hidden 64] [--only 0 3] [--shares 2] [--step-ms 25]

vLLM answers three sets with log-normal output lengths and one with heavy-tailed lengths of reasoning models: raw in
file order, the pipeline in file order, and the pipeline longest first, as in a second run that knows the output lengths
of the first. For the two sets of 800 requests, `pairs` pairs of raw and longest first are measured alternately, for the
others one. Steps are counted by vLLM. The lower bound is the longest output, or all tokens divided by all slots.

With `--shares 2`, each side's engine has half of the cores and the rest of the side the other half. With
`--step-ms 25`, each forward pass takes at least that long, which simulates a device whose steps are bound by reading
weights (`paced_model.py`).
"""

import argparse
import contextlib
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from assayline.engines.devices.claims import list_devices
from assayline.engines.process import engine_environment
from assayline.settings import Settings
from benchmarks.overhead import (
    Measurement,
    RawVllm,
    SteppingEngine,
    make_spec,
    measure_pipeline,
    read_requests,
    write_prompts,
)
from benchmarks.paced_model import install_paced_model, pace
from benchmarks.random_model import build_random_model
from benchmarks.yardstick import describe_ratios, draw_output_tokens

MOST_REASONING_TOKENS = 8192


def draw_reasoning_tokens(dice: random.Random) -> int:
    """Draw a heavy-tailed output length, as of reasoning models: log-normal, e^6, sigma 1.2, at most 8,192 tokens."""
    return min(max(int(dice.lognormvariate(6.0, 1.2)), 8), MOST_REASONING_TOKENS)


LengthSet = tuple[str, int, int, Callable[[random.Random], int]]
"""Name, requests, slots, and distribution of output lengths."""

REAL_SETS: list[LengthSet] = [
    ("log-normal", 800, 64, draw_output_tokens),
    ("log-normal", 1024, 256, draw_output_tokens),
    ("log-normal", 2000, 256, draw_output_tokens),
    ("reasoning-like", 800, 64, draw_reasoning_tokens),
]


def bound_steps(lengths: Sequence[int], seats: int) -> int:
    """Return the lower bound of engine steps for any order."""
    return max(*lengths, -(-sum(lengths) // seats))


def measure_set(
    folder: Path, model: Path, one: LengthSet, pairs: int, shares: int, args: dict[str, Any]
) -> dict[str, Any]:
    """Measure one set with vLLM and these additional arguments."""
    kind, requests, seats, draw = one
    folder.mkdir()
    prompts = folder / "prompts.jsonl"
    write_prompts(prompts, requests, draw)
    most_tokens = 256 + (MOST_REASONING_TOKENS if kind == "reasoning-like" else 768)
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    args = {"max_model_len": most_tokens, "max_num_seqs": seats, **args}
    given, ordered = (make_spec(model, prompts, args, order=order) for order in ("given", "auto"))
    device_env = list_devices("auto", shares)[0].env
    stepping = SteppingEngine(given, settings, device_env, folder / "pipeline.log")
    raw = RawVllm(given, engine_environment(settings, device_env, {}), folder / "raw.log")
    measured: list[tuple[Measurement, Measurement]] = []
    with contextlib.closing(stepping.engine), contextlib.closing(raw):
        _, run_id = measure_pipeline(given, settings, stepping)
        asked = read_requests(settings, run_id)
        raw.measure(asked[:64])
        for number in range(pairs):
            if number % 2:
                ours, theirs = measure_pipeline(ordered, settings, stepping)[0], raw.measure(asked)
            else:
                theirs, ours = raw.measure(asked), measure_pipeline(ordered, settings, stepping)[0]
            assert theirs.output_tokens == ours.output_tokens, "the sides generated different amounts"
            measured.append((theirs, ours))
            print(f"pair {number + 1}  raw {theirs.seconds:.2f} s  longest first {ours.seconds:.2f} s", flush=True)
        again, _ = measure_pipeline(given, settings, stepping)  # the first run also warmed up the processes
    lengths = [request["sampling"]["max_tokens"] for request in asked]
    row = {
        "set": kind,
        "requests": requests,
        "seats": seats,
        "steps_bound": bound_steps(lengths, seats),
        "steps_raw": int(statistics.median(theirs.engine_steps for theirs, _ in measured)),
        "steps_given": again.engine_steps,
        "steps_longest_first": int(statistics.median(ours.engine_steps for _, ours in measured)),
        "raw_seconds_median": round(statistics.median(theirs.seconds for theirs, _ in measured), 2),
        "seconds_given": round(again.seconds, 2),
        "seconds_longest_first_median": round(statistics.median(ours.seconds for _, ours in measured), 2),
        **describe_ratios("wall", [theirs.seconds / ours.seconds for theirs, ours in measured]),
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument(
        "--shares", type=int, default=1, help="split the cores into this many shares; the engine gets one"
    )
    parser.add_argument("--step-ms", type=float, help="minimum milliseconds per forward pass, to simulate a device")
    numbers = range(len(REAL_SETS))
    parser.add_argument(
        "--only",
        type=int,
        nargs="*",
        default=[*numbers],
        choices=numbers,
        help="numbers of the sets to measure, from 0",
    )
    options = parser.parse_args()
    model = build_random_model(
        Path(".cache") / f"random-{options.layers}x{options.hidden}-long",
        options.layers,
        options.hidden,
        max_position_embeddings=MOST_REASONING_TOKENS + 256,
    )
    args = {} if options.step_ms is None else {"hf_overrides": pace(options.step_ms)}
    with tempfile.TemporaryDirectory(prefix="assayline-ordering-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if options.step_ms is not None:
            stack.enter_context(install_paced_model(folder / "paced"))
        real = [
            measure_set(folder / str(number), model, one, options.pairs if one[1] == 800 else 1, options.shares, args)
            for number, one in enumerate(REAL_SETS)
            if number in options.only
        ]
    print(json.dumps({"benchmark": "ordering", **vars(options), "sets": real}))


if __name__ == "__main__":
    main()
