"""benchmarks.agreement and benchmarks.client_overhead: peers' reports read, one set of definitions, CPU of a window."""

from typing import Any

import pytest

from benchmarks import agreement, client_overhead, server_counters
from benchmarks.client_view import Measurement, Observation, Prompt, make_prompts, summarize, write_rows
from benchmarks.peer_guidellm import read_report
from benchmarks.peer_vllm import read_result
from benchmarks.process_tree import CpuSamples

BENCH: dict[str, Any] = {
    "start_times": [10.0, 11.0, 12.0],
    "ttfts": [0.1, 0.0, 0.3],
    "itls": [[0.02, 0.04], [], [0.06]],
    "output_lens": [3, 0, 2],
    "errors": ["", "connection reset", ""],
    "failed": 1,
    "output_throughput": 2.0,
    **{f"p{p}_{name}_ms": 10.0 * p for p in (50, 95) for name in ("ttft", "tpot", "itl", "e2el")},
}


def guidellm_report() -> dict[str, Any]:
    def answer(start: float, first: float | None, last: float | None) -> dict[str, Any]:
        timings = {
            "targeted_start": start - 0.005,
            "request_start": start,
            "first_token_iteration": first,
            "last_token_iteration": last,
            "token_iterations": 4,
        }
        return {"info": {"timings": timings}, "output_tokens": 5}

    def metric(p50: float) -> dict[str, Any]:
        return {"successful": {"percentiles": {"p50": p50, "p95": 2 * p50}, "mean": p50}}

    metrics = {
        "time_to_first_token_ms": metric(100.0),
        "time_per_output_token_ms": metric(60.0),
        "inter_token_latency_ms": metric(50.0),
        "request_latency": metric(0.31),
        "output_tokens_per_second": metric(12.0),
    }
    answers = [answer(100.0, 100.1, 100.3), answer(101.0, 101.1, 101.3), answer(102.0, None, None)]
    errored = [{"info": {"error": "no connection"}}]
    return {"benchmarks": [{"requests": {"successful": answers, "errored": errored}, "metrics": metrics}]}


def test_vllm_bench_is_read_without_what_failed():
    measurement = read_result(BENCH)
    assert (measurement.failed, measurement.reasons) == (1, ("connection reset",))
    assert [one.output_tokens for one in measurement.observations] == [3, 2]
    figures = summarize(measurement)
    assert figures["ttft_p50_s"] == pytest.approx(0.2)
    assert figures["tpot_p50_s"] == pytest.approx((0.03 + 0.06) / 2)
    assert figures["itl_p50_s"] == pytest.approx(0.04), "all gaps in one heap"
    assert figures["output_tokens_per_s"] == pytest.approx(5 / 2.36), "from the first send to the last token"
    assert figures["send_lag_p50_s"] is None, "it does not say when a request was due"
    assert (measurement.own["ttft_p50_s"], measurement.own["e2e_p95_s"]) == (0.5, 0.95)


def test_guidellm_is_read_by_our_definitions_and_its_own():
    measurement = read_report(guidellm_report(), requests=4)
    assert measurement.failed == 2, "one of four went wrong, and of another it saw no token"
    assert measurement.reasons == ("no connection",)
    figures = summarize(measurement)
    assert figures["ttft_p50_s"] == pytest.approx(0.1)
    assert figures["tpot_p50_s"] == pytest.approx(0.05), "the first token's wait is not in it"
    assert figures["itl_p50_s"] is None, "single gaps are not kept"
    assert figures["send_lag_p95_s"] == pytest.approx(0.005)
    own = measurement.own
    assert (own["tpot_p50_s"], own["itl_p50_s"], own["e2e_p50_s"]) == pytest.approx((0.06, 0.05, 0.31))


def test_prompts_are_the_same_for_every_client(tmp_path):
    prompts = make_prompts(50, prompt_tokens=64, output_tokens=32)
    assert prompts == make_prompts(50, prompt_tokens=64, output_tokens=32)
    assert {len(prompt.text) for prompt in prompts} == {64}
    assert len({prompt.output_tokens for prompt in prompts}) > 5 and all(24 <= p.output_tokens <= 40 for p in prompts)
    rows = write_rows(tmp_path / "rows.jsonl", (Prompt("a b", 7),), "output_tokens_count")
    assert rows.read_text() == '{"prompt": "a b", "output_tokens_count": 7}\n'


def test_ratios_are_of_neighbors_in_a_round():
    def run(ttft_s: float) -> Measurement:
        return Measurement((Observation(0.0, ttft_s, ttft_s + 0.4, 5, 5, (0.1,) * 4),), 0, {"ttft_p50_s": ttft_s})

    ours, theirs = [run(0.1), run(0.2), run(0.4)], [run(0.1), run(0.2), run(0.2)]
    row = agreement.compare_clients({"assayline": ours, "guidellm": theirs})["ttft_p50_s"]
    assert row["value"] == row["own"] == {"assayline": 0.2, "guidellm": 0.2}
    assert row["ratio"]["guidellm"] == pytest.approx([1.0, 1.0, 2.0])


def test_server_counters_are_split_by_run():
    def page(seconds: float, count: int) -> str:
        return "\n".join(
            f'# TYPE {name} histogram\n{name}_bucket{{le="1.0"}} 3\n{name}_sum{{engine="0"}} {seconds}\n'
            f'{name}_count{{engine="0"}} {count}'
            for name in server_counters.COUNTERS.values()
        )

    before, after = (server_counters.parse_counters(page(*values)) for values in ((5.0, 10), (6.5, 15)))
    means = server_counters.find_means(before, after)
    assert means == pytest.approx(dict.fromkeys(server_counters.COUNTERS, 0.3))
    assert server_counters.find_means(after, after) == {}, "nothing was asked, so there is no mean"
    run = Measurement((Observation(0.0, 0.33, 0.93, 3, 3),), 0, server_means=means)
    table = agreement.compare_with_server({"guidellm": [run]})
    assert table["ttft_mean_s"]["guidellm"] == pytest.approx([1.1] * 3)
    assert table["tpot_mean_s"]["guidellm"] == pytest.approx([1.0] * 3) and table["itl_mean_s"] == {}


def test_cpu_is_that_of_the_window_between_first_request_and_last_token():
    samples = CpuSamples(
        wall_s=[100.0, 101.0, 102.0, 103.0, 104.0],
        cpu_s=[{1: 5.0}, {1: 5.5}, {1: 6.0, 2: 0.5}, {1: 6.5, 2: 1.5}, {1: 9.0, 2: 1.5}],
    )
    seen = (Observation(1.2, 1.5, 2.0, 2, 2), Observation(1.4, 1.6, 2.8, 2, 1))
    cost = client_overhead.price_run(Measurement(seen, 0, zero_s=100.0), samples)
    assert cost.cpu_s == pytest.approx(1.0 + 1.5), "from 101 to 103, a process that began in between included"
    assert cost.busiest_cpu_s == pytest.approx(1.5)
    assert (cost.output_tokens, cost.events, cost.seconds) == (4, 3, pytest.approx(1.6))


def test_requests_in_flight_when_the_last_is_sent_are_counted():
    seen = (Observation(0.0, 0.5, 0.9, 2, 2), Observation(0.5, 1.0, 2.0, 2, 2), Observation(1.0, 2.0, 3.0, 2, 2))
    assert client_overhead.count_in_flight(Measurement(seen, 0)) == 2


def test_being_cheaper_takes_all_of_cpu_and_lag_and_no_failure():
    def row(cpu: float, lag: float, failed: int = 0) -> dict[str, Any]:
        return {"cpu_ms_per_1000_tokens": cpu, "send_lag_p50_s": lag, "send_lag_p95_s": lag, "failed": failed}

    assert client_overhead.is_cheaper({"assayline": row(0.1, 0.001), "guidellm": row(0.2, 0.002)})
    assert not client_overhead.is_cheaper({"assayline": row(0.1, 0.003), "guidellm": row(0.2, 0.002)})
    assert not client_overhead.is_cheaper({"assayline": row(0.1, 0.001, 1), "guidellm": row(0.2, 0.002)})
    assert not client_overhead.is_cheaper({"guidellm": row(0.2, 0.002)}), "without us there is nothing to say"
