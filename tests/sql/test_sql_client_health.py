"""client_health: how late the client's own event loop is, and what that is of the latencies that it measured."""

import asyncio
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from row_kit import Store
from run_kit import order_of

from assayline.clock import RunClock
from assayline.engines.host.pacing import StreamHost
from assayline.engines.messages import Generate, Opened
from assayline.records import Completion, Request, TelemetrySample
from assayline.report.run.speed import judge_clients
from assayline.store.metrics import list_warnings

ORDER = order_of(clock=RunClock(0.0, 0.0, ""), worker="w")


class BlockingCore:
    """Holds the loop up for `blocked_s` in the middle of an answer."""

    def __init__(self, blocked_s: float) -> None:
        self._blocked_s = blocked_s

    async def open(self) -> Opened:
        return Opened(8, 64)

    async def answer(self, message: Generate) -> Completion:
        await asyncio.sleep(0.02)
        time.sleep(self._blocked_s)
        await asyncio.sleep(0.02)
        return Completion(request_id=message.request.request_id, worker="w", engine_generation=0, window_requests=1)

    def sample(self) -> TelemetrySample:
        return TelemetrySample(
            worker="w", engine_generation=0, at_s=0.0, engine_steps=None, in_flight_requests=0, output_tokens=0
        )


def sample_a_host(blocked_s: float) -> TelemetrySample:
    async def run() -> TelemetrySample:
        told: list[Any] = []
        host = StreamHost(BlockingCore(blocked_s), ORDER, told.append)  # type: ignore[arg-type]
        await host.open()
        host.take(
            Generate(
                Request(request_id="r", prompt_id="p", occurrence=0, repeat_index=0, prompt_token_ids=[1], sampling={}),
                0.0,
                1,
            )
        )
        while not (samples := [message.sample for message in told if hasattr(message, "sample")]):
            await asyncio.sleep(0.01)
        return samples[0]

    return asyncio.run(run())


def given_sample(store: Store, sample: TelemetrySample, ttft_s: float, tokens: int = 11) -> None:
    store.given("telemetry", asdict(sample))
    store.given_answers(
        {
            "arrived_at_s": 0.0,
            "first_token_at_s": ttft_s,
            "last_token_at_s": 2 * ttft_s,
            "finished_at_s": 2 * ttft_s,
            "output_tokens": tokens,
        }
    )


def test_client_health_warns_when_the_loop_is_held_up_for_200_ms(store: Store) -> None:
    sample = sample_a_host(blocked_s=0.2)
    given_sample(store, sample, ttft_s=0.5)
    row = store.row("client_health")
    assert 0.15 < row["p99_s"] <= row["max_s"]
    assert sum(lag_s > 0.005 for lag_s in sample.loop_lags_s or ()) >= 18, "all ticks that were missed"
    assert row["ttft_share"] == pytest.approx(row["p99_s"] / 0.5)
    assert row["is_healthy"] is False
    (warning,) = judge_clients([row])
    assert warning.is_warning and "of the median TTFT" in warning.text  # type: ignore[union-attr]
    store.measure()
    (note,) = list_warnings(store.connection, "run")
    assert note.startswith("The client was overloaded: it read events late, so")


def test_client_health_has_percentiles_of_all_samples_as_numpy_has_them(store: Store) -> None:
    random = np.random.default_rng(3)
    lags = [random.exponential(0.002, 100).tolist() for _ in range(20)]
    store.given("telemetry", *({"at_s": float(i), "loop_lags_s": one} for i, one in enumerate(lags)))
    pooled = np.concatenate(lags)
    store.expect(
        "client_health",
        {
            "ticks": 2000,
            "p50_s": float(np.quantile(pooled, 0.5)),
            "p99_s": float(np.quantile(pooled, 0.99)),
            "max_s": float(pooled.max()),
            "ttft_share": None,
            "is_healthy": True,
        },
    )


@pytest.mark.parametrize(
    ("lag_s", "ttft_s", "is_healthy"),
    [(0.004, 0.01, True), (0.02, 0.3, False), (0.02, 30.0, True), (0.006, 0.05, False)],
)
def test_client_health_is_judged_by_ttft_and_tpot(store: Store, lag_s: float, ttft_s: float, is_healthy: bool) -> None:
    """TPOT is a tenth of TTFT here, so that a constant lag exceeds its limit first."""
    given_sample(
        store,
        TelemetrySample(
            worker="w",
            engine_generation=0,
            at_s=0.0,
            engine_steps=None,
            in_flight_requests=0,
            output_tokens=0,
            loop_lags_s=[lag_s] * 50,
        ),
        ttft_s,
    )
    row = store.row("client_health")
    assert row["is_healthy"] is is_healthy
    assert row["tpot_share"] == pytest.approx(lag_s / (ttft_s / 10))


def test_engines_without_an_event_loop_have_no_client_health(store: Store) -> None:
    store.given("runs", {"run_id": "run"})
    store.given("telemetry", {"at_s": 1.0, "loop_lags_s": None})
    store.expect("client_health")
