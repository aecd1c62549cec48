"""stg_requests: what happened to each request, and how long it took."""

import pytest
from row_kit import as_rows

STAMPS = {
    "due_at_s": 1.0,
    "sent_at_s": 1.5,
    "arrived_at_s": 2.0,
    "queued_at_s": 2.25,
    "scheduled_at_s": 3.0,
    "first_token_at_s": 5.0,
    "last_token_at_s": 11.0,
    "finished_at_s": 12.0,
}


def test_durations_are_differences_of_stamps(store):
    store.given_answers({**STAMPS, "output_tokens": 4})
    store.expect(
        "stg_requests",
        {
            "status": "ok",
            "send_lag_s": 0.5,
            "queue_s": 0.75,
            "prefill_s": 2.0,
            "decode_s": 6.0,
            "ttft_s": 3.0,
            "tpot_s": 2.0,
            "e2e_s": 10.0,
        },
    )


@pytest.mark.parametrize(
    ("missing", "undefined"),
    [
        ("due_at_s", {"send_lag_s"}),
        ("sent_at_s", {"send_lag_s"}),
        ("arrived_at_s", {"ttft_s", "e2e_s"}),
        ("queued_at_s", {"queue_s"}),
        ("scheduled_at_s", {"queue_s", "prefill_s"}),
        ("first_token_at_s", {"prefill_s", "decode_s", "ttft_s", "tpot_s"}),
        ("last_token_at_s", {"decode_s", "tpot_s"}),
        ("finished_at_s", {"e2e_s"}),
    ],
)
def test_a_duration_without_a_stamp_is_null(store, missing, undefined):
    store.given_answers({**STAMPS, missing: None, "output_tokens": 4})
    row = store.row("stg_requests", "send_lag_s", "queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s")
    assert {name for name, value in row.items() if value is None} == undefined


@pytest.mark.parametrize(("tokens", "tpot_s"), [(None, None), (0, None), (1, None), (2, 6.0), (3, 3.0)])
def test_time_per_output_token_needs_two_tokens(store, tokens, tpot_s):
    store.given_answers({**STAMPS, "output_tokens": tokens})
    store.expect("stg_requests", {"tpot_s": tpot_s, "output_tokens": tokens})


@pytest.mark.parametrize(
    ("reasoning", "hidden", "tpot_s"), [(None, None, 0.5), (9, 0, 0.5), (9, 9, 2.0), (12, 12, None), (9, None, None)]
)
def test_time_per_output_token_leaves_out_reasoning_that_was_not_sent(store, reasoning, hidden, tpot_s):
    store.given_answers({**STAMPS, "output_tokens": 13, "reasoning_tokens": reasoning, "hidden_tokens": hidden})
    store.expect("stg_requests", {"tpot_s": tpot_s})


def test_time_per_output_token_is_unknown_when_all_came_at_one_moment(store):
    store.given_answers({**STAMPS, "last_token_at_s": 5.0, "output_tokens": 13})
    store.expect("stg_requests", {"tpot_s": None, "decode_s": 0.0})


def test_a_request_is_ok_an_error_or_missing(store):
    for name in ("answered", "failed", "silent"):
        store.given("requests", {"request_id": name})
    store.given("completions", {"request_id": "answered", "finish_reason": "stop"})
    store.given("completions", {"request_id": "failed", "error_kind": "engine_died", "error_message": "it died"})
    store.expect(
        "stg_requests",
        *as_rows(
            "request_id status worker error_kind error_message",
            ("answered", "ok", "w", None, None),
            ("failed", "error", "w", "engine_died", "it died"),
            ("silent", "missing", None, None, None),
        ),
    )


def test_a_prompt_that_could_not_be_rendered_is_an_error_row(store):
    store.given("prompts", {"target": "4"})
    store.given("requests", {"request_id": "r", "prompt_token_ids": None})
    store.given("completions", {"request_id": "r", "worker": "prepare", "error_kind": "template"})
    store.expect("stg_requests", {"status": "error", "worker": "prepare", "target": "4", "e2e_s": None})


@pytest.mark.parametrize(
    ("sampling_json", "finish_reason", "output_tokens", "max_tokens", "context_limited", "truncated"),
    [
        ('{"max_tokens": 16}', "length", 16, 16, False, True),
        ('{"max_tokens": 16}', "length", 15, 16, True, False),
        ('{"max_tokens": 16}', "stop", 15, 16, False, False),
        ('{"max_tokens": null}', "length", 90, None, True, False),
        ("{}", "length", 90, None, True, False),
        ("{}", "stop", 90, None, False, False),
        ('{"max_tokens": 16}', "length", None, 16, None, None),
        ('{"max_tokens": 16}', None, 3, 16, None, None),
    ],
)
def test_the_context_ended_an_output_that_max_tokens_did_not(
    store, sampling_json, finish_reason, output_tokens, max_tokens, context_limited, truncated
):
    store.given("requests", {"request_id": "r", "sampling_json": sampling_json})
    store.given("completions", {"request_id": "r", "finish_reason": finish_reason, "output_tokens": output_tokens})
    store.expect("stg_requests", {"max_tokens": max_tokens, "context_limited": context_limited, "truncated": truncated})


def test_each_occurrence_of_a_prompt_has_its_own_row(store):
    store.given("prompts", {"occurrence": 0, "target": "a"}, {"occurrence": 1, "target": "b"})
    store.given("requests", {"request_id": "r0", "occurrence": 0}, {"request_id": "r1", "occurrence": 1})
    store.given("completions", {"request_id": "r0", "text": "a"}, {"request_id": "r1", "text": "a"})
    store.expect("stg_requests", {"request_id": "r0", "target": "a"}, {"request_id": "r1", "target": "b"})


def test_of_two_answers_a_result_counts_then_the_earlier(store):
    store.given("requests", {"request_id": "r"}, {"request_id": "s"})
    store.given(
        "completions",
        {"request_id": "r", "finished_at_s": 1.0, "text": "early error", "error_kind": "engine_died"},
        {"request_id": "r", "finished_at_s": 3.0, "text": "late", "error_kind": None},
        {"request_id": "r", "finished_at_s": 2.0, "text": "early", "error_kind": None},
        {"request_id": "r", "finished_at_s": None, "text": "no stamp", "error_kind": None},
        {"request_id": "s", "finished_at_s": 1.0, "text": "only", "error_kind": None},
    )
    store.expect("stg_requests", {"request_id": "r", "text": "early"}, {"request_id": "s", "text": "only"})


def test_doubled_rows_of_requests_and_prompts_count_once(store):
    store.given_answers({"text": "4"}, target="4")
    store.given("prompts", {"prompt_id": "0", "target": "4"})
    store.given("requests", {"request_id": "0", "prompt_id": "0"})
    store.expect("stg_requests", {"request_id": "0", "text": "4", "target": "4"})
