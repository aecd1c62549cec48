"""Requests that the end of a load left unsent: accounted for, no error, no score, and nothing to ask again."""

import pytest

from assayline.spec.criteria import ExactMatch
from assayline.store.ingest import read_outcome
from assayline.store.scoring import score_run

ANSWER = {"sent_at_s": 1.0, "arrived_at_s": 1.0, "finished_at_s": 2.0, "text": "yes", "output_tokens": 1}
UNSENT = {"error_kind": "not_sent", "error_message": "Sending has ended: load.max_requests is 2.", "text": "no"}


@pytest.fixture
def ended(store):
    """Of five requests one is answered, one an error, two unsent, and one missing."""
    store.given("loads", {"max_requests": 2})
    store.given_answers(
        {"request_id": "ok", **ANSWER},
        {"request_id": "error", **ANSWER, "error_kind": "timeout"},
        {"request_id": "unsent", **UNSENT},
        {"request_id": "unsent too", **UNSENT},
        target="yes",
    )
    store.given("requests", {"request_id": "silent", "prompt_id": "silent"})
    store.given("prompts", {"prompt_id": "silent", "target": "yes"})
    store.connection.execute("update runs set expected_requests = 5")
    return store


def test_every_request_is_counted_once(ended):
    found = ended.row("run_summary")
    counts = {f"{name}_requests": found[f"{name}_requests"] for name in ("ok", "error", "unsent", "missing")}
    assert counts == {"ok_requests": 1, "error_requests": 1, "unsent_requests": 2, "missing_requests": 1}
    assert sum(counts.values()) == found["expected_requests"] == 5
    assert (found["answered_requests"], found["error_share"], found["measured_requests"]) == (2, 0.5, 2)


def test_unsent_requests_are_not_missing_and_break_no_metric(ended):
    ended.expect("request_integrity", {"missing_requests": 1, "negative_durations": 0, "is_sound": False})
    ended.connection.execute("delete from requests where request_id = 'silent'")
    ended.connection.execute("update runs set expected_requests = 4")
    ended.expect("request_integrity", {"missing_requests": 0, "is_sound": True})


def test_unsent_requests_are_not_errors(ended):
    assert read_outcome(ended.connection, "run").errors == {"timeout": 1}


def test_unsent_requests_are_not_scored(ended):
    statuses = {row["request_id"]: row["status"] for row in ended.rows("stg_samples")}
    assert statuses == {"ok": "ok", "error": "error", "unsent": "missing", "unsent too": "missing", "silent": "missing"}
    found = ended.connection.execute(
        "select distinct answer, error_kind, error_message from stg_samples where request_id like 'unsent%'"
    ).fetchall()
    assert found == [(None, None, None)]
    assert score_run(ended.connection, "run", [ExactMatch(kind="exact_match")]) == {"exact_match": 2}
    ended.expect("accuracy", {"samples": 2, "mean": 0.5})


def test_an_option_that_was_not_sent_makes_its_sample_missing(store):
    store.given("runs", {"expected_requests": 2})
    store.given("prompts", {"options": ["a", "b"], "target": "a"})
    store.given(
        "requests",
        {"request_id": "a", "option_index": 0, "option": "a"},
        {"request_id": "b", "option_index": 1, "option": "b"},
    )
    store.given(
        "completions", {"request_id": "a", "error_kind": "timeout"}, {"request_id": "b", "error_kind": "not_sent"}
    )
    store.expect("stg_samples", {"status": "missing", "option_logprobs": None})


def test_an_engine_that_sent_nothing_gave_nothing(store):
    store.given("loads", {})
    store.given_answers({"request_id": "a", **UNSENT, "worker": "idle"}, {"request_id": "b", **ANSWER})
    assert store.row("run_summary", "workers") == {"workers": 1}
    store.expect("engine", {"worker": "w", "ok_requests": 1, "error_requests": 0})


def test_of_two_rows_of_one_request_the_answer_counts(store):
    store.given_answers({"request_id": "a", **ANSWER})
    store.given("completions", {"request_id": "a", **UNSENT})
    store.expect("stg_requests", {"request_id": "a", "status": "ok", "phase": "measured"})
    store.expect("request_integrity", {"duplicate_completions": 1})


def test_the_verdict_has_them_apart_and_says_why_the_load_ended(ended):
    ended.given(
        "engine_events",
        {"event": "load_ended", "message": "Sending has ended.", "details_json": '{"reason": "max_requests"}'},
    )
    outcome = read_outcome(ended.connection, "run")
    assert outcome.errors == {"timeout": 1} and outcome.broken == {"missing_requests": 1}
    assert (outcome.sent, outcome.unsent) == (2, 2)
    assert outcome.load_ends == {"max_requests": "Sending has ended."}


def test_request_integrity_counts_requests_sent_twice(store):
    store.given_answers({**ANSWER, "retries": 2}, {**ANSWER, "retries": 0}, {**ANSWER, "retries": None})
    assert store.row("run_summary", "retried_requests") == {"retried_requests": 1}


def test_a_server_in_an_open_loop_has_no_steps_no_window_and_no_queue(store):
    store.given("loads", {})
    store.given(
        "engine_events", {"event": "opened", "at_s": 0.5, "details_json": '{"window_requests": 80, "device": "x"}'}
    )
    store.given_answers({**ANSWER, "first_token_at_s": 1.5, "last_token_at_s": 2.0, "window_requests": None})
    store.given("telemetry", {"at_s": 1.0, "engine_steps": None, "output_tokens": 7, "in_flight_requests": 1})
    nothing = {"window_share": None, "output_tokens_per_step": None, "engine_steps": None}
    engine = {"max_concurrency": None, "concurrency_used_share": None, "output_tokens_per_step": None}
    store.expect("engine", {**engine, "engine_steps": None, "output_tokens": 7})
    store.expect("engine", {"max_concurrency": None, "last_max_concurrency": None, "engine_steps": None})
    store.expect("run_summary", nothing)
    found = {row["metric"]: row["n"] for row in store.rows("latency_percentile") if row["percentile"] == 0.5}
    assert found == {"ttft_s": 1, "queue_s": 0, "prefill_s": 0, "decode_s": 1, "tpot_s": 0, "e2e_s": 1, "itl_s": 0}


def test_engine_without_steps_does_not_lower_the_occupancy_of_others(store):
    store.given_answers({**ANSWER, "window_requests": 4}, {**ANSWER, "window_requests": 4, "engine_generation": 1})
    store.given(
        "telemetry",
        {"engine_generation": 0, "engine_steps": 10, "output_tokens": 20},
        {"engine_generation": 1, "engine_steps": None, "output_tokens": 1000},
    )
    store.expect("run_summary", {"output_tokens_per_step": 2.0, "window_share": 0.5})
