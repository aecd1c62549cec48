"""What it is worth to ask each prompt once before any is asked again, played through without an engine.

    python -m benchmarks.repeat_order [--seeds 8]

A run that knows no lengths asks prompts several times. Lengths of a prompt's answers scatter around its own by
e^N(0, 0.2) or e^N(0, 0.5), and prompts' own lengths are log-normal (sigma 0.7 around e^4) or as of models that think
(sigma 1.2 around e^6, at most 8,192 tokens). Requests come prompt by prompt and leave through the worker's own
`Repeats`, into seats that give one token per step each. In steps over the bound: the longest answer, or all tokens over
all seats. The table of docs/ordering.md; a last line of JSON.
"""

import argparse
import heapq
import json
import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from assayline.evaluation.repeats import Repeats
from assayline.records import Completion, Request

SHORT, REASONING = (4.0, 0.7, 1024), (6.0, 1.2, 8192)
EVERYTHING = 10**9


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    kind: tuple[float, float, int]
    """Of prompts' own lengths: mean and sigma of the logarithm, and the longest."""
    prompts: int
    repeats: int
    seats: int
    scatter: float
    """Sigma of ln(answer's length / its prompt's)."""
    most_held: int = EVERYTHING


CASES = [
    Case(kind, prompts, repeats, seats, scatter, most_held)
    for kind in (SHORT, REASONING)
    for prompts, repeats, seats, most_held in (
        (200, 4, 64, EVERYTHING),
        (200, 8, 64, EVERYTHING),
        (200, 2, 64, EVERYTHING),
        (200, 4, 16, EVERYTHING),
        (1000, 4, 256, EVERYTHING),
        (1000, 4, 256, 640),
        (5000, 4, 256, 640),
    )
    for scatter in (0.2, 0.5)
]


def draw_lengths(case: Case, seed: int) -> dict[str, int]:
    """Output tokens by request, prompt by prompt."""
    dice = random.Random(seed)
    mean, sigma, most = case.kind
    lengths = {}
    for prompt in range(case.prompts):
        own = dice.gauss(mean, sigma)
        for repeat in range(case.repeats):
            length = math.exp(dice.gauss(own, case.scatter))
            lengths[f"{prompt}/{repeat}"] = min(max(int(length), 8), most)
    return lengths


def name_requests(lengths: dict[str, int]) -> Iterator[Request | None]:
    """As a worker's queue has them."""
    for name in lengths:
        prompt, _, repeat = name.partition("/")
        yield Request(name, prompt, 0, int(repeat), [1], {})


def play(lengths: dict[str, int], seats: int, order: Repeats) -> int:
    """Steps until the last request ends, where each takes the seat that is free first."""
    requests = order.feed(name_requests(lengths))
    running: list[tuple[int, str]] = []
    now = 0
    while True:
        while len(running) < seats and (request := next(requests, None)) is not None:
            heapq.heappush(running, (now + lengths[request.request_id], request.request_id))
        if not running:
            return now
        now = running[0][0]
        while running and running[0][0] == now:
            _, name = heapq.heappop(running)
            order.settle(Completion(name, "worker-0", 0, seats, output_tokens=lengths[name]))


def play_case(case: Case, seeds: int) -> dict[str, Any]:
    """One row: means over the seeds of steps over the bound."""
    given, learned = [], []
    for seed in range(seeds):
        lengths = draw_lengths(case, seed)
        bound = max(*lengths.values(), -(-sum(lengths.values()) // case.seats))
        given.append(play(lengths, case.seats, Repeats(0)) / bound)
        learned.append(play(lengths, case.seats, Repeats(case.most_held)) / bound)
    return {
        "set": "reasoning-like" if case.kind == REASONING else "log-normal",
        "prompts": case.prompts,
        "repeats": case.repeats,
        "seats": case.seats,
        "scatter": case.scatter,
        "most_held": None if case.most_held == EVERYTHING else case.most_held,
        "steps_given_over_bound": round(statistics.mean(given), 3),
        "steps_learned_over_bound": round(statistics.mean(learned), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    rows = []
    for case in CASES:
        rows.append(play_case(case, options.seeds))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    print(json.dumps({"benchmark": "repeat_order", "seeds": options.seeds, "rows": rows}))


if __name__ == "__main__":
    main()
