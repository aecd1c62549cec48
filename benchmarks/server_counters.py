"""What vLLM's server itself counted while a client ran: mean latencies on its own clock, from its Prometheus counters.

An engine is not equally fast in every run, least of all on a busy machine. What a client saw over what the server
counted in the same run is free of that: the rest is the way between them, and how the two define a latency.
"""

import urllib.request

from benchmarks.client_view import Server

COUNTERS = {
    "ttft_mean_s": "vllm:time_to_first_token_seconds",
    "tpot_mean_s": "vllm:request_time_per_output_token_seconds",
    "itl_mean_s": "vllm:inter_token_latency_seconds",
    "e2e_mean_s": "vllm:e2e_request_latency_seconds",
}
"""By the names that `summarize` uses for a client's means."""

Counts = dict[str, tuple[float, float]]
"""Seconds and number of values so far, by metric."""


def read_counters(server: Server) -> Counts:
    """The counters now."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        return parse_counters(answer.read().decode())


def parse_counters(text: str) -> Counts:
    """Sums and counts of the latencies, from Prometheus's text format."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.partition("{")[0]] = float(value)
    return {ours: (values[f"{theirs}_sum"], values[f"{theirs}_count"]) for ours, theirs in COUNTERS.items()}


def find_means(before: Counts, after: Counts) -> dict[str, float]:
    """Mean seconds of what was counted in between."""
    means: dict[str, float] = {}
    for name, (seconds, count) in after.items():
        if count > before[name][1]:
            means[name] = (seconds - before[name][0]) / (count - before[name][1])
    return means
