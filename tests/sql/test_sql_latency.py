"""Percentiles of latencies and of gaps between tokens: exact percentiles, and when intervals cannot be given."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def given_latencies(store, e2e_s, run_id="run"):
    """Insert a run by its latencies in order of arrival, one a second."""
    answers = ({"arrived_at_s": float(i), "finished_at_s": i + float(value)} for i, value in enumerate(e2e_s))
    store.given_answers(*answers, run_id=run_id)


def given_stamps(store, *token_at_s, **columns):
    store.given_answers(*({"token_at_s": stamps, **columns} for stamps in token_at_s))


@pytest.mark.parametrize("stamps", [None, [], [1.0]])
def test_fewer_than_two_stamps_have_no_gap(store, stamps):
    given_stamps(store, stamps)
    assert {(row["gaps"], row["value_s"]) for row in store.rows("itl_percentile")} == {(0, None)}


def test_itl_leaves_out_gaps_between_tokens_of_one_event(store):
    given_stamps(store, [1.0, 1.0, 3.0, 3.0, 3.0, 4.0], [1.0, 1.0])
    assert (2, 1.5) in {(row["gaps"], row["value_s"]) for row in store.rows("itl_percentile")}


def test_itl_is_that_of_the_loop_of_vllm_bench_serve(store):
    """Events of one to four tokens, as with speculative decoding; the loop is that of its request functions."""
    random = np.random.default_rng(0)
    stamps, itls = [], []
    for _ in range(30):
        tokens, last = [], None
        for at_s in np.cumsum(random.uniform(0.01, 0.1, random.integers(1, 20))).round(6).tolist():
            tokens += [at_s] * int(random.integers(1, 5))
            if last is not None:
                itls.append(at_s - last)
            last = at_s
        stamps.append(tokens)
    given_stamps(store, *stamps)
    found = {row["percentile"]: row for row in store.rows("itl_percentile")}
    for percentile in (0.5, 0.9, 0.99):
        assert found[percentile]["gaps"] == len(itls)
        assert found[percentile]["value_s"] == pytest.approx(np.quantile(itls, percentile))


def test_errors_have_no_gaps(store):
    given_stamps(store, [1.0, 2.0], error_kind="engine_died")
    assert {row["gaps"] for row in store.rows("itl_percentile")} == {0}


def test_gaps_against_numpy(store):
    random = np.random.default_rng(0)
    stamps = [np.cumsum(random.lognormal(size=random.integers(0, 40))).tolist() for _ in range(200)]
    given_stamps(store, *stamps)
    gaps = np.concatenate([np.diff(one) for one in stamps])
    found = store.rows("latency_percentile", "metric", "percentile", "n", "value_s", "low_s", "high_s")
    for row in (row for row in found if row["metric"] == "itl_s"):
        assert row["n"] == gaps.size
        assert row["value_s"] == pytest.approx(np.quantile(gaps, row["percentile"]))
        assert row["low_s"] is None and row["high_s"] is None  # gaps of one step are not independent


def test_gaps_have_no_interval_though_as_many_requests_would(store):
    stamps = {"token_at_s": [1.0, 2.0], "arrived_at_s": 0.0, "finished_at_s": 3.0}
    store.given_answers(*[stamps] * 50)
    found = {row["metric"]: row for row in store.rows("latency_percentile") if row["percentile"] == 0.5}
    assert (found["e2e_s"]["n"], found["e2e_s"]["low_s"]) == (50, 3.0)
    assert (found["itl_s"]["n"], found["itl_s"]["value_s"], found["itl_s"]["low_s"]) == (50, 1.0, None)


def test_every_run_has_every_metric_and_percentile(store):
    store.given("runs", {"run_id": "run"})
    metrics = ("ttft_s", "queue_s", "prefill_s", "decode_s", "tpot_s", "e2e_s", "itl_s")
    store.expect(
        "latency_percentile",
        *(
            {"metric": metric, "percentile": p, "n": 0, "value_s": None, "low_s": None, "high_s": None}
            for metric in metrics
            for p in PERCENTILES
        ),
    )


def read_intervals(store):
    """Both ends of the intervals of e2e_s by run and percentile."""
    rows = store.rows("latency_percentile", run_id=None)
    return {
        (row["run_id"], row["percentile"]): (row["low_s"], row["high_s"]) for row in rows if row["metric"] == "e2e_s"
    }


def count_effective(values, percentile):
    """Effective requests by the batch means of 20 batches, an AR(1) of them and Student's t, as scipy has it."""
    is_below = values <= np.quantile(values, percentile)
    shares = np.array([part.mean() for part in np.array_split(is_below, 20)])
    if np.ptp(shares) == 0:
        return values.size
    around = shares - shares.mean()
    correlation = max(0.0, float(around[1:] @ around[:-1] / (around @ around)) + 1 / 20 + 1 / math.sqrt(20))
    half = stats.t.ppf(0.975, 19) / stats.norm.ppf(0.975) * stats.sem(shares)
    effective = shares.mean() * (1 - shares.mean()) / half**2 * (1 - correlation) / (1 + correlation)
    return math.floor(min(values.size, max(0.0, effective)))


def expect_interval(values, percentile):
    """The interval of one run by hand."""
    m = count_effective(values, percentile)
    if count_effective(values, 0.5) * min(percentile, 1 - percentile) < 10 - 1e-9:
        return None, None
    low, high = int(stats.binom.ppf(0.025, m, percentile)), int(stats.binom.ppf(0.975, m, percentile)) + 1
    if low < 1 or high > m:
        return None, None
    ranked, share = np.sort(values), values.size / m
    return ranked[max(1, math.floor(low * share)) - 1], ranked[math.ceil((high - 1) * share)]


def draw_waves(random, n, correlation):
    """Latencies whose logarithms are an AR(1) series."""
    logs = random.normal(size=n)
    for i in range(1, n):
        logs[i] = correlation * logs[i - 1] + math.sqrt(1 - correlation**2) * logs[i]
    return np.exp(logs).round(6)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_intervals_against_batch_means_in_scipy(store, correlation):
    random = np.random.default_rng(7)
    samples = {f"{n} requests": draw_waves(random, n, correlation) for n in (19, 20, 60, 155, 505, 2003, 5000)}
    for run_id, values in samples.items():
        given_latencies(store, values, run_id=run_id)
    found = read_intervals(store)
    given = set()
    for (run_id, values), percentile in itertools.product(samples.items(), PERCENTILES):
        expected = expect_interval(values, percentile) if values.size >= 20 else (None, None)
        if expected[0] is not None:
            given.add(percentile)
            expected = pytest.approx(expected)
        assert found[run_id, percentile] == expected, (run_id, percentile)
    assert {0.5, 0.9} <= given


def test_intervals_need_ten_effective_requests_beyond_the_percentile(store):
    """Equal values show no correlation, so each request counts."""
    for n in (20, 40, 200, 400, 2_000):
        given_latencies(store, [1.0] * n, run_id=f"{n} requests")
    found = read_intervals(store)
    for n, percentile in itertools.product((20, 40, 200, 400, 2_000), PERCENTILES):
        has_enough = n * min(percentile, 1 - percentile) >= 10 - 1e-9
        assert (found[f"{n} requests", percentile][0] is not None) == has_enough, (n, percentile)


def test_intervals_are_those_of_independent_requests_if_batches_are_equal(store):
    """Each batch has the same values, so all 1,000 requests count: ranks are exact binomial quantiles."""
    given_latencies(store, [value * 20 + batch % 20 for batch in range(20) for value in range(50)])
    found = read_intervals(store)
    ranked = np.sort([value * 20 + batch for batch in range(20) for value in range(50)])
    low, high = int(stats.binom.ppf(0.025, 1000, 0.5)), int(stats.binom.ppf(0.975, 1000, 0.5)) + 1
    assert found["run", 0.5] == (ranked[low - 1], ranked[high - 1])


def test_intervals_are_missing_where_latencies_only_rise(store):
    """All arrive at once and wait for those before them: no share of a batch is that of another."""
    given_latencies(store, range(1, 3_001))
    assert set(read_intervals(store).values()) == {(None, None)}


def test_intervals_follow_the_order_of_arrival(store):
    """The same values in two orders: only the order of waves shows that they are correlated."""
    waves = draw_waves(np.random.default_rng(1), 3_000, 0.9)
    given_latencies(store, waves, run_id="waves")
    given_latencies(store, np.random.default_rng(2).permutation(waves), run_id="shuffled")
    found = read_intervals(store)
    widths = {run_id: found[run_id, 0.5][1] - found[run_id, 0.5][0] for run_id in ("waves", "shuffled")}
    assert widths["waves"] > 2 * widths["shuffled"]


def test_intervals_of_metrics_with_different_n(store):
    """tpot_s is undefined for one-token outputs: its interval goes by its own n."""
    answer = {"arrived_at_s": 0.0, "first_token_at_s": 1.0, "last_token_at_s": 2.0, "finished_at_s": 3.0}
    store.given_answers(*({**answer, "output_tokens": 2 if i < 19 else 1} for i in range(20)))
    found = {row["metric"]: row for row in store.rows("latency_percentile") if row["percentile"] == 0.5}
    assert (found["tpot_s"]["n"], found["tpot_s"]["value_s"], found["tpot_s"]["low_s"]) == (19, 1.0, None)
    assert (found["e2e_s"]["n"], found["e2e_s"]["low_s"], found["e2e_s"]["high_s"]) == (20, 3.0, 3.0)


def test_intervals_of_open_loops_need_two_thousand_requests(store):
    for n, arrival in ((1_999, "poisson"), (2_000, "poisson"), (1_999, "concurrency")):
        run_id = f"{n} {arrival}"
        given_latencies(store, draw_waves(np.random.default_rng(1), n, 0.0), run_id=run_id)
        store.given("loads", {"run_id": run_id, "arrival": arrival, "warmup_s": 0.0, "cooldown_s": 0.0})
    given = {run_id for (run_id, percentile), (low, _) in read_intervals(store).items() if percentile == 0.5 and low}
    assert given == {"2000 poisson", "1999 concurrency"}
