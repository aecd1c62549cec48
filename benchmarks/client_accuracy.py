"""How far from the truth each client's latencies are, against a server that knows when it wrote every token.

    python -m benchmarks.client_accuracy [--rounds 3] [--rate 10] [--seconds 15]

`benchmarks.agreement` compares clients with one another on a real engine, whose speed changes from run to run on a busy
machine. Here the server goes by the clock (`paced_server.py`) and stamps what it writes, so that each run has its own
truth: from having read the request to having written a token. What a client adds to that, connection and event loop, is
its error. The last line is JSON. Exit code 1: a request failed, or a median of assayline's is off by more than 3 %.
"""

import argparse
import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.agreement import CLIENTS, GOAL, METRICS, OURS, show
from benchmarks.client_view import Load, Measurement, Observation, Server, find_gaps, make_prompts, summarize
from benchmarks.local_server import pace_server, split_cores
from benchmarks.random_model import build_random_model


def read_truth(server: Server, requests: int) -> Measurement:
    """What the server wrote, of the newest requests, as clients may warm up."""
    with urllib.request.urlopen(f"{server.url}/seen") as answer:
        seen = sorted(json.load(answer))[-requests:]
    observations = [
        Observation(read_at, stamps[0], stamps[-1], len(stamps), len(stamps), find_gaps(stamps))
        for read_at, *stamps in seen
    ]
    return Measurement(tuple(observations), requests - len(observations))


def compare_with_truth(runs: list[tuple[Measurement, Measurement]]) -> dict[str, dict[str, float | None]]:
    """By metric: medians over the rounds of what the client saw, what was true, and their ratio."""
    table: dict[str, dict[str, float | None]] = {}
    for key in METRICS.values():
        pairs = [(summarize(client)[key], summarize(truth)[key]) for client, truth in runs]
        whole = [(saw, true) for saw, true in pairs if saw is not None and true is not None]
        if not whole:
            table[key] = {"saw_s": None, "true_s": None, "ratio": None}
            continue
        table[key] = {
            "saw_s": statistics.median(saw for saw, _ in whole),
            "true_s": statistics.median(true for _, true in whole),
            "ratio": statistics.median(saw / true for saw, true in whole),
        }
    return table


def print_table(tables: dict[str, dict[str, dict[str, Any]]]) -> None:
    """In Markdown: what was seen, what was true, and the ratio."""
    print(f"\n| median, seen / true, ms (ratio) | {' | '.join(tables)} |\n|---|{'---:|' * len(tables)}")
    for title, key in METRICS.items():
        cells = []
        for table in tables.values():
            row = table[key]
            ratio = "–" if row["ratio"] is None else f"{row['ratio']:.4f}"
            cells.append(f"{show(row['saw_s'])} / {show(row['true_s'])} ({ratio})")
        print(f"| {title} | {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of one run")
    options = parser.parse_args()
    load = Load(make_prompts(round(options.rate * options.seconds), 128, 32), options.rate)
    model = build_random_model(Path(".cache") / "serving-1x128", 1, 128)
    names, (_, cores) = list(CLIENTS), split_cores()
    runs: dict[str, list[tuple[Measurement, Measurement]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="assayline-accuracy-") as scratch:
        for number in range(options.rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                folder = Path(scratch) / f"{number}-{names.index(name)}"
                folder.mkdir()
                with pace_server(model.resolve(), folder / "server.log") as server:
                    measurement, _ = CLIENTS[name](load, server, folder, cores)
                    runs[name].append((measurement, read_truth(server, len(load.prompts))))
                print(f"round {number + 1}: {name} done, {measurement.failed} failed", flush=True)
    tables = {name: compare_with_truth(pairs) for name, pairs in runs.items()}
    print_table(tables)
    failed = {name: sum(one.failed for one, _ in pairs) for name, pairs in runs.items()}
    ratios = [row["ratio"] for row in tables[OURS].values()]
    is_true = not any(failed.values()) and all(ratio is not None and abs(ratio - 1) <= GOAL for ratio in ratios)
    print(json.dumps({"accurate": is_true, "failed": failed, "options": vars(options), "clients": tables}))
    return 0 if is_true else 1


if __name__ == "__main__":
    sys.exit(main())
