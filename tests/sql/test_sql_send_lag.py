"""send_lag: whether a generator kept up, and what users would have felt."""

import numpy as np
import pytest

SEEDS = range(3)


def sent(due_at_s, lag_s, ttft_s=0.1, **columns):
    at_s = due_at_s + lag_s
    return {
        "due_at_s": due_at_s,
        "sent_at_s": at_s,
        "arrived_at_s": at_s,
        "first_token_at_s": at_s + ttft_s,
        "finished_at_s": at_s + 2 * ttft_s,
        **columns,
    }


def kept_up(store, lags_s, ttft_s=0.1, arrival="poisson"):
    store.given("loads", {"arrival": arrival})
    store.given_answers(*(sent(float(i), lag_s, ttft_s) for i, lag_s in enumerate(lags_s)))
    return store.row("send_lag", "kept_up")["kept_up"]


def test_lags_against_numpy(store):
    """A run for each seed: a query is planned longer than it runs."""
    store.expect("send_lag", *(given_random_lags(store, f"seed {seed}", seed) for seed in SEEDS), run_id=None)


def given_random_lags(store, run_id, seed):
    """Insert a load; return its expected lags."""
    random = np.random.default_rng(seed)
    n = 500
    due, lag = np.cumsum(random.exponential(0.1, n)), random.exponential(0.004, n)
    ttft, failed = random.lognormal(-2, 1, n), random.random(n) < 0.1
    store.given("loads", {"run_id": run_id, "warmup_s": 5.0})
    answers = (sent(due[i], lag[i], ttft[i], error_kind="any" if failed[i] else None) for i in range(n))
    store.given_answers(*answers, run_id=run_id)
    at = due + lag
    measured = at >= at.min() + 5.0
    ok = measured & ~failed
    tolerance = max(0.01, 0.05 * np.median(ttft[ok]))
    late = int((lag[measured] > tolerance).sum())
    return {
        "run_id": run_id,
        "requests": int(measured.sum()),
        "p50_s": np.quantile(lag[measured], 0.5),
        "p95_s": np.quantile(lag[measured], 0.95),
        "p99_s": np.quantile(lag[measured], 0.99),
        "max_s": lag[measured].max(),
        "tolerance_s": tolerance,
        "late_requests": late,
        "late_share": late / measured.sum(),
        "due_ttft_p50_s": np.quantile((lag + ttft)[ok], 0.5),
        "due_ttft_p99_s": np.quantile((lag + ttft)[ok], 0.99),
        "due_e2e_p50_s": np.quantile((lag + 2 * ttft)[ok], 0.5),
        "due_e2e_p99_s": np.quantile((lag + 2 * ttft)[ok], 0.99),
        "kept_up": bool(late <= max(1, 0.01 * measured.sum())),
    }


@pytest.mark.parametrize(
    ("late", "n", "expected"), [(0, 10, True), (1, 10, True), (2, 10, False), (2, 200, True), (3, 200, False)]
)
def test_one_in_a_hundred_may_be_late_and_one_in_any_case(store, late, n, expected):
    assert kept_up(store, [0.02] * late + [0.001] * (n - late)) is expected


@pytest.mark.parametrize(("lag_s", "ttft_s", "expected"), [(0.009, 0.01, True), (0.2, 5.0, True), (0.2, 3.0, False)])
def test_late_is_more_than_ten_milliseconds_and_five_percent_of_the_first_token(store, lag_s, ttft_s, expected):
    assert kept_up(store, [lag_s] * 20, ttft_s) is expected


def test_a_generator_that_falls_behind_does_not_flatter_the_server(store):
    """One request a second is due, one every two seconds is sent, and the server answers each at once."""
    assert kept_up(store, [float(i) for i in range(100)], ttft_s=0.1) is False
    found = store.row("send_lag")
    assert found["due_ttft_p50_s"] == pytest.approx(49.6)
    assert found["late_share"] == 0.99
    assert store.row("run_summary")["max_send_lag_s"] == 99.0


def test_all_at_once_has_no_schedule_to_keep(store):
    assert kept_up(store, [0.5] * 20, arrival="all_at_once") is None


def test_where_no_first_token_is_known_the_whole_latency_says_what_matters(store):
    store.given("loads", {})
    store.given_answers(*(sent(float(i), 0.1, 5.0, first_token_at_s=None) for i in range(4)))
    store.expect("send_lag", {"tolerance_s": 0.5, "late_requests": 0, "due_ttft_p50_s": None, "due_e2e_p50_s": 10.1})


def test_runs_in_which_nothing_is_due_have_no_row(store):
    store.given("loads", {"arrival": "concurrency", "concurrency": 2})
    store.given_answers({"sent_at_s": 0.0, "arrived_at_s": 0.0, "finished_at_s": 1.0})
    store.expect("send_lag")


def test_errors_alone_have_lags_and_no_latencies(store):
    store.given("loads", {})
    store.given_answers(sent(0.0, 0.5, error_kind="any"), {"request_id": "b", "error_kind": "not_sent"})
    store.expect("send_lag", {"requests": 1, "p50_s": 0.5, "tolerance_s": 0.01, "due_ttft_p50_s": None})
