"""Intervals of latencies' percentiles: their ends, and when they cannot be given."""

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


def read_intervals(store):
    """Both ends of the intervals of e2e_s by run and percentile."""
    names = {f"p{100 * share:g}": share for share in PERCENTILES}
    query = "select * from metric_values where metric = 'e2e_s' and list_contains(?, statistic)"
    store.measure()
    rows = store.read(query, list(names))
    return {(row["run_id"], names[row["statistic"]]): (row["low"], row["high"]) for row in rows}


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


def test_intervals_of_open_loops_need_two_thousand_requests(store):
    for n, arrival in ((1_999, "poisson"), (2_000, "poisson"), (1_999, "concurrency")):
        run_id = f"{n} {arrival}"
        given_latencies(store, draw_waves(np.random.default_rng(1), n, 0.0), run_id=run_id)
        store.given("loads", {"run_id": run_id, "arrival": arrival, "warmup_s": 0.0, "cooldown_s": 0.0})
    given = {run_id for (run_id, percentile), (low, _) in read_intervals(store).items() if percentile == 0.5 and low}
    assert given == {"2000 poisson", "1999 concurrency"}
