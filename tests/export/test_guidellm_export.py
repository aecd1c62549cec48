"""A run as GuideLLM's report: distributions by its definitions, names of loads, moments of a request."""

from typing import Any

import duckdb
import numpy as np
import pytest

from assayline.errors import SpecError
from assayline.export.distributions import PERCENTILES, read_distributions
from assayline.export.guidellm import _describe_profile, _describe_strategy
from assayline.export.guidellm_requests import describe_request
from assayline.export.rows import ExportedRun

COLUMNS = (
    "e2e_s", "arrived_at_s", "due_at_s", "finished_at_s", "first_token_at_s", "last_token_at_s", "prompt_tokens",
    "output_tokens", "ttft_s", "tpot_s",
)  # fmt: skip


def fill_rows(rows: list[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    kinds = ", ".join(f"{name} double" for name in COLUMNS)
    connection.execute(f"create temp table exported_rows (status text, phase text, reasoning text, {kinds})")
    for row in rows:
        names = ", ".join(row)
        connection.execute(
            f"insert into exported_rows ({names}) values ({', '.join('?' * len(row))})", list(row.values())
        )
    return connection


def test_distributions_are_weighted_and_ranked_as_numpy_has_them() -> None:
    random = np.random.default_rng(3)
    tokens = random.integers(1, 9, 37)
    tpots_s = np.round(random.gamma(2.0, 0.01, 37), 3)
    rows = [
        {"status": "ok", "phase": "measured", "output_tokens": int(n), "tpot_s": float(s) if n > 1 else None}
        for n, s in zip(tokens, tpots_s, strict=True)
    ]
    rows += [{"status": "ok", "phase": "warmup", "output_tokens": 100, "tpot_s": 9.0}]
    found = read_distributions(fill_rows(rows))
    assert set(found) == {"requests", "output_token_count", "inter_token_latency_ms"}, (
        "what nobody measured is not there"
    )
    ours = found["inter_token_latency_ms"]["successful"]
    spread = np.sort(np.repeat(tpots_s * 1000, tokens - 1))  # each gap between two tokens counts
    assert ours["count"] == len(spread) and ours["total_sum"] == pytest.approx(spread.sum())
    assert ours["mean"] == pytest.approx(spread.mean()) and ours["std_dev"] == pytest.approx(spread.std())
    values, counts = np.unique(spread, return_counts=True)
    assert ours["mode"] == pytest.approx(values[counts.argmax()])
    for name, share in PERCENTILES.items():
        assert ours["percentiles"][name] == pytest.approx(np.quantile(spread, share, method="inverted_cdf")), name
    assert found["requests"]["total"]["count"] == 37 and found["requests"]["errored"]["count"] == 0


THROUGHPUT = {"type_": "throughput", "max_concurrency": 64}


def run_of(**arrival: Any) -> ExportedRun:
    return ExportedRun({"run_id": "r"}, {"load": {"arrival": arrival}}, 1, 0)


@pytest.mark.parametrize(
    ("load", "arrival", "strategy", "profile"),
    [
        (None, {}, THROUGHPUT, {"kind": "throughput", "max_concurrency": 64}),
        ({"arrival": "all_at_once"}, {}, THROUGHPUT, {"kind": "throughput", "max_concurrency": 64}),
        (
            {"arrival": "concurrency", "concurrency": 8}, {},
            {"type_": "concurrent", "streams": 8}, {"kind": "concurrent", "streams": [8]},
        ),
        (
            {"arrival": "constant", "requests_per_s": 2.0}, {},
            {"type_": "constant", "rate": 2.0}, {"kind": "constant", "rate": [2.0]},
        ),
        (
            {"arrival": "poisson", "requests_per_s": 2.0}, {"seed": 7},
            {"type_": "poisson", "rate": 2.0, "random_seed": 7}, {"kind": "poisson", "rate": [2.0]},
        ),
        (
            {"arrival": "trace"}, {"speed": 2.0},
            {"type_": "trace", "time_scale": 0.5, "schedule_turn": "timestamp"},
            {"kind": "replay", "time_scale": 0.5, "schedule_turn": "timestamp"},
        ),
    ],
)  # fmt: skip
def test_a_load_has_the_name_that_it_has_there(
    load: dict[str, Any] | None, arrival: dict[str, Any], strategy: dict[str, Any], profile: dict[str, Any]
) -> None:
    row = None if load is None else {"warmup_s": 5.0, "cooldown_s": 0.0, **load}
    window = {} if load is None else {"warmup": {"value": 5.0, "mode": "duration"}}
    assert _describe_strategy(run_of(**arrival), row, 64) == strategy
    assert _describe_profile(row, strategy) == {**profile, **window}


def test_bursts_have_no_name_there() -> None:
    load = {"arrival": "gamma", "requests_per_s": 1.0, "burstiness": 0.5, "warmup_s": 0.0, "cooldown_s": 0.0}
    with pytest.raises(SpecError, match=r"came in bursts.*Export it as vllm-bench"):
        _describe_strategy(run_of(), load, 64)
    assert _describe_strategy(run_of(), load | {"burstiness": 1.0}, 64)["type_"] == "poisson"


def test_a_request_has_its_moments_since_1970_and_null_for_the_others() -> None:
    names = ("text", "reasoning", "error_message", "cached_tokens", "images", "image_pixels", "video_frames", "video_s")
    row: dict[str, Any] = dict.fromkeys((*names, "audio_s", "token_at_s", *COLUMNS)) | {
        "request_id": "a", "status": "error", "messages_json": "[]", "sampling_json": '{"max_tokens": 4}',
        "sent_at_s": 1.0, "arrived_at_s": 1.5, "finished_at_s": 3.5, "prompt_tokens": 7, "e2e_s": 2.0,
        "error_message": "gone",
    }  # fmt: skip
    found = describe_request(row, 1000.0)
    timings = found["info"]["timings"]
    assert (timings["request_start"], timings["request_end"], timings["first_token_iteration"]) == (
        1001.5,
        1003.5,
        None,
    )
    assert found["info"]["status"] == "errored" and found["info"]["error"] == "gone"
    assert (found["time_to_first_token_ms"], found["output_tokens"], found["total_tokens"]) == (None, None, 7)
    row |= {"status": "ok", "output_tokens": 4, "first_token_at_s": 2.0, "last_token_at_s": 3.5, "ttft_s": 0.5,
            "tpot_s": 0.5, "token_at_s": [2.0, 3.0, 3.0, 3.5], "reasoning": "hm"}  # fmt: skip
    found = describe_request(row, 1000.0)
    assert (found["time_to_first_token_ms"], found["time_per_output_token_ms"]) == (500.0, 500.0)
    assert (found["inter_token_latency_ms"], found["output_tokens_per_second"]) == (500.0, 2.0)
    timings = found["info"]["timings"]
    assert timings["token_iterations"] == 3, "two tokens of one event"
    assert timings["first_output_token_iteration"] is None, "when the thinking ended is not known"
