"""Agreement of latencies measured by assayline, vllm bench serve and GuideLLM on one server under the same load.

    python -m benchmarks.agreement [--rounds 3] [--rates 1 2 4] [--concurrency 4] [--seconds 20]

The clients run alternately, in another order each round. Medians are computed by assayline's definitions from each
client's records per request. A ratio compares two clients of one round; the table has the median and range of the
ratios over the rounds. A second table compares each client's means with the server's counters of the same run, which
is robust on a busy machine. The last line is JSON. Exit code 1: a request failed, or a median differs by more than 3%.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.client_view import Load, Measurement, Server, make_prompts, summarize
from benchmarks.local_server import serve_model, split_cores
from benchmarks.own_client import measure_with_assayline
from benchmarks.peer_guidellm import GUIDELLM, measure_with_guidellm
from benchmarks.peer_vllm import measure_with_vllm_bench
from benchmarks.random_model import build_random_model
from benchmarks.server_counters import COUNTERS, find_means, read_counters

Client = Callable[[Load, Server, Path, set[int]], Measurement]

CLIENTS: dict[str, Client] = {
    "assayline": measure_with_assayline,
    "vllm bench": measure_with_vllm_bench,
    "guidellm": measure_with_guidellm,
}
OURS = "assayline"
METRICS = {"TTFT": "ttft_p50_s", "TPOT": "tpot_p50_s", "ITL": "itl_p50_s", "E2E": "e2e_p50_s"}
THROUGHPUT = "output_tokens_per_s"
GOAL = 0.03
WARM_UP_REQUESTS = 4


def measure_loads(
    loads: list[Load], clients: dict[str, Client], server: Server, folder: Path, rounds: int
) -> dict[str, dict[str, list[Measurement]]]:
    """Measure every load with every client. Return measurements by load, client and round."""
    _, cores = split_cores()
    names = list(clients)
    found: dict[str, dict[str, list[Measurement]]] = {load.name: {name: [] for name in names} for load in loads}
    for number in range(rounds):
        for load in loads:
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                place = folder / f"{number}-{loads.index(load)}-{names.index(name)}"
                place.mkdir()
                before = read_counters(server)
                measurement = clients[name](load, server, place, cores)
                means = find_means(before, read_counters(server))
                measurement = dataclasses.replace(measurement, server_means=means)
                found[load.name][name].append(measurement)
                print(f"round {number + 1}: {load.name}, {name}: {describe(measurement)}", flush=True)
    return found


def describe(measurement: Measurement) -> str:
    """Format a line about a run, failures first."""
    figures = summarize(measurement)
    reasons = "; ".join(measurement.reasons) or "no reason reported"
    words = [f"{measurement.failed} FAILED ({reasons})"] if measurement.failed else []
    words += [f"{name} {show(figures[key])} ms" for name, key in METRICS.items()]
    return ", ".join([*words, f"{figures[THROUGHPUT]:.1f} tok/s"])


def show(seconds: float | None) -> str:
    """Format seconds as milliseconds."""
    return "–" if seconds is None else f"{seconds * 1000:.2f}"


def compare_clients(rounds: dict[str, list[Measurement]]) -> dict[str, dict[str, Any]]:
    """Return, by metric, each client's median over the rounds, and ratios to assayline's per round."""
    table: dict[str, dict[str, Any]] = {}
    for key in [*METRICS.values(), THROUGHPUT]:
        values = {name: [summarize(one)[key] for one in runs] for name, runs in rounds.items()}
        row: dict[str, Any] = {
            "value": {name: find_median(series) for name, series in values.items()},
            "ratio": {},
        }
        for name, theirs in values.items():
            pairs = zip(values.get(OURS, []), theirs, strict=False)
            ratios = [here / there for here, there in pairs if here is not None and there is not None]
            if name != OURS and ratios:
                row["ratio"][name] = [statistics.median(ratios), min(ratios), max(ratios)]
        table[key] = row
    return table


def compare_with_server(rounds: dict[str, list[Measurement]]) -> dict[str, dict[str, list[float]]]:
    """Return, by metric and client, the client's mean over the server's mean: median and range over the rounds."""
    table: dict[str, dict[str, list[float]]] = {}
    for key in COUNTERS:
        table[key] = {}
        for name, runs in rounds.items():
            pairs = [(summarize(one)[key], one.server_means.get(key)) for one in runs]
            ratios = [saw / counted for saw, counted in pairs if saw is not None and counted]
            if ratios:
                table[key][name] = [statistics.median(ratios), min(ratios), max(ratios)]
    return table


def find_median(values: list[float | None]) -> float | None:
    """Return the median of the values that are not None."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def print_table(load: str, table: dict[str, dict[str, Any]]) -> None:
    """Print a load's table in Markdown: latencies in ms."""
    names = list(table[THROUGHPUT]["value"])
    peers = [name for name in names if name != OURS]
    print(f"\n{load}: assayline's definitions; then ours / theirs, median (range) over rounds\n")
    print(f"| median | {' | '.join(names)} | {' | '.join(f'ours / {name}' for name in peers)} |")
    print("|---|" + "---:|" * (len(names) + len(peers)))
    for title, key in [*((f"{name}, ms", key) for name, key in METRICS.items()), ("output tokens/s", THROUGHPUT)]:
        row, form = table[key], (lambda value: f"{value:.1f}") if key == THROUGHPUT else show
        cells = ["–" if (value := row["value"][name]) is None else form(value) for name in names]
        for name in peers:
            ratio = row["ratio"].get(name)
            cells.append("–" if ratio is None else f"{ratio[0]:.3f} ({ratio[1]:.3f}–{ratio[2]:.3f})")
        print(f"| {title} | {' | '.join(cells)} |")


def print_server_table(load: str, table: dict[str, dict[str, list[float]]], names: list[str]) -> None:
    """Print a load's second table."""
    print(f"\n{load}: client's mean / server's mean, median (range) over rounds\n")
    print(f"| mean | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for title, key in zip(METRICS, COUNTERS, strict=True):
        cells = ["{:.3f} ({:.3f}–{:.3f})".format(*table[key][name]) if name in table[key] else "–" for name in names]
        print(f"| {title} | {' | '.join(cells)} |")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 2.0, 4.0], help="requests per second")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[4])
    parser.add_argument("--seconds", type=float, default=20.0, help="approximate seconds per run of a rate")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32, help="mean tokens per output")
    parser.add_argument("--clients", nargs="*", choices=list(CLIENTS), default=list(CLIENTS))
    return parser.parse_args()


def make_loads(options: argparse.Namespace) -> list[Load]:
    """Make a load per rate, of the given duration, and one per concurrency, with the last rate's number of requests."""
    counts = [max(round(rate * options.seconds), 16) for rate in options.rates] or [64]
    prompts = make_prompts(max(counts), options.prompt_tokens, options.output_tokens)
    loads = [Load(prompts[:count], rate) for rate, count in zip(options.rates, counts, strict=False)]
    return loads + [Load(prompts[: counts[-1]], concurrency=many) for many in options.concurrency]


def main() -> int:
    options = parse_options()
    loads = make_loads(options)
    clients = {name: CLIENTS[name] for name in options.clients}
    model = build_random_model(
        Path(".cache") / f"serving-{options.layers}x{options.hidden}", options.layers, options.hidden
    )
    with tempfile.TemporaryDirectory(prefix="assayline-agreement-") as name:
        folder = Path(name)
        with serve_model(model.resolve(), folder / "server.log", 64) as server:
            warm_up = Load(loads[-1].prompts[:WARM_UP_REQUESTS])
            measure_with_vllm_bench(warm_up, server, folder, split_cores()[1])
            found = measure_loads(loads, clients, server, folder, options.rounds)
    tables = {load: compare_clients(rounds) for load, rounds in found.items()}
    server_tables = {load: compare_with_server(rounds) for load, rounds in found.items()}
    for load, table in tables.items():
        print_table(load, table)
        print_server_table(load, server_tables[load], list(clients))
    failed = {name: sum(one.failed for rounds in found.values() for one in rounds[name]) for name in clients}
    ratios = [ratio for table in tables.values() for row in table.values() for ratio, *_ in row["ratio"].values()]
    agrees = bool(ratios) and max(abs(ratio - 1) for ratio in ratios) <= GOAL and not any(failed.values())
    if any(failed.values()):
        print(f"\nFailed or retried requests, excluded from the figures: {failed}")
    report = {"agrees": agrees, "failed": failed, "guidellm": GUIDELLM, "options": vars(options)}
    print(json.dumps({**report, "loads": tables, "against_server": server_tables}))
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
