"""Mean latencies measured by vLLM's server during a client's run, from its Prometheus counters.

Engine speed varies between runs, most on a busy machine. The ratio of a client's mean to the server's mean of the same
run is independent of that: it shows the transport between them and differences in definition.
"""

import urllib.request

from benchmarks.client_view import Server

COUNTERS = {
    "ttft_mean_s": "vllm:time_to_first_token_seconds",
    "tpot_mean_s": "vllm:request_time_per_output_token_seconds",
    "itl_mean_s": "vllm:inter_token_latency_seconds",
    "e2e_mean_s": "vllm:e2e_request_latency_seconds",
}
"""Prometheus metrics by the names that `summarize` uses for a client's means."""

Counts = dict[str, tuple[float, float]]
"""Total seconds and number of values, by metric."""


def read_counters(server: Server) -> Counts:
    """Read the counters."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        return parse_counters(answer.read().decode())


def parse_counters(text: str) -> Counts:
    """Parse sums and counts of the latencies from Prometheus's text format."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.partition("{")[0]] = float(value)
    return {ours: (values[f"{theirs}_sum"], values[f"{theirs}_count"]) for ours, theirs in COUNTERS.items()}


def find_means(before: Counts, after: Counts) -> dict[str, float]:
    """Compute mean seconds between two readings."""
    means: dict[str, float] = {}
    for name, (seconds, count) in after.items():
        if count > before[name][1]:
            means[name] = (seconds - before[name][0]) / (count - before[name][1])
    return means
