"""What vLLM tells of its scheduler: the same metrics in an engine's own registry and at a server's `/metrics`.

The names are vLLM's public ones (its documentation, "Production metrics"), so nothing private is touched. A server with
several engines has each metric once per engine: requests and preemptions are added up, the KV cache's share is a mean.
"""

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

KV_CACHE = "vllm:kv_cache_usage_perc"
"""A share from 0 to 1, whatever its name says."""
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
NAMES = (KV_CACHE, RUNNING, WAITING, PREEMPTIONS)


class EngineStats(NamedTuple):
    """The last columns of a `TelemetrySample`; None for what is not told."""

    kv_cache_usage_share: float | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    preemptions: int | None = None
    """Since the engine, or the server, was started."""

    def since(self, before: "EngineStats") -> "EngineStats":
        """The same, with preemptions counted from an earlier reading. A server that was restarted counts from 0."""
        if self.preemptions is None or before.preemptions is None or self.preemptions < before.preemptions:
            return self
        return self._replace(preemptions=self.preemptions - before.preemptions)


def read_own_stats() -> EngineStats:
    """Those of the engine in this process, which may have processes of its own. Cheap, and safe in any thread."""
    return _add_up(REGISTRY.restricted_registry(NAMES).collect())


def parse_stats(text: str) -> EngineStats:
    """Those of a server, from its `/metrics`. Raises ValueError for what is no such text."""
    lines = (line for line in text.splitlines() if line.startswith(NAMES))  # a page of histograms is for others
    return _add_up(text_string_to_metric_families("\n".join(lines) + "\n"))


def _add_up(families: Iterable[Metric]) -> EngineStats:
    values: dict[str, list[float]] = {name: [] for name in NAMES}
    for family in families:
        for sample in family.samples:
            if sample.name in values:
                values[sample.name].append(sample.value)
    counts = (int(sum(values[name])) if values[name] else None for name in (RUNNING, WAITING, PREEMPTIONS))
    return EngineStats(fmean(values[KV_CACHE]) if values[KV_CACHE] else None, *counts)
