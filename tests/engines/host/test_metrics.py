"""Scheduler metrics of a server's `/metrics` page, and the rest of that page."""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from engine_kit import with_core
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from run_kit import plain_request
from server_kit import FakeServer

from assayline.clock import RunClock
from assayline.engines.host.flight import EngineStats, parse_stats
from assayline.engines.host.server import client
from assayline.engines.host.server.core import ServerCore
from assayline.engines.messages import Open
from assayline.records import TelemetrySample
from assayline.spec.engine import EngineSpec, ServerSpec


def write_page(*engines: tuple[float, int, int, int]) -> str:
    """A page as vLLM's server writes it: KV cache, running, waiting and preemptions by engine, among other things."""
    registry, labels = CollectorRegistry(), ["model_name", "engine"]
    gauges = [
        Gauge(name, "A gauge.", labels, registry=registry)
        for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
    ]
    by_reason = Gauge("vllm:num_requests_waiting_by_reason", "Not added up.", [*labels, "reason"], registry=registry)
    preemptions = Counter("vllm:num_preemptions", "A counter.", labels, registry=registry)
    latency = Histogram("vllm:time_to_first_token_seconds", "A histogram.", labels, registry=registry)
    for number, (share, running, waiting, preempted) in enumerate(engines):
        for gauge, value in zip(gauges, (share, running, waiting), strict=True):
            gauge.labels("a model", number).set(value)
        by_reason.labels("a model", number, "capacity").set(waiting)
        preemptions.labels("a model", number).inc(preempted)
        latency.labels("a model", number).observe(0.5)
    return generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("page", "stats"),
    [
        (write_page((0.25, 12, 3, 40)), EngineStats(0.25, 12, 3, 40)),
        (write_page((0.25, 12, 3, 40), (0.75, 8, 0, 2)), EngineStats(0.5, 20, 3, 42)),
        *((text, EngineStats()) for text in ("", "<html>nothing</html>", "python_info 1.0\n")),
    ],
    ids=["one engine", "engines behind one server", "nothing", "a page", "another program"],
)
def test_four_numbers_are_read_from_a_page_and_those_of_several_engines_are_added_up(page, stats):
    assert parse_stats(page) == stats


def test_preemptions_are_counted_from_an_earlier_reading():
    assert EngineStats(0.5, 1, 0, 42).since(EngineStats(0.0, 0, 0, 40)).preemptions == 2
    assert EngineStats(0.5, 1, 0, 3).since(EngineStats(0.0, 0, 0, 40)).preemptions == 3, "the server was restarted"
    assert EngineStats(0.5, 1, 0, 3).since(EngineStats()) == EngineStats(0.5, 1, 0, 3)


def watch_server(server: FakeServer, done: Callable[[TelemetrySample], bool]) -> TelemetrySample:
    """The first sample of a core on this server that is as wanted."""

    async def act(core: ServerCore) -> TelemetrySample:
        await core.warm_up(plain_request("warm-up", prompt_token_ids=[1, 2, 3], sampling={"max_tokens": 4}))
        while not done(sample := core.sample()):
            await asyncio.sleep(0.01)
        return sample

    engine = EngineSpec(backend="server", server=ServerSpec(url=server.url))
    order = Open(engine=engine, model="fake-model", clock=RunClock.start())
    return with_core(order, act)


def test_a_servers_samples_have_what_it_says_of_itself(monkeypatch):
    monkeypatch.setattr(client, "WATCH_INTERVAL_S", 0.01)
    with FakeServer().running() as server:
        server.metrics = write_page((0.25, 12, 3, 40))

        def is_second_page(sample: TelemetrySample) -> bool:
            if sample.running_requests == 12:
                assert sample.preemptions == 0, "those before this engine are others'"
                server.metrics = write_page((0.5, 20, 0, 47))
            return sample.running_requests == 20

        sample = watch_server(server, is_second_page)
    assert (sample.kv_cache_usage_share, sample.running_requests, sample.waiting_requests) == (0.5, 20, 0)
    assert sample.preemptions == 7 and sample.engine_steps is None


def test_a_server_without_the_page_is_asked_once(monkeypatch):
    monkeypatch.setattr(client, "WATCH_INTERVAL_S", 0.01)
    with FakeServer(is_vllm=False).running() as server:
        looks = itertools.count()
        sample = watch_server(server, lambda _: server.metrics_read > 0 and next(looks) > 20)
        assert server.metrics_read == 1
    assert sample.kv_cache_usage_share is None and sample.preemptions is None
