"""run_summary: what a person reads first."""

import numpy as np
import pytest

from assayline.report.run.speed import judge_throughput
from assayline.store.metrics import list_warnings, warn_unread

COUNTED = {
    "expected_requests",
    "answered_requests",
    "ok_requests",
    "error_requests",
    "unsent_requests",
    "measured_requests",
    "retried_requests",
    "missing_requests",
    "context_limited_requests",
    "truncated_requests",
    "prompts",
    "unasked_rows",
    "scored_samples",
    "workers",
    "engine_failures",
    "vanished_engines",
    "rebuilds",
    "reductions",
    "isolated_requests",
}


def test_a_run_of_nothing_counts_zero_and_leaves_the_rest_undefined(store):
    store.given("runs", {"expected_requests": 0})
    row = store.row("run_summary")
    assert {name for name, value in row.items() if value == 0 and " " not in name} == COUNTED
    known = {name for name, value in row.items() if value is not None and " " not in name} - COUNTED
    assert known == {"run_id", "attempts"}


def test_run_summary_is_empty_without_runs(store):
    for view in (
        "run_summary",
        "itl_percentile",
        "goodput",
        "send_lag",
        "saturation",
        "latency_percentile",
        "request_integrity",
    ):
        store.expect(view, run_id=None)


def test_requests_are_counted_by_what_became_of_them(store):
    store.given_answers({"finish_reason": "length"}, {"finish_reason": "stop"}, {"error_kind": "any"})
    store.given("requests", {"request_id": "silent", "prompt_id": "silent"})
    store.connection.execute("update runs set expected_requests = 5")
    store.expect(
        "run_summary",
        {
            "expected_requests": 5,
            "answered_requests": 3,
            "ok_requests": 2,
            "error_requests": 1,
            "missing_requests": 2,
            "error_share": 1 / 3,
            "context_limited_requests": 1,
            "prompts": 4,
        },
    )


def test_truncated_answers_are_counted_apart_from_the_context_and_scored_apart(store):
    """Two of five answers end at max_tokens, one at the context; the option's single token was all that was asked."""
    cut, whole = {"finish_reason": "length", "output_tokens": 16}, {"finish_reason": "stop", "output_tokens": 9}
    store.given_answers(cut, cut, {**cut, "output_tokens": 12}, whole, whole, {"error_kind": "any"}, cut)
    store.connection.execute("update requests set sampling_json = '{\"max_tokens\": 16}'")
    store.connection.execute("update requests set option_index = 0, option = 'A' where request_id = '6'")
    store.given("scorers", {})
    store.given("scores", *({"prompt_id": str(i), "value": v} for i, v in enumerate((0, 0.5, 0, 1, 1))))
    store.given("scores", {"prompt_id": "5", "value": 0, "error_kind": "any"})
    counts = {"context_limited_requests": 1, "truncated_requests": 2, "truncated_share": 0.4}
    store.expect("run_summary", counts)
    query = "select metric, value, n from metric_value where metric like '%truncated%' order by all"
    store.measure()
    assert store.connection.execute(query).fetchall() == [
        ("accuracy_not_truncated", 2 / 3, 3), ("accuracy_truncated", 0.25, 2),
        ("truncated_requests", 2, 6), ("truncated_share", 0.4, 6),
    ]  # fmt: skip
    assert str(warn_unread(store.connection, "run")).startswith(
        "The model wrote more than max_tokens in 40% of 5 answers. "
    )


def test_warn_unread_counts_thinking_that_is_scored_with_the_answer(store):
    store.given_answers({"text": "<think>Is it A?</think>B"}, {"text": "B"})
    store.given("scorers", {})
    store.given("scores", *({"prompt_id": str(number), "value": 0} for number in range(2)))
    warning = "The model wrote thinking that only `reasoning` in the spec separates in 50% of 2 answers. "
    assert str(warn_unread(store.connection, "run")).startswith(warning)


def test_run_summary_counts_rows_that_could_not_be_asked(store):
    """Rows, not requests: two repeats of one are one, and a second row of the same prompt is another."""
    store.given("runs", {"expected_requests": 6})
    rows = [("a", 0), ("a", 1), ("b", 0)]
    store.given("prompts", *({"prompt_id": prompt, "occurrence": occurrence} for prompt, occurrence in rows))
    for prompt, occurrence in rows:
        for repeat in (0, 1):
            keys = {"request_id": f"{prompt}/{occurrence}/{repeat}"}
            place = {"prompt_id": prompt, "occurrence": occurrence, "repeat_index": repeat}
            store.given("requests", {**keys, **place})
            worker = "w" if prompt == "b" else "prepare"
            store.given("completions", {**keys, "worker": worker, "error_kind": "any"})
    store.expect("run_summary", {"error_requests": 6, "unasked_rows": 2})


def test_until_they_are_counted_the_prepared_requests_are_expected(store):
    store.given("runs", {"expected_requests": None})
    store.given("requests", {"request_id": "a"}, {"request_id": "b"})
    store.expect("run_summary", {"expected_requests": 2, "missing_requests": 2, "answered_requests": 0})


def test_all_errors_have_no_throughput(store):
    store.given_answers({"arrived_at_s": 1.0, "finished_at_s": 2.0, "output_tokens": 3, "error_kind": "any"})
    store.expect(
        "run_summary",
        {
            "ok_requests": 0,
            "error_requests": 1,
            "error_share": 1.0,
            "duration_s": None,
            "requests_per_s": None,
            "output_tokens": None,
            "output_tokens_per_s": None,
            "max_in_flight_requests": 1,
        },
    )


def test_a_window_of_no_length_has_no_throughput(store):
    store.given_answers({"arrived_at_s": 1.0, "finished_at_s": 1.0, "output_tokens": 3, "prompt_tokens": 3})
    store.expect(
        "run_summary",
        {
            "duration_s": 0.0,
            "working_s": 0.0,
            "requests_per_s": None,
            "output_tokens_per_s": None,
            "total_tokens_per_s": None,
        },
    )


def test_run_summary_is_null_for_values_the_engine_does_not_report(store):
    answer = {"prompt_tokens": 10, "cached_tokens": None, "preemptions": None}
    store.given_answers(answer)
    store.expect("run_summary", {"cached_tokens": None, "prefix_cache_hit_rate": None, "preemptions": None})


def test_the_hit_rate_is_of_requests_that_know_theirs(store):
    store.given_answers(
        {"prompt_tokens": 10, "cached_tokens": 5, "preemptions": 0}, {"prompt_tokens": 90, "preemptions": 2}
    )
    store.expect("run_summary", {"prefix_cache_hit_rate": 0.5, "prompt_tokens": 100, "preemptions": 2})


def test_engines_side_by_side_have_one_window(store):
    """One is at work while another is rebuilt: nothing of the window is downtime, to the last bit."""
    store.given_answers(
        {"worker": "a", "engine_generation": 0, "arrived_at_s": 0.1, "finished_at_s": 4.3},
        {"worker": "a", "engine_generation": 1, "arrived_at_s": 7.7, "finished_at_s": 9.9},
        {"worker": "b", "engine_generation": 0, "arrived_at_s": 0.2, "finished_at_s": 8.1},
    )
    store.given("engine_events", {"worker": "a", "event": "failed", "at_s": 4.5})
    summary = store.row("run_summary")
    assert summary["duration_s"] == summary["working_s"] == 9.9 - 0.1
    assert summary["mean_in_flight_requests"] == pytest.approx((4.2 + 2.2 + 7.9) / 9.8), "each second counts once"
    assert summary["downtime_s"] == 0


def test_mean_in_flight_requests_follows_littles_law_over_two_attempts(store):
    """L = λ × W, with λ and W from NumPy: a pause of ten hours between two attempts is in neither."""
    random = np.random.default_rng(0)
    arrived = np.concatenate([np.sort(random.uniform(0, 40, 200)), 36_000 + np.sort(random.uniform(0, 40, 200))])
    finished = arrived + random.exponential(2.0, 400)
    generation = np.repeat([0, 1], 200)
    columns = {"arrived_at_s": arrived, "finished_at_s": finished, "engine_generation": generation}
    store.given_answers(*({name: values[i].item() for name, values in columns.items()} for i in range(400)))
    working_s = sum(finished[generation == g].max() - arrived[generation == g].min() for g in (0, 1))
    summary = store.row("run_summary")
    assert summary["working_s"] == pytest.approx(working_s)
    assert summary["mean_in_flight_requests"] == pytest.approx(400 / working_s * (finished - arrived).mean())
    assert summary["idle_s"] < 5


def test_mean_in_flight_requests_and_idle_s_are_cut_by_a_loads_windows(store):
    """On a grid of 1 ms, by counting."""
    random = np.random.default_rng(0)
    sent = np.sort(random.uniform(0, 30, 40)).round(3)
    finished = (sent + random.exponential(0.8, 40)).round(3) + 0.001
    store.given("loads", {"warmup_s": 5.0, "cooldown_s": 4.0})
    store.given_answers(
        *(
            {"sent_at_s": one, "arrived_at_s": one, "finished_at_s": other}
            for one, other in zip(sent.tolist(), finished.tolist(), strict=True)
        )
    )
    grid = np.arange(sent[0] + 5.0, sent[-1] - 4.0, 0.001) + 0.0005
    in_flight = ((sent <= grid[:, None]) & (grid[:, None] < finished)).sum(axis=1)
    summary = store.row("run_summary")
    assert summary["mean_in_flight_requests"] == pytest.approx(in_flight.mean(), rel=1e-3)
    assert summary["idle_s"] == pytest.approx((in_flight == 0).sum() * 0.001, abs=0.02)


def test_attempted_s_leaves_out_the_pause_between_attempts(store):
    store.given_answers(
        {"engine_generation": 0, "arrived_at_s": 0.0, "finished_at_s": 10.0, "error_kind": None},
        {"engine_generation": 0, "arrived_at_s": 4.0, "finished_at_s": 30.0, "error_kind": "timeout"},
        {"engine_generation": 1, "arrived_at_s": 1000.0, "finished_at_s": 1005.0, "error_kind": None},
    )
    store.expect("run_summary", {"working_s": 15.0, "attempted_s": 35.0})


def test_requests_per_s_is_null_when_all_answers_outlast_the_sending(store):
    """Sent over 60 s, answered after 100 s, with windows of 10 s: nothing finishes in the measured 40 s."""
    store.given("loads", {"warmup_s": 10.0, "cooldown_s": 10.0})
    store.given("slos", {"metric": "e2e_s", "limit_s": 200.0})
    sent = [float(second) for second in range(61)]
    store.given_answers(
        *({"sent_at_s": at, "arrived_at_s": at, "finished_at_s": at + 100, "output_tokens": 5} for at in sent)
    )
    store.expect("run_summary", {"measured_requests": 41, "requests_per_s": None, "output_tokens_per_s": None})
    store.expect("goodput", {"good_share": 1.0, "good_requests_per_s": None, "good_output_tokens_per_s": None})
    (warning,) = judge_throughput(store.row("run_summary"))
    assert warning.is_warning and "answers take longer than sending" in warning.text


def test_requests_per_s_is_0_when_all_are_errors(store):
    store.given("loads", {"warmup_s": 1.0, "cooldown_s": 1.0})
    store.given_answers(
        *(
            {"sent_at_s": at, "arrived_at_s": at, "finished_at_s": at + 9, "error_kind": "timeout"}
            for at in (0.0, 2.0, 4.0)
        )
    )
    store.expect("run_summary", {"requests_per_s": 0.0})


def test_the_latest_sending_is_shown(store):
    store.given_answers({"due_at_s": 1.0, "sent_at_s": 1.25}, {"due_at_s": 2.0, "sent_at_s": 2.5})
    store.expect("run_summary", {"max_send_lag_s": 0.5})


def test_the_summary_against_numpy(store):
    random = np.random.default_rng(0)
    n = 500
    arrived = random.uniform(30, 90, n)
    finished = arrived + random.lognormal(size=n)
    prompt, output = random.integers(1, 500, n), random.integers(1, 200, n)
    cached = (prompt * random.random(n)).astype(int)
    ok = random.random(n) > 0.2
    ok[[arrived.argmin(), finished.argmax()]] = False
    store.given_answers(
        *(
            {
                "arrived_at_s": arrived[i],
                "finished_at_s": finished[i],
                "prompt_tokens": int(prompt[i]),
                "output_tokens": int(output[i]),
                "cached_tokens": int(cached[i]),
                "error_kind": None if ok[i] else "any",
            }
            for i in range(n)
        )
    )
    duration_s = finished[ok].max() - arrived[ok].min()
    began, ended = arrived[ok].min(), finished[ok].max()
    in_flight_s = np.maximum(0, np.minimum(finished, ended) - np.maximum(arrived, began)).sum()
    moments = np.concatenate([arrived, finished])
    attempted_s = finished.max() - arrived.min()
    store.expect(
        "run_summary",
        {
            "ok_requests": int(ok.sum()),
            "duration_s": duration_s,
            "working_s": duration_s,
            "downtime_s": 0.0,
            "requests_per_s": ok.sum() / duration_s,
            "attempted_s": attempted_s,
            "ok_requests_per_attempted_s": ok.sum() / attempted_s,
            "output_tokens_per_attempted_s": output[ok].sum() / attempted_s,
            "total_tokens_per_attempted_s": (output[ok].sum() + prompt[ok].sum()) / attempted_s,
            "prompt_tokens": prompt[ok].sum(),
            "output_tokens": output[ok].sum(),
            "cached_tokens": cached[ok].sum(),
            "output_tokens_per_s": output[ok].sum() / duration_s,
            "total_tokens_per_s": (output[ok].sum() + prompt[ok].sum()) / duration_s,
            "prefix_cache_hit_rate": cached[ok].sum() / prompt[ok].sum(),
            "mean_in_flight_requests": in_flight_s / duration_s,
            "max_in_flight_requests": max(int(((arrived <= t) & (t < finished)).sum()) for t in moments),
        },
    )


def test_list_warnings_repeats_what_a_server_reports_of_its_answers(store):
    times = {"retries": 0, "first_token_at_s": 1.0, "last_token_at_s": 2.0, "finish_reason": "stop"}
    good = {**times, "response_model": "m", "output_tokens": 16, "prompt_tokens": 3}
    store.given_answers(
        good,
        {**good, "response_model": "other"},
        {**good, "finish_reason": "content_filter"},
        {**good, "prompt_tokens": 2},
        {**good, "output_tokens": 17},
        {**good, "reasoning_tokens": 9, "hidden_tokens": 9},
        {**good, "last_token_at_s": 1.0},
        {**times, "retries": 1, "finish_reason": "length"},
    )
    store.connection.execute("update requests set prompt_token_ids = [1, 2, 3], sampling_json = '{\"max_tokens\": 16}'")
    assert list_warnings(store.connection, "run") == [], "not of a server"
    store.given("engine_events", {"event": "opened", "details_json": '{"served_model": "m"}'})
    assert list_warnings(store.connection, "run") == [
        "The server reports a prompt of another length than was sent in 1, all tokens at one moment (no TPOT) in 1, "
        "finish_reason content_filter in 1, more tokens than max_tokens in 1, reasoning tokens that were not sent (not "
        "in TPOT) in 1, the model name other instead of m in 1 of 8 answers."
    ]
