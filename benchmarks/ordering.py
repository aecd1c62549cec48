"""What the order of requests is worth: longest answers first against the order given, against raw `LLM.generate`.

    python -m benchmarks.ordering [--pairs 5] [--layers 1] [--hidden 64] [--only 0 3] [--shares 2] [--step-ms 25]

Real vLLM answers three sets with log-normal output lengths and one with those of models that think: raw in the order
given, the pipeline in the order given, and the pipeline longest first, as in a second run, which knows the lengths of
the first. Of the two sets of 800 requests `pairs` pairs of raw and longest first are measured in turn, of the others
one. Steps are vLLM's own count. What is too long for a CPU is played through seat by seat, as is a second run whose
lengths differ from the first by e^N(0, 0.5): answers that are drawn anew. The bound is the longest answer, or all
tokens over all seats.

With `--shares 2` either side's engine has half of the cores, and what is around it the others. With `--step-ms 25` each
forward pass of either side takes at least so long, as on a device that reads its weights whatever runs
(`paced_model.py`): a device that is simulated, under real vLLM.

A last set (`--only 4`) asks eight questions about each of 48 documents, in any order, of an engine whose prefix cache
holds a third of the documents: in the order given, longest first without regard to documents, and as it is done.
"""

import argparse
import contextlib
import heapq
import json
import random
import statistics
import tempfile
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from assayline.engines.devices.claims import list_devices
from assayline.engines.environment import engine_environment
from assayline.evaluation.order import FAMILY_TOKENS
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.database import connect
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
GUESS_ERROR = 0.5
"""Standard deviation of ln(found length / expected length), where answers are drawn anew."""


DOCUMENTS, QUESTIONS, DOCUMENT_BYTES = 48, 8, 512
CACHE_BYTES = 2**22
"""8,192 tokens of a model of 1 layer × 64 in float32."""


def draw_reasoning_tokens(dice: random.Random) -> int:
    """Heavy-tailed, as of models that think: log-normal around e^6 with sigma 1.2, at most 8,192 tokens."""
    return min(max(int(dice.lognormvariate(6.0, 1.2)), 8), MOST_REASONING_TOKENS)


LengthSet = tuple[str, int, int, Callable[[random.Random], int]]
"""Name, requests, seats, and how output lengths are drawn."""

REAL_SETS: list[LengthSet] = [
    ("log-normal", 800, 64, draw_output_tokens),
    ("log-normal", 1024, 256, draw_output_tokens),
    ("log-normal", 2000, 256, draw_output_tokens),
    ("reasoning-like", 800, 64, draw_reasoning_tokens),
]
PLAYED_SETS: list[LengthSet] = [*REAL_SETS, ("reasoning-like", 10_000, 256, draw_reasoning_tokens)]


def play(lengths: Sequence[int], seats: int) -> int:
    """Steps until the last request ends, where each takes the seat that is free first."""
    free_at = [0] * seats
    for length in lengths:
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)


def bound_steps(lengths: Sequence[int], seats: int) -> int:
    """What no order can go below."""
    return max(*lengths, -(-sum(lengths) // seats))


def play_set(kind: str, requests: int, seats: int, draw: Callable[[random.Random], int]) -> dict[str, Any]:
    """One row of the table that needs no engine."""
    dice = random.Random(0)
    lengths = [draw(dice) for _ in range(requests)]
    guesses = [length * dice.lognormvariate(0, GUESS_ERROR) for length in lengths]
    by_guess = [length for _, length in sorted(zip(guesses, lengths, strict=True), reverse=True)]
    row = {
        "set": kind,
        "requests": requests,
        "seats": seats,
        "steps_bound": bound_steps(lengths, seats),
        "steps_given": play(lengths, seats),
        "steps_longest_first": play(sorted(lengths, reverse=True), seats),
        "steps_guessed": play(by_guess, seats),
    }
    print("played  " + describe(row), flush=True)
    return row


def describe(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    return "  ".join(f"{name} {value}" for name, value in row.items())


def add_args(spec: EvalSpec, args: dict[str, Any]) -> EvalSpec:
    """The spec with more arguments for the engine."""
    fields = spec.model_dump(mode="json")
    fields["engine"]["args"] |= args
    return parse_spec(fields)


def measure_set(
    folder: Path, model: Path, one: LengthSet, pairs: int, shares: int, args: dict[str, Any]
) -> dict[str, Any]:
    """One set through real vLLM, with these arguments beside the usual ones."""
    kind, requests, seats, draw = one
    folder.mkdir()
    prompts = folder / "prompts.jsonl"
    write_prompts(prompts, requests, draw)
    most_tokens = 256 + (MOST_REASONING_TOKENS if kind == "reasoning-like" else 768)
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    usual = {"mode": "continuous", "window": None, "token_times": False, "dtype": "float32", "seats": seats}
    given, ordered = (
        add_args(make_spec(model, prompts, argparse.Namespace(**usual, order=order), most_tokens), args)
        for order in ("given", "auto")
    )
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
        again, _ = measure_pipeline(given, settings, stepping)  # the first one also warmed the processes up
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
    print("real    " + describe(row), flush=True)
    return row


def write_documents(path: Path) -> None:
    """Questions of 16 bytes about documents of 512, shuffled, with output lengths of 8 to 64 tokens."""
    dice = random.Random(0)
    texts = ["".join(dice.choices("abcdefghij klmnop qrstuvwxyz", k=DOCUMENT_BYTES)) for _ in range(DOCUMENTS)]
    asked = [text + "".join(dice.choices("0123456789", k=16)) for text in texts for _ in range(QUESTIONS)]
    dice.shuffle(asked)
    with path.open("w") as file:
        for text in asked:
            length = min(draw_output_tokens(dice), 64)
            file.write(json.dumps({"prompt": text, "sampling": {"max_tokens": length, "min_tokens": length}}) + "\n")


def measure_documents(folder: Path, model: Path, args: dict[str, Any]) -> list[dict[str, Any]]:
    """The set whose prompts share prefixes, through real vLLM, in three orders."""
    folder.mkdir()
    prompts = folder / "prompts.jsonl"
    write_documents(prompts)
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    usual = {"mode": "continuous", "window": None, "token_times": False, "dtype": "float32", "seats": 16}
    args = {**args, "enable_prefix_caching": True, "kv_cache_memory_bytes": CACHE_BYTES}
    specs = {
        order: add_args(make_spec(model, prompts, argparse.Namespace(**usual, order=order)), args)
        for order in ("given", "auto")
    }
    device_env = list_devices("auto", 1)[0].env
    stepping = SteppingEngine(specs["given"], settings, device_env, folder / "pipeline.log")
    rows = []
    with contextlib.closing(stepping.engine):
        for name, order, family_tokens in (
            ("given", "given", FAMILY_TOKENS),
            ("longest first, scattered", "auto", 10**9),
            ("longest first, documents together", "auto", FAMILY_TOKENS),
        ):
            with unittest.mock.patch("assayline.evaluation.order.FAMILY_TOKENS", family_tokens):
                found, run_id = measure_pipeline(specs[order], settings, stepping)
            with connect(settings.database_path, 10, read_only=True) as connection:
                [(prompt_tokens, cached_tokens, preemptions)] = connection.execute(
                    "select sum(prompt_tokens), sum(cached_tokens), sum(preemptions) from stg_requests "
                    "where run_id = ?",
                    [run_id],
                ).fetchall()
            rows.append(
                {
                    "set": "documents",
                    "order": name,
                    "prompt_tokens": int(prompt_tokens),
                    "cached_tokens": int(cached_tokens),
                    "preemptions": int(preemptions),
                    "steps": found.engine_steps,
                    "seconds": round(found.seconds, 2),
                }
            )
            print("real    " + describe(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--shares", type=int, default=1, help="equal parts of the cores, of which the engine has one")
    parser.add_argument("--step-ms", type=float, help="least milliseconds of a forward pass, slept; a simulated device")
    numbers = range(len(REAL_SETS) + 1)
    parser.add_argument("--only", type=int, nargs="*", default=[*numbers], choices=numbers, help="sets, from 0")
    options = parser.parse_args()
    played = [play_set(*row) for row in PLAYED_SETS]
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
        documents = measure_documents(folder / "documents", model, args) if len(REAL_SETS) in options.only else []
    report = {
        "benchmark": "ordering",
        "layers": options.layers,
        "hidden": options.hidden,
        "pairs": options.pairs,
        "shares": options.shares,
        "step_ms": options.step_ms,
    }
    print(json.dumps({**report, "real": real, "played": played, "documents": documents}))


if __name__ == "__main__":
    main()
