"""token_gap, itl and latency_percentile: exact percentiles, and intervals that say when they cannot be given."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

SEEDS = range(5)
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
LEAST_N = {0.5: 6, 0.9: 36, 0.95: 72, 0.99: 368, 0.999: 3688}


def given_latencies(store, e2e_s, run_id="run"):
    store.given_answers(*({"arrived_at_s": 0.0, "finished_at_s": float(value)} for value in e2e_s), run_id=run_id)


def given_stamps(store, *token_at_s, **columns):
    store.given_answers(*({"token_at_s": stamps, **columns} for stamps in token_at_s))


def test_a_gap_lies_between_two_neighbouring_tokens(store):
    given_stamps(store, [1.0, 1.5, 3.5])
    store.expect(
        "token_gap",
        {"request_id": "0", "token_index": 1, "at_s": 1.5, "gap_s": 0.5},
        {"request_id": "0", "token_index": 2, "at_s": 3.5, "gap_s": 2.0},
    )


@pytest.mark.parametrize("stamps", [None, [], [1.0]])
def test_fewer_than_two_stamps_have_no_gap(store, stamps):
    given_stamps(store, stamps)
    store.expect("token_gap")
    store.expect("itl", {"requests": 0, "gaps": 0, "mean_s": None, "p50_s": None, "p99_s": None, "max_s": None})


def test_token_gap_is_zero_between_tokens_of_one_event_and_itl_leaves_it_out(store):
    given_stamps(store, [1.0, 1.0, 3.0, 3.0, 3.0, 4.0], [1.0, 1.0])
    gaps = [row["gap_s"] for row in store.rows("token_gap") if row["request_id"] == "0"]
    assert sorted(gaps) == [0.0, 0.0, 0.0, 1.0, 2.0]
    store.expect("itl", {"requests": 1, "gaps": 2, "mean_s": 1.5, "p50_s": 1.5, "max_s": 2.0})


@pytest.mark.parametrize("seed", SEEDS)
def test_itl_is_that_of_the_loop_of_vllm_bench_serve(store, seed):
    """Events of one to four tokens, as with speculative decoding; the loop is that of its request functions."""
    random = np.random.default_rng(seed)
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
    store.expect("token_gap")


def test_gaps_are_pooled_over_requests(store):
    given_stamps(store, [0.0, 1.0, 2.0, 3.0], [0.0, 5.0], None)
    store.expect(
        "itl", {"requests": 2, "gaps": 4, "mean_s": 2.0, "p50_s": 1.0, "p95_s": 4.4, "p99_s": 4.88, "max_s": 5.0}
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_against_numpy(store, seed):
    random = np.random.default_rng(seed)
    stamps = [np.cumsum(random.lognormal(size=random.integers(0, 40))).tolist() for _ in range(200)]
    given_stamps(store, *stamps)
    gaps = np.concatenate([np.diff(one) for one in stamps])
    expected = {
        "gaps": gaps.size,
        "mean_s": gaps.mean(),
        "p50_s": np.quantile(gaps, 0.5),
        "p95_s": np.quantile(gaps, 0.95),
        "p99_s": np.quantile(gaps, 0.99),
        "max_s": gaps.max(),
    }
    store.expect("itl", expected)
    found = store.rows("latency_percentile", "metric", "percentile", "n", "value_s", "low_s", "high_s")
    for row in (row for row in found if row["metric"] == "itl_s"):
        assert row["n"] == gaps.size
        assert row["value_s"] == pytest.approx(np.quantile(gaps, row["percentile"]))
        assert row["low_s"] is None and row["high_s"] is None  # gaps of one step are not independent


def test_gaps_have_no_interval_though_as_many_requests_would(store):
    stamps = {"token_at_s": [1.0, 2.0], "arrived_at_s": 0.0, "finished_at_s": 3.0}
    store.given_answers(*[stamps] * 6)
    found = {row["metric"]: row for row in store.rows("latency_percentile") if row["percentile"] == 0.5}
    assert (found["e2e_s"]["n"], found["e2e_s"]["low_s"]) == (6, 3.0)
    assert (found["itl_s"]["n"], found["itl_s"]["value_s"], found["itl_s"]["low_s"]) == (6, 1.0, None)


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


@pytest.mark.parametrize("seed", SEEDS)
def test_percentiles_against_numpy(store, seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(100, 3000))
    steps = random.lognormal(size=(n, 5))
    arrived, queued, scheduled, first, last = np.cumsum(steps, axis=1).T
    finished = last + random.exponential(size=n)
    tokens = random.integers(0, 6, size=n)
    failed = random.random(n) < 0.1
    store.given_answers(
        *(
            {
                "arrived_at_s": arrived[i],
                "queued_at_s": queued[i],
                "scheduled_at_s": scheduled[i],
                "first_token_at_s": first[i],
                "last_token_at_s": last[i],
                "finished_at_s": finished[i],
                "output_tokens": int(tokens[i]),
                "error_kind": "any" if failed[i] else None,
            }
            for i in range(n)
        )
    )
    several = tokens > 1
    values = {
        "ttft_s": (first - arrived)[~failed],
        "queue_s": (scheduled - queued)[~failed],
        "prefill_s": (first - scheduled)[~failed],
        "decode_s": (last - first)[~failed],
        "tpot_s": ((last - first)[several & ~failed]) / (tokens[several & ~failed] - 1),
        "e2e_s": (finished - arrived)[~failed],
    }
    for row in store.rows("latency_percentile"):
        if row["metric"] != "itl_s":
            known = values[row["metric"]]
            assert row["n"] == known.size
            assert row["value_s"] == pytest.approx(np.quantile(known, row["percentile"]))


def test_runs_do_not_mix(store):
    given_latencies(store, [1.0, 2.0, 3.0], run_id="one")
    given_latencies(store, [10.0], run_id="two")
    found = store.rows("latency_percentile", run_id=None)
    values = {row["run_id"]: row["value_s"] for row in found if (row["metric"], row["percentile"]) == ("e2e_s", 0.5)}
    assert values == {"one": 2.0, "two": 10.0}


def intervals(store):
    """Both ends by run and percentile: ranks, where the values given are 1, 2, 3 …"""
    rows = store.rows("latency_percentile", run_id=None)
    return {
        (row["run_id"], row["percentile"]): (row["low_s"], row["high_s"]) for row in rows if row["metric"] == "e2e_s"
    }


def test_an_interval_needs_enough_requests(store):
    for percentile, least_n in LEAST_N.items():
        given_latencies(store, range(1, least_n), run_id=f"too few for {percentile}")
        given_latencies(store, range(1, least_n + 1), run_id=f"enough for {percentile}")
    found = intervals(store)
    for percentile, least_n in LEAST_N.items():
        assert found[f"too few for {percentile}", percentile] == (None, None), percentile
        low, high = found[f"enough for {percentile}", percentile]
        assert low is not None and high == least_n, percentile


def binomial_quantile(n: int, p: Fraction, probability: Fraction) -> int:
    """The smallest k with P(B ≤ k) ≥ probability, in whole numbers: exact."""
    wanted = probability * p.denominator**n
    total = 0
    for k in range(n + 1):
        total += math.comb(n, k) * p.numerator**k * (p.denominator - p.numerator) ** (n - k)
        if total >= wanted:
            return k
    raise AssertionError


def test_intervals_against_exact_binomials(store):
    sizes = [6, 50, 72, 100, 368, 500]
    for n in sizes:
        given_latencies(store, range(1, n + 1), run_id=f"{n} requests")
    found = intervals(store)
    for n, percentile in itertools.product(sizes, PERCENTILES):
        p = Fraction(str(percentile))
        low = binomial_quantile(n, p, Fraction("0.025"))
        high = binomial_quantile(n, p, Fraction("0.975")) + 1
        expected = (low, high) if low >= 1 and high <= n else (None, None)
        assert found[f"{n} requests", percentile] == expected, (n, percentile)


def test_intervals_against_scipy(store):
    binom = pytest.importorskip("scipy.stats").binom
    samples = {}
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        samples[f"seed {seed}"] = random.lognormal(size=int(10 ** random.uniform(0.5, 4)))
        given_latencies(store, samples[f"seed {seed}"], run_id=f"seed {seed}")
    found = intervals(store)
    for (run_id, values), percentile in itertools.product(samples.items(), PERCENTILES):
        ranked, n = np.sort(values), values.size
        low, high = int(binom.ppf(0.025, n, percentile)), int(binom.ppf(0.975, n, percentile)) + 1
        if low >= 1 and high <= n:
            assert found[run_id, percentile] == (ranked[low - 1], ranked[high - 1]), (run_id, percentile)
            coverage = binom.cdf(high - 1, n, percentile) - binom.cdf(low - 1, n, percentile)
            assert coverage >= 0.95, (run_id, percentile)
        else:
            assert found[run_id, percentile] == (None, None), (run_id, percentile)


def test_intervals_of_metrics_with_different_n(store):
    """tpot_s is undefined for one-token outputs: its interval goes by its own n."""
    answer = {"arrived_at_s": 0.0, "first_token_at_s": 1.0, "last_token_at_s": 2.0, "finished_at_s": 3.0}
    store.given_answers(*({**answer, "output_tokens": 2 if i < 5 else 1} for i in range(6)))
    found = {row["metric"]: row for row in store.rows("latency_percentile") if row["percentile"] == 0.5}
    assert (found["tpot_s"]["n"], found["tpot_s"]["value_s"], found["tpot_s"]["low_s"]) == (5, 1.0, None)
    assert (found["e2e_s"]["n"], found["e2e_s"]["low_s"], found["e2e_s"]["high_s"]) == (6, 3.0, 3.0)
