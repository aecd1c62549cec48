"""benchmarks.agreement: peers' reports read, one set of definitions."""

from typing import Any

import pytest

from benchmarks import agreement, server_counters
from benchmarks.client_view import Measurement, Observation, Prompt, make_prompts, summarize, write_rows
from benchmarks.peer_guidellm import read_report
from benchmarks.peer_vllm import read_result

BENCH: dict[str, Any] = {
    "start_times": [10.0, 11.0, 12.0],
    "ttfts": [0.1, 0.0, 0.3],
    "itls": [[0.02, 0.04], [], [0.06]],
    "output_lens": [3, 0, 2],
    "errors": ["", "connection reset", ""],
    "failed": 1,
}


def guidellm_report() -> dict[str, Any]:
    def answer(start: float, first: float | None, last: float | None) -> dict[str, Any]:
        timings = {
            "request_start": start,
            "first_token_iteration": first,
            "last_token_iteration": last,
        }
        return {"info": {"timings": timings}, "output_tokens": 5}

    answers = [answer(100.0, 100.1, 100.3), answer(101.0, 101.1, 101.3), answer(102.0, None, None)]
    errored = [{"info": {"error": "no connection"}}]
    return {"benchmarks": [{"requests": {"successful": answers, "errored": errored}}]}


def test_vllm_bench_is_read_without_what_failed():
    measurement = read_result(BENCH)
    assert (measurement.failed, measurement.reasons) == (1, ("connection reset",))
    assert [one.output_tokens for one in measurement.observations] == [3, 2]
    figures = summarize(measurement)
    assert figures["ttft_p50_s"] == pytest.approx(0.2)
    assert figures["tpot_p50_s"] == pytest.approx((0.03 + 0.06) / 2)
    assert figures["itl_p50_s"] == pytest.approx(0.04), "all gaps in one heap"
    assert figures["output_tokens_per_s"] == pytest.approx(5 / 2.36), "from the first send to the last token"


def test_guidellm_is_read_by_our_definitions():
    measurement = read_report(guidellm_report(), requests=4)
    assert measurement.failed == 2, "one of four went wrong, and of another it saw no token"
    assert measurement.reasons == ("no connection",)
    figures = summarize(measurement)
    assert figures["ttft_p50_s"] == pytest.approx(0.1)
    assert figures["tpot_p50_s"] == pytest.approx(0.05), "the first token's wait is not in it"
    assert figures["itl_p50_s"] is None, "single gaps are not kept"


def test_prompts_are_the_same_for_every_client(tmp_path):
    prompts = make_prompts(50, prompt_tokens=64, output_tokens=32)
    assert prompts == make_prompts(50, prompt_tokens=64, output_tokens=32)
    assert {len(prompt.text) for prompt in prompts} == {64}
    assert len({prompt.output_tokens for prompt in prompts}) > 5 and all(24 <= p.output_tokens <= 40 for p in prompts)
    rows = write_rows(tmp_path / "rows.jsonl", (Prompt("a b", 7),), "output_tokens_count")
    assert rows.read_text() == '{"prompt": "a b", "output_tokens_count": 7}\n'


def test_ratios_are_of_neighbors_in_a_round():
    def run(ttft_s: float) -> Measurement:
        return Measurement((Observation(0.0, ttft_s, ttft_s + 0.4, 5, (0.1,) * 4),), 0)

    ours, theirs = [run(0.1), run(0.2), run(0.4)], [run(0.1), run(0.2), run(0.2)]
    row = agreement.compare_clients({"assayline": ours, "guidellm": theirs})["ttft_p50_s"]
    assert row["value"] == {"assayline": 0.2, "guidellm": 0.2}
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
    run = Measurement((Observation(0.0, 0.33, 0.93, 3),), 0, server_means=means)
    table = agreement.compare_with_server({"guidellm": [run]})
    assert table["ttft_mean_s"]["guidellm"] == pytest.approx([1.1] * 3)
    assert table["tpot_mean_s"]["guidellm"] == pytest.approx([1.0] * 3) and table["itl_mean_s"] == {}
