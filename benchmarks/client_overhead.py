"""CPU time and send lag of load generators at the highest rate that a server sustains.

    python -m benchmarks.client_overhead [--rounds 3] [--seconds 20] [--rate 40]

A tiny model is served on one core; clients use the others. First, `vllm bench serve` finds the rate: a closed loop
measures the server's maximum, then the rate is lowered until few requests are in flight when the last one is sent.
Then the clients run alternately at that rate: assayline, GuideLLM by default (ten worker processes), GuideLLM with one
worker, and vllm bench serve. CPU seconds cover a client's complete process tree between its first request and its last
token, without start-up, preparation and reports. The last line is JSON. Exit code 1: a request failed, or assayline
used more CPU per token or sent later than either GuideLLM.
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agreement import Client, show
from benchmarks.client_view import Load, Measurement, Server, make_prompts, summarize
from benchmarks.local_server import serve_model, split_cores
from benchmarks.own_client import measure_with_assayline
from benchmarks.peer_guidellm import GUIDELLM, measure_with_guidellm
from benchmarks.peer_vllm import measure_with_vllm_bench
from benchmarks.process_tree import CpuSamples
from benchmarks.random_model import build_random_model

CLIENTS: dict[str, Client] = {
    "assayline": measure_with_assayline,
    "guidellm": measure_with_guidellm,
    "guidellm, 1 worker": functools.partial(measure_with_guidellm, worker_processes=1),
    "vllm bench": measure_with_vllm_bench,
}
OURS, RIVALS = "assayline", ("guidellm", "guidellm, 1 worker")
MAX_NUM_SEQS = 64
SHARES_TRIED = (0.9, 0.8, 0.7, 0.6, 0.5)
MOST_IN_FLIGHT = MAX_NUM_SEQS // 2
"""Maximum requests in flight when the last one is sent. Above it, slots are nearly exhausted and requests queue."""


@dataclass(frozen=True)
class Cost:
    """CPU cost of a client's run."""

    cpu_s: float
    """CPU seconds of the process tree, from the first request to the last token."""
    busiest_cpu_s: float
    """CPU seconds of the busiest process, which is the first to reach its limit."""
    seconds: float
    output_tokens: int
    events: int
    """Events with tokens. A server under load puts several tokens into one event, which saves its clients work."""
    failed: int
    figures: dict[str, float | None]

    @property
    def cpu_share(self) -> float:
        return self.cpu_s / self.seconds

    @property
    def cpu_ms_per_1000_tokens(self) -> float:
        return 1e6 * self.cpu_s / self.output_tokens


def price_run(measurement: Measurement, samples: CpuSamples) -> Cost:
    """Measure CPU time between the first request and the last token."""
    start_s = min(one.sent_s for one in measurement.observations)
    end_s = max(one.last_s for one in measurement.observations)
    cpu = samples.cpu_between(start_s + measurement.zero_s, end_s + measurement.zero_s)
    return Cost(
        cpu_s=sum(cpu.values()),
        busiest_cpu_s=max(cpu.values()),
        seconds=end_s - start_s,
        output_tokens=sum(one.output_tokens for one in measurement.observations),
        events=sum(one.events for one in measurement.observations),
        failed=measurement.failed,
        figures=summarize(measurement),
    )


def find_highest_rate(server: Server, folder: Path, options: argparse.Namespace) -> float:
    """Find the requests per second that the server sustains, with a client that takes little CPU."""
    _, cores = split_cores()
    many = make_load(512, None, options)
    seen = measure_with_vllm_bench(many, server, folder, cores)[0].observations
    most = len(seen) / (max(one.last_s for one in seen) - min(one.sent_s for one in seen))
    print(f"concurrency {MAX_NUM_SEQS}: {most:.1f} requests/s", flush=True)
    for share in SHARES_TRIED:
        rate = round(share * most, 1)
        load = make_load(round(rate * options.seconds), rate, options)
        waiting = count_in_flight(measure_with_vllm_bench(load, server, folder, cores)[0])
        print(f"{rate:g} requests/s: {waiting} in flight when the last one is sent", flush=True)
        if waiting <= MOST_IN_FLIGHT:
            return rate
    sys.exit(f"The server sustains none of the rates tried, down to {SHARES_TRIED[-1]:.0%} of its maximum.")


def count_in_flight(measurement: Measurement) -> int:
    """Count requests whose last token came after the last request was sent."""
    end_s = max(one.sent_s for one in measurement.observations)
    return sum(one.last_s > end_s for one in measurement.observations)


def make_load(count: int, rate_per_s: float | None, options: argparse.Namespace) -> Load:
    prompts = make_prompts(count, options.prompt_tokens, options.output_tokens)
    return Load(prompts, rate_per_s, MAX_NUM_SEQS)


def measure_costs(load: Load, server: Server, folder: Path, options: argparse.Namespace) -> dict[str, list[Cost]]:
    """Run the clients alternately, in another order each round."""
    _, cores = split_cores()
    names = list(options.clients)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            place = folder / f"{number}-{names.index(name)}"
            place.mkdir()
            cost = price_run(*CLIENTS[name](load, server, place, cores))
            costs[name].append(cost)
            print(f"round {number + 1}: {name}: {describe(cost)}", flush=True)
    return costs


def describe(cost: Cost) -> str:
    """Format a line about a run, failures first."""
    words = [f"{cost.failed} FAILED"] if cost.failed else []
    words += [f"{cost.cpu_share:.3f} cores", f"{cost.cpu_ms_per_1000_tokens:.0f} CPU-ms per 1,000 tokens"]
    words += [f"{name} {show(cost.figures[name])} ms" for name in ("send_lag_p50_s", "send_lag_p95_s", "ttft_p50_s")]
    return ", ".join(words)


def summarize_costs(costs: dict[str, list[Cost]]) -> dict[str, dict[str, Any]]:
    """Return medians by client over the rounds, and the range of the CPU share."""
    summary: dict[str, dict[str, Any]] = {}
    for name, runs in costs.items():
        shares = [run.cpu_share for run in runs]
        row: dict[str, Any] = {
            "cpu_share": statistics.median(shares),
            "cpu_share_range": [min(shares), max(shares)],
            "busiest_process_share": statistics.median(run.busiest_cpu_s / run.seconds for run in runs),
            "cpu_ms_per_1000_tokens": statistics.median(run.cpu_ms_per_1000_tokens for run in runs),
            "events_per_token": statistics.median(run.events / run.output_tokens for run in runs),
            "failed": sum(run.failed for run in runs),
        }
        for key in ("send_lag_p50_s", "send_lag_p95_s", "ttft_p50_s", "tpot_p50_s", "output_tokens_per_s"):
            values = [value for run in runs if (value := run.figures[key]) is not None]
            row[key] = statistics.median(values) if values else None
        summary[name] = row
    return summary


def print_table(summary: dict[str, dict[str, Any]]) -> None:
    """Print the table in Markdown."""
    titles = ["cores (range)", "busiest process", "CPU-ms per 1,000 tokens", "events per token"]
    titles += ["send lag p50, p95", "TTFT p50", "TPOT p50"]
    print(f"\n| client | {' | '.join(titles)} |\n|---|{'---:|' * len(titles)}")
    for name, row in summary.items():
        low, high = row["cpu_share_range"]
        cells = [
            name,
            f"{row['cpu_share']:.3f} ({low:.3f}–{high:.3f})",
            f"{row['busiest_process_share']:.3f}",
            f"{row['cpu_ms_per_1000_tokens']:.0f}",
            f"{row['events_per_token']:.3f}",
            f"{show(row['send_lag_p50_s'])}, {show(row['send_lag_p95_s'])} ms",
            f"{show(row['ttft_p50_s'])} ms",
            f"{show(row['tpot_p50_s'])} ms",
        ]
        print(f"| {' | '.join(cells)} |")


def is_cheaper(summary: dict[str, dict[str, Any]]) -> bool:
    """Return True if assayline uses less CPU and sends less late than each GuideLLM, and no client lost a request."""
    if any(row["failed"] for row in summary.values()) or OURS not in summary:
        return False
    names = ("cpu_ms_per_1000_tokens", "send_lag_p50_s", "send_lag_p95_s")
    return all(summary[OURS][name] < summary[rival][name] for rival in RIVALS if rival in summary for name in names)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds per run")
    parser.add_argument("--rate", type=float, help="requests per second (default: find it)")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32, help="mean tokens per output")
    parser.add_argument("--clients", nargs="*", choices=list(CLIENTS), default=list(CLIENTS))
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    shape = f"{options.layers}x{options.hidden}"
    model = build_random_model(Path(".cache") / f"serving-{shape}", options.layers, options.hidden)
    with tempfile.TemporaryDirectory(prefix="assayline-client-overhead-") as name:
        folder = Path(name)
        with serve_model(model.resolve(), folder / "server.log", MAX_NUM_SEQS) as server:
            rate = options.rate or find_highest_rate(server, folder, options)
            load = make_load(round(rate * options.seconds), rate, options)
            summary = summarize_costs(measure_costs(load, server, folder, options))
    print_table(summary)
    cheaper = is_cheaper(summary)
    figures = {"cheaper": cheaper, "rate_per_s": rate, "guidellm": GUIDELLM, "clients": summary}
    print(json.dumps({**figures, "options": vars(options)}))
    return 0 if cheaper else 1


if __name__ == "__main__":
    sys.exit(main())
