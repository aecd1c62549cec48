"""goodput: requests within every limit of an objective, over the seconds of throughput."""

import numpy as np
import pytest
from scipy.stats import t

SEEDS = range(5)
TIMES = {"ttft_s": 0.5, "tpot_s": 0.1, "e2e_s": 2.0}


def given_limits(store, run_id="run", slo="interactive", **limits_s):
    store.given(
        "slos",
        *({"run_id": run_id, "slo": slo, "metric": metric, "limit_s": limit} for metric, limit in limits_s.items()),
    )


def answer(ttft_s=0.1, tpot_s=0.05, e2e_s=1.0, tokens=10, at_s=0.0, **columns):
    """An answer that takes so long by each metric."""
    return {
        "sent_at_s": at_s,
        "arrived_at_s": at_s,
        "first_token_at_s": at_s + ttft_s,
        "last_token_at_s": at_s + ttft_s + tpot_s * (tokens - 1),
        "finished_at_s": at_s + e2e_s,
        "output_tokens": tokens,
        **columns,
    }


def is_good(store, **columns):
    store.given_answers(answer(**columns))
    return store.row("goodput", "good_requests")["good_requests"] == 1


@pytest.mark.parametrize("late", [None, *TIMES])
def test_a_good_request_is_within_every_limit(store, late):
    given_limits(store, **TIMES)
    columns = {"ttft_s": 0.5, "tpot_s": 0.0625, "e2e_s": 2.0}
    if late:
        columns[late] = 2.5
    assert is_good(store, **columns) is (late is None)


@pytest.mark.parametrize("tokens", [0, 1])
def test_an_answer_without_further_tokens_passes_any_tpot(store, tokens):
    given_limits(store, tpot_s=0.001)
    assert is_good(store, tokens=tokens)


def test_goodput_reads_no_speed_from_tokens_that_were_not_sent(store):
    given_limits(store, tpot_s=0.05)
    assert not is_good(store, tokens=10, tpot_s=0.1, output_tokens=500, reasoning_tokens=490, hidden_tokens=490)


@pytest.mark.parametrize(
    ("metric", "missing"),
    [
        ("ttft_s", "first_token_at_s"),
        ("tpot_s", "last_token_at_s"),
        ("tpot_s", "output_tokens"),
        ("e2e_s", "finished_at_s"),
    ],
)
def test_goodput_excludes_requests_without_a_timestamp(store, metric, missing):
    given_limits(store, **{metric: 1000.0})
    assert not is_good(store, **{missing: None})


def test_errors_count_and_are_not_good_and_the_unsent_do_not_count(store):
    given_limits(store, ttft_s=1.0)
    store.given_answers(
        answer(),
        answer(error_kind="timeout"),
        {"request_id": "b", "error_kind": "refused"},
        {"request_id": "c", "error_kind": "not_sent"},
        {"request_id": "d", "error_kind": "render", "worker": "prepare"},
    )
    store.expect("goodput", {"requests": 3, "good_requests": 1, "good_share": 1 / 3})


def test_each_objective_is_a_row_with_its_limits(store):
    given_limits(store, slo="strict", ttft_s=0.05, e2e_s=3.0)
    given_limits(store, slo="lax", e2e_s=3.0)
    store.given_answers(answer(), answer(e2e_s=4.0))
    store.expect(
        "goodput",
        {"slo": "strict", "good_requests": 0, "good_share": 0.0,
         "good_requests_per_s": 0.0, "good_output_tokens_per_s": 0.0},
        {"slo": "lax", "good_requests": 1, "good_share": 0.5,
         "good_requests_per_s": 0.25, "good_output_tokens_per_s": 2.5},
    )  # fmt: skip


def test_a_run_of_nothing_has_no_share(store):
    given_limits(store, ttft_s=1.0)
    store.given("runs", {"expected_requests": 0})
    store.expect(
        "goodput",
        {"requests": 0, "good_requests": 0, "good_share": None, "measured_s": None, "good_requests_per_s": None},
    )


def test_runs_without_objectives_have_no_row(store):
    store.given_answers(answer())
    store.expect("goodput")


def test_goodput_never_exceeds_throughput_though_late_requests_meet_a_tpot(store):
    """Every token comes quickly once it comes, and the queue grows: sent in the windows are twice as many."""
    store.given("loads", {"warmup_s": 10.0, "cooldown_s": 10.0})
    given_limits(store, tpot_s=0.1)
    store.given_answers(*(answer(at_s=float(i), ttft_s=float(i), e2e_s=i + 1.0) for i in range(101)))
    found = store.row("goodput")
    assert (found["requests"], found["good_requests"], found["good_share"]) == (81, 81, 1.0)
    assert found["good_requests_per_s"] * store.row("run_summary")["measured_s"] == 40
    assert found["good_requests_per_s"] == store.row("run_summary")["requests_per_s"] == 0.5


def given_random_load(store, run_id, seed, windows_s):
    """Insert a random load; return its expected goodput."""
    random = np.random.default_rng(seed)
    n = 300
    at_s = np.cumsum(random.exponential(0.1, n))
    rows = []
    for i in range(n):
        tokens = int(random.integers(0, 12))
        ttft_s, tpot_s = random.exponential(0.5), random.exponential(0.1)
        e2e_s = ttft_s + tpot_s * max(tokens - 1, 0) + random.exponential(0.2)
        error = "any" if random.random() < 0.1 else None
        rows.append(answer(ttft_s, tpot_s, e2e_s, tokens, at_s[i], error_kind=error))
    store.given("loads", {"run_id": run_id, "warmup_s": windows_s, "cooldown_s": windows_s})
    given_limits(store, run_id, **TIMES)
    store.given_answers(*rows, run_id=run_id)
    begins, ends = at_s[0] + windows_s, at_s[-1] - windows_s
    requests = good = finished_good = tokens = 0
    for row in rows:
        tpot_s = (row["last_token_at_s"] - row["first_token_at_s"]) / max(row["output_tokens"] - 1, 1)
        passes = (
            row["error_kind"] is None
            and row["first_token_at_s"] - row["arrived_at_s"] <= 0.5
            and (row["output_tokens"] < 2 or tpot_s <= 0.1)
            and row["finished_at_s"] - row["arrived_at_s"] <= 2.0
        )
        is_measured = not windows_s or begins <= row["sent_at_s"] <= ends
        requests += is_measured
        good += is_measured and passes
        if passes and (not windows_s or begins <= row["finished_at_s"] <= ends):
            finished_good += 1
            tokens += row["output_tokens"]
    ok = [row for row in rows if row["error_kind"] is None]
    seconds = (
        ends - begins if windows_s else max(row["finished_at_s"] for row in ok) - min(row["arrived_at_s"] for row in ok)
    )
    assert finished_good > 0
    return {
        "run_id": run_id,
        "requests": requests,
        "good_requests": good,
        "good_requests_per_s": finished_good / seconds,
        "good_output_tokens_per_s": tokens / seconds,
    }


def test_goodput_against_plain_python(store):
    """Ten loads in one database: a query is planned longer than it runs."""
    expected = [
        given_random_load(store, f"seed {seed}, windows of {windows_s} s", seed, windows_s)
        for windows_s in (0.0, 3.0)
        for seed in SEEDS
    ]
    store.expect("goodput", *expected, run_id=None)
    rates = {row["run_id"]: row["requests_per_s"] for row in store.rows("run_summary", run_id=None)}
    for row in expected:
        assert row["good_requests_per_s"] <= rates[row["run_id"]], row["run_id"]


@pytest.mark.parametrize(
    ("arrival", "requests", "least"),
    [("poisson", 2_100, 2_000), ("poisson", 1_900, 2_000), ("concurrency", 300, 200), ("all_at_once", 2_100, np.inf)],
)
def test_rate_intervals_are_batch_means_of_windows_of_sending(store, arrival, requests, least):
    dice = np.random.default_rng(3)
    sent = np.cumsum(dice.gamma(0.5, 0.2, requests))
    ended, tokens = sent + dice.exponential(2, requests), dice.integers(1, 50, requests)
    given_limits(store, e2e_s=1.0)
    store.given("loads", {"arrival": arrival, "warmup_s": 0.0, "cooldown_s": 0.0})
    store.given_answers(
        *(
            answer(at_s=at, e2e_s=end - at, ttft_s=0, tokens=n)
            for at, end, n in zip(*map(list, (sent, ended, tokens)), strict=True)
        )
    )
    seats, moments = 8, sorted([*((at, 1) for at in sent), *((end, -1) for end in ended)])
    full = next(
        at for (at, _), taken in zip(moments, np.cumsum([one for _, one in moments]), strict=True) if taken >= seats
    )
    begin = full if arrival == "concurrency" else sent[0]
    found = {row["metric"]: row for row in store.rows("metric_values", "metric", "value", "low", "high", "statistic")}
    for metric, counted, amounts in (
        ("requests_per_s", True, np.ones(requests)),
        ("output_tokens_per_s", True, tokens),
        ("good_output_tokens_per_s", ended - sent <= 1, tokens),
    ):
        row = found[metric]
        is_counted = (begin <= ended) & (ended <= sent[-1]) & counted
        if is_counted.sum() < least:
            assert (row["low"], row["high"]) == (None, None)
            continue
        sums, _ = np.histogram(ended[is_counted], 20, (begin, sent[-1]), weights=amounts[is_counted])
        around = sums / sums.mean() - 1
        r = max(0, around[1:] @ around[:-1] / (around @ around) + 1 / 20 + 20**-0.5)
        half = t.ppf(0.975, 19) * np.sqrt(around.var(ddof=1) / 20 * (1 + r) / (1 - r))
        assert (row["low"], row["high"]) == pytest.approx((row["value"] * (1 - half), row["value"] * (1 + half)))
