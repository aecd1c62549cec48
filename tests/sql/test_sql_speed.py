"""Throughput, latencies, phases of a load, goodput, lateness and media: a run's rows in, metrics out."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from row_kit import Row, as_rows
from scipy.stats import t

LIMITS = {"ttft_s": 0.5, "tpot_s": 0.1, "e2e_s": 2.0}
ANY = {"error_kind": "any"}
WINDOWS = {"warmup_s": 2.0, "cooldown_s": 3.0}


def slo(name: str = "slo", **limits_s: float) -> list[Row]:
    return [{"slo": name, "metric": metric, "limit_s": limit_s} for metric, limit_s in limits_s.items()]


def sent(at_s: float, finished_at_s: float | None = None, **columns: Any) -> Row:
    """An answer of two tokens, one second long unless given."""
    end_s = at_s + 1.0 if finished_at_s is None else finished_at_s
    stamps = {"sent_at_s": at_s, "arrived_at_s": at_s, "first_token_at_s": (at_s + end_s) / 2, "last_token_at_s": end_s}
    return {**stamps, "finished_at_s": end_s, "prompt_tokens": 10, "output_tokens": 2, **columns}


def lasting(at_s: float = 0.0, ttft_s=0.1, tpot_s=0.05, e2e_s=1.0, tokens=10, **columns: Any) -> Row:
    """An answer that takes so long by each metric."""
    first_s = at_s + ttft_s
    stamps = {"first_token_at_s": first_s, "last_token_at_s": first_s + tpot_s * (tokens - 1)}
    return {**sent(at_s, at_s + e2e_s), **stamps, "output_tokens": tokens, **columns}


def due(due_at_s: float, lag_s: float, ttft_s: float = 0.1, **columns: Any) -> Row:
    at_s = due_at_s + lag_s
    return {**sent(at_s, at_s + 2 * ttft_s), "due_at_s": due_at_s, "first_token_at_s": at_s + ttft_s, **columns}


def at_work(*spans: tuple[Any, ...]) -> list[Row]:
    return as_rows("worker engine_generation arrived_at_s finished_at_s", *spans)


def image(at_s: float, seconds: float = 1.0, **columns: Any) -> Row:
    return {"arrived_at_s": at_s, "first_token_at_s": at_s, "finished_at_s": at_s + seconds, **columns}


def phases(**phases: str | None) -> dict[str, Any]:
    return {"stg_requests": as_rows("request_id phase", *((name.strip("_"), one) for name, one in phases.items()))}


def stamps(*token_at_s: list[float] | None, **columns: Any) -> dict[str, Any]:
    return {"answers": [{"token_at_s": one, **columns} for one in token_at_s]}


CLOSED = [(0.0, 1.0), (0.0, 1.0), (1.0, 2.0), (1.0, 2.0), (2.0, 3.0), (2.0, 7.0)]
SEATS = [*((at, at + 1.0) for at in range(11)), *((at, at + 1.0) for at in range(3, 11)), (10.0, 15.0)]
LAGS = {"late_share": None, "kept_up": None}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all errors have no throughput": (
        {"answers": [{"arrived_at_s": 1.0, "finished_at_s": 2.0, "output_tokens": 3, **ANY}]},
        {"ok_requests": 0, "error_requests": 1, "error_share": 1.0, "duration_s": None, "requests_per_s": None,
         "output_tokens": None, "output_tokens_per_s": None, "in_flight_requests max": 1},
    ),
    "a window of no length has no throughput": (
        {"answers": as_rows("arrived_at_s finished_at_s output_tokens prompt_tokens", (1.0, 1.0, 3, 3))},
        {"duration_s": 0.0, "working_s": 0.0, "requests_per_s": None, "output_tokens_per_s": None,
         "total_tokens_per_s": None},
    ),
    "requests_per_s is 0 when all requests of a load are errors": (
        {"loads": {"warmup_s": 1.0, "cooldown_s": 1.0}, "answers": [sent(at, at + 9, **ANY) for at in (0.0, 2.0, 4.0)]},
        {"requests_per_s": 0.0},
    ),
    "one engine at work while another is rebuilt is no downtime, to the last bit": (
        {"answers": at_work(("a", 0, 0.1, 4.3), ("a", 1, 7.7, 9.9), ("b", 0, 0.2, 8.1)),
         "engine_events": {"worker": "a", "event": "failed", "at_s": 4.5}},
        {"duration_s": 9.9 - 0.1, "working_s": 9.9 - 0.1, "downtime_s": 0,
         "in_flight_requests": (4.2 + 2.2 + 7.9) / 9.8},
    ),
    "attempted_s leaves out the pause between attempts": (
        {"answers": [
            *at_work(("w", 0, 0.0, 10.0), ("w", 1, 1000.0, 1005.0)),
            {"arrived_at_s": 4.0, "finished_at_s": 30.0, "error_kind": "timeout"},
        ]},
        {"working_s": 15.0, "attempted_s": 35.0},
    ),
    "requests sent in a warm-up or cool-down are not measured": (
        {"loads": WINDOWS, "answers": [sent(at_s) for at_s in (10.0, 11.9, 12.0, 15.0, 17.0, 17.1, 20.0)]},
        {
            **phases(**{str(i): name for i, name in enumerate(
                ["warmup"] * 2 + ["measured"] * 3 + ["cooldown"] * 2)}),
            "load_stretch": as_rows(
                "worker engine_generation has_windows first_sent_at_s last_sent_at_s begins_at_s ends_at_s stretch_s",
                ("w", 0, True, 10.0, 20.0, 12.0, 17.0, 5.0),
            ),
        },
    ),
    "without a load everything is measured": (
        {"answers": [sent(1.0), sent(2.0), ANY]},
        {**phases(**{"0": "measured", "1": "measured", "2": "measured"}), "load_stretch": []},
    ),
    "without windows everything is measured": (
        {"loads": {}, "answers": [sent(1.0), sent(2.0), ANY]},
        {**phases(**{"0": "measured", "1": "measured", "2": "measured"}),
         "load_stretch": as_rows("has_windows begins_at_s ends_at_s", (False, 1.0, 2.0))},
    ),
    "throughput of a closed loop leaves out the drain": (
        {"loads": {"arrival": "concurrency"}, "answers": [sent(*each) for each in CLOSED]},
        {"requests_per_s": 2.0, "measured_requests": 6},
    ),
    "unless little finished before it": (
        {"loads": {"arrival": "concurrency"}, "answers": [sent(*CLOSED[0]), sent(0.0, 7.0)]},
        {"requests_per_s": 2 / 7, "measured_requests": 2},
    ),
    "engines side by side are measured while their seats are taken: two of two seats from 3 s on": (
        {"loads": {"arrival": "concurrency"}, "answers": [
            sent(*each, worker=worker, request_id=f"{worker}-{place}", window_requests=2)
            for worker in "ab" for place, each in enumerate(SEATS)
        ]},
        {
            "load_stretch": as_rows("begins_at_s steady_from_s ends_at_s", *[(0.0, 3.0, 10.0)] * 2),
            "requests_per_s": 2 * 15 / 7, "measured_requests": 40,
        },
    ),
    **{
        f"requests that never reached an engine have no phase: windows of {windows_s} s": (
            {"loads": {"warmup_s": windows_s},
             "answers": [sent(1.0), sent(3.0), {"request_id": "unsent", "error_kind": "not_sent"},
                         {"request_id": "prepared", "worker": "prepare", "error_kind": "render"},
                         {"request_id": "bare", **ANY}],
             "requests": {"request_id": "silent", "prompt_id": "silent"}},
            phases(_0="warmup" if windows_s else "measured", _1="measured",
                   unsent=None, prepared=None, silent=None, bare=None if windows_s else "measured"),
        )
        for windows_s in (0.0, 1.0)
    },
    "with windows a request without a stamp has no phase": (
        {"loads": {"warmup_s": 1.0}, "answers": [{"request_id": "bare", **ANY}]},
        {**phases(bare=None), "load_stretch": as_rows("first_sent_at_s stretch_s", (None, None))},
    ),
    "each engine has windows of its own": (
        {"loads": {"warmup_s": 2.0, "cooldown_s": 1.0}, "answers": [
            sent(at_s, engine_generation=int(at_s >= 100), request_id=f"{at_s:g}")
            for at_s in (0.0, 3.0, 5.0, 100.0, 103.0, 110.0)
        ]},
        {**phases(_0="warmup", _3="measured", _5="cooldown", _100="warmup", _103="measured", _110="cooldown"),
         "measured_s": (5 - 1 - 2) + (10 - 1 - 2)},
    ),
    "windows may leave nothing": (
        {"loads": {"warmup_s": 5.0, "cooldown_s": 6.0}, "answers": [sent(at_s) for at_s in (0.0, 4.9, 5.5, 10.0)]},
        {"ok_requests": 4, "measured_requests": 0, "measured_s": None, "requests_per_s": None, "latency_histogram": [],
         "ttft_s p50": (None, 0), "itl_s p50": (None, 0)},
    ),
    "throughput without windows is over the seconds at work": (
        {"loads": {}, "answers": [sent(float(i), 2.0 * i + 1.0) for i in range(101)]},
        {"downtime_s": 0.0, "working_s": 201.0, "measured_s": 201.0, "requests_per_s": 101 / 201},
    ),
    "in flight, and seconds, are of requests of all phases": (
        {"loads": {"warmup_s": 5.0, "cooldown_s": 5.0},
         "answers": [sent(0.0, 20.0), sent(10.0, 20.0), sent(19.0, 20.0)]},
        {"in_flight_requests max": 3, "requests": 3},
    ),
    "gaps are of measured requests": (
        {"loads": {"warmup_s": 5.0},
         "answers": [sent(0.0, 1.0, token_at_s=[0.5, 1.0]), sent(9.0, 9.9, token_at_s=[9.0, 9.25])]},
        {"itl_s p50": (0.25, 1), "itl_s p99": (0.25, 1)},
    ),
    **{f"fewer than two stamps have no gap: {one}": (stamps(one), {"itl_s p50": (None, 0)})
       for one in (None, [], [1.0])},
    "errors have no gaps": (stamps([1.0, 2.0], **ANY), {"itl_s p50": (None, 0)}),
    "tokens of one event have no gap": (
        stamps([1.0, 1.0, 3.0, 3.0, 3.0, 4.0], [1.0, 1.0]), {"itl_s p50": (1.5, 2)},
    ),
    "gaps have no interval though as many requests would, as those of one step are not independent": (
        {"answers": [{"token_at_s": [1.0, 2.0], "arrived_at_s": 0.0, "finished_at_s": 3.0}] * 50},
        {"e2e_s p50": (3.0, 50), "e2e_s p50 low": 3.0, "itl_s p50": (1.0, 50), "itl_s p50 low": None},
    ),
    "an interval goes by the n of its metric: 19 of 20 answers have a tpot_s": (
        {"answers": [{"arrived_at_s": 0.0, "first_token_at_s": 1.0, "last_token_at_s": 2.0, "finished_at_s": 3.0,
                      "output_tokens": 2 if i < 19 else 1} for i in range(20)]},
        {"tpot_s p50": (1.0, 19), "tpot_s p50 low": None, "e2e_s p50": (3.0, 20), "e2e_s p50 low": 3.0,
         "e2e_s p50 high": 3.0},
    ),
    **{
        f"a good request is within every limit, late by {late}": (
            {"slos": slo(**LIMITS),
             "answers": [lasting(**{"ttft_s": 0.5, "tpot_s": 0.0625, "e2e_s": 2.0, **({late: 2.5} if late else {})})]},
            {"good_requests of slo": (int(late is None), 1)},
        )
        for late in (None, *LIMITS)
    },
    **{f"an answer of {tokens} tokens passes any tpot_s": (
        {"slos": slo(tpot_s=0.001), "answers": [lasting(tokens=tokens)]}, {"good_requests of slo": 1},
    ) for tokens in (0, 1)},
    "goodput reads no speed from tokens that were not sent": (
        {"slos": slo(tpot_s=0.05),
         "answers": [lasting(tpot_s=0.1, output_tokens=500, reasoning_tokens=490, hidden_tokens=490)]},
        {"good_requests of slo": 0},
    ),
    **{
        f"a request without {missing} is not good by {metric}": (
            {"slos": slo(**{metric: 1000.0}), "answers": [lasting(**{missing: None})]}, {"good_requests of slo": 0},
        )
        for metric, missing in (("ttft_s", "first_token_at_s"), ("tpot_s", "last_token_at_s"),
                                ("tpot_s", "output_tokens"), ("e2e_s", "finished_at_s"))
    },
    "errors count and are not good, and the unsent do not count": (
        {"slos": slo(ttft_s=1.0), "answers": [
            lasting(), lasting(error_kind="timeout"), {"error_kind": "refused"}, {"error_kind": "not_sent"},
            {"error_kind": "render", "worker": "prepare"},
        ]},
        {"good_requests of slo": (1, 3), "good_share of slo": 1 / 3},
    ),
    "each objective has its limits": (
        {"slos": [*slo("strict", ttft_s=0.05, e2e_s=3.0), *slo("lax", e2e_s=3.0)],
         "answers": [lasting(), lasting(e2e_s=4.0)]},
        {"good_requests of strict": 0, "good_share of strict": 0.0, "good_requests_per_s of strict": 0.0,
         "good_output_tokens_per_s of strict": 0.0, "good_requests of lax": 1, "good_share of lax": 0.5,
         "good_requests_per_s of lax": 0.25, "good_output_tokens_per_s of lax": 2.5},
    ),
    "a run of nothing has no good share": (
        {"slos": slo(ttft_s=1.0), "run": {"expected_requests": 0}},
        {"good_requests of slo": (0, 0), "good_share of slo": None, "good_requests_per_s of slo": None},
    ),
    "goodput never exceeds throughput though late requests meet a tpot_s": (
        {"loads": {"warmup_s": 10.0, "cooldown_s": 10.0}, "slos": slo(tpot_s=0.1),
         "answers": [lasting(float(i), ttft_s=float(i), e2e_s=i + 1.0) for i in range(101)]},
        {"good_requests of slo": (81, 81), "good_share of slo": 1.0, "good_requests_per_s of slo": 0.5,
         "requests_per_s": 0.5, "measured_s": 80.0},
    ),
    **{
        f"one in a hundred may be late, and one in any case: {late} of {n}": (
            {"loads": {}, "answers": [due(float(i), 0.02 if i < late else 0.001) for i in range(n)]},
            {"kept_up": kept_up},
        )
        for late, n, kept_up in ((0, 10, 1), (1, 10, 1), (2, 10, 0), (2, 200, 1), (3, 200, 0))
    },
    **{
        f"late is beyond 10 ms and 5% of the first token: {lag_s} of {ttft_s} s": (
            {"loads": {}, "answers": [due(float(i), lag_s, ttft_s) for i in range(20)]}, {"kept_up": kept_up},
        )
        for lag_s, ttft_s, kept_up in ((0.009, 0.01, 1), (0.2, 5.0, 1), (0.2, 3.0, 0))
    },
    "a generator that falls behind does not flatter a server that answers at once": (
        {"loads": {}, "answers": [due(float(i), float(i)) for i in range(100)]},
        {"kept_up": 0, "due_ttft_s p50": 49.6, "late_share": 0.99, "send_lag_s max": 99.0},
    ),
    "all at once has no schedule to keep": (
        {"loads": {"arrival": "all_at_once"}, "answers": [due(float(i), 0.5) for i in range(20)]},
        {"kept_up": None, "late_share": 1.0},
    ),
    "without a first token the whole latency is the measure of lateness": (
        {"loads": {}, "answers": [due(float(i), 0.1, 5.0, first_token_at_s=None) for i in range(4)]},
        {"send_lag_tolerance_s max": 0.5, "late_share": (0.0, 4), "due_ttft_s p50": None, "due_e2e_s p50": 10.1},
    ),
    "a closed loop has no lag": (
        {"loads": {"arrival": "concurrency", "concurrency": 2}, "answers": [sent(0.0)]},
        {**LAGS, "send_lag_s p50": None},
    ),
    "errors alone have lags and no latencies": (
        {"loads": {}, "answers": [due(0.0, 0.5, **ANY), {"error_kind": "not_sent"}]},
        {"send_lag_s p50": (0.5, 1), "send_lag_tolerance_s max": 0.01, "due_ttft_s p50": None},
    ),
    "a run of text has no media": ({"answers": [image(0.0)]}, {"images_per_s": None, "media_tokens_per_s": None}),
    "media have counts and rates": (
        {"answers": [
            *({"media_bytes": 10, "output_tokens": 5, **one} for one in (
                image(0.0, images=3, image_pixels=3_000_000, media_tokens=70, prompt_tokens=100, media_prepare_s=0.2),
                image(1.0, images=1, image_pixels=1_000_000, media_tokens=30, prompt_tokens=50, media_prepare_s=0.4),
                image(2.0, 2.0, audios=1, audio_s=8.0, media_tokens=20, prompt_tokens=25, media_prepare_s=0.3),
                image(3.0, images=9, image_pixels=9, media_tokens=9, prompt_tokens=9, **ANY),
            )),
            image(3.0, prompt_tokens=40, output_tokens=5),
        ]},
        {"images_per_s": (1.0, 4), "megapixels_per_s": 1.0, "audio_s_per_s": (2.0, 1), "video_s_per_s": None,
         "media_tokens_per_s": 30.0, "text_tokens_per_s": (55 + 40) / 4, "media_prepare_s p50": 0.3,
         "media_prepare_s p95": 0.39, "total_tokens_per_s": 30.0 + 95 / 4 + 20 / 4, "output_tokens_per_s": 5.0},
    ),
    "a server that does not tell tokens of media apart leaves them unknown": (
        {"answers": [image(0.0, images=1, image_pixels=100, prompt_tokens=50, output_tokens=1)]},
        {"images_per_s": 1.0, "media_tokens_per_s": None, "text_tokens_per_s": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_speed_of_rows(cases, name):
    expected = dict(CASES[name][1])
    if "requests" in expected:
        for view in ("timeline", "activity"):
            found = sum(row["finished_requests"] for row in cases.rows(view, run_id=name))
            assert found == expected["requests"], view
        del expected["requests"]
    cases.expect_case(name, expected)


def test_in_flight_requests_follow_littles_law_over_two_attempts(store):
    """L = λ × W, with λ and W from NumPy: a pause of ten hours between two attempts is in neither."""
    random = np.random.default_rng(0)
    arrived = np.concatenate([np.sort(random.uniform(0, 40, 200)), 36_000 + np.sort(random.uniform(0, 40, 200))])
    finished = arrived + random.exponential(2.0, 400)
    generation = np.repeat([0, 1], 200)
    spans = zip(["w"] * 400, generation.tolist(), arrived.tolist(), finished.tolist(), strict=True)
    store.given_answers(*at_work(*spans))
    working_s = sum(finished[generation == g].max() - arrived[generation == g].min() for g in (0, 1))
    held = 400 / working_s * (finished - arrived).mean()
    store.expect_values({"working_s": working_s, "in_flight_requests": float(held)})
    assert store.value("idle_s") < 5


def test_in_flight_requests_and_idle_s_are_cut_by_a_loads_windows(store):
    """On a grid of 1 ms, by counting."""
    random = np.random.default_rng(0)
    at_s = np.sort(random.uniform(0, 30, 40)).round(3)
    finished = (at_s + random.exponential(0.8, 40)).round(3) + 0.001
    store.given("loads", {"warmup_s": 5.0, "cooldown_s": 4.0})
    store.given_answers(*(sent(*each) for each in zip(at_s.tolist(), finished.tolist(), strict=True)))
    grid = np.arange(at_s[0] + 5.0, at_s[-1] - 4.0, 0.001) + 0.0005
    in_flight = ((at_s <= grid[:, None]) & (grid[:, None] < finished)).sum(axis=1)
    assert store.value("in_flight_requests") == pytest.approx(in_flight.mean(), rel=1e-3)
    assert store.value("idle_s") == pytest.approx((in_flight == 0).sum() * 0.001, abs=0.02)


@pytest.mark.parametrize(
    ("arrival", "requests", "least"),
    [("poisson", 2_100, 2_000), ("poisson", 1_900, 2_000), ("concurrency", 300, 200), ("all_at_once", 2_100, np.inf)],
)
def test_rate_intervals_are_batch_means_of_windows_of_sending(store, arrival, requests, least):
    dice = np.random.default_rng(3)
    at_s = np.cumsum(dice.gamma(0.5, 0.2, requests))
    ended, tokens = at_s + dice.exponential(2, requests), dice.integers(1, 50, requests)
    store.given("slos", *slo(e2e_s=1.0))
    store.given("loads", {"arrival": arrival})
    rows = zip(at_s.tolist(), ended.tolist(), tokens.tolist(), strict=True)
    store.given_answers(*(lasting(at, ttft_s=0, e2e_s=end - at, tokens=n) for at, end, n in rows))
    seats, moments = 8, sorted([*((at, 1) for at in at_s), *((end, -1) for end in ended)])
    taken = np.cumsum([one for _, one in moments])
    begin = moments[int(np.argmax(taken >= seats))][0] if arrival == "concurrency" else at_s[0]
    found = store.values()
    for metric, counted, amounts in (
        ("requests_per_s", True, np.ones(requests)),
        ("output_tokens_per_s", True, tokens),
        ("good_output_tokens_per_s of slo", ended - at_s <= 1, tokens),
    ):
        row = found[metric]
        is_counted = (begin <= ended) & (ended <= at_s[-1]) & counted
        if is_counted.sum() < least:
            assert (row["low"], row["high"]) == (None, None)
            continue
        sums, _ = np.histogram(ended[is_counted], 20, (begin, at_s[-1]), weights=amounts[is_counted])
        around = sums / sums.mean() - 1
        r = max(0, around[1:] @ around[:-1] / (around @ around) + 1 / 20 + 20**-0.5)
        half = t.ppf(0.975, 19) * np.sqrt(around.var(ddof=1) / 20 * (1 + r) / (1 - r))
        assert (row["low"], row["high"]) == pytest.approx((row["value"] * (1 - half), row["value"] * (1 + half)))


def test_itl_is_that_of_the_loop_of_vllm_bench_serve(store):
    """Events of one to four tokens, as with speculative decoding; the loop is that of its request functions."""
    random = np.random.default_rng(0)
    tokens, itls = [], []
    for _ in range(30):
        events = np.cumsum(random.uniform(0.01, 0.1, random.integers(1, 20))).round(6).tolist()
        tokens.append([at_s for at_s in events for _ in range(random.integers(1, 5))])
        itls += [later - at_s for at_s, later in pairwise(events)]
    store.given_answers(*stamps(*tokens)["answers"])
    shares = {0.5: "p50", 0.9: "p90", 0.99: "p99"}
    store.expect_values({f"itl_s {p}": (float(np.quantile(itls, one)), len(itls)) for one, p in shares.items()})
