"""request_integrity: what must be 0, and that each defect is seen."""

import numpy as np
import pytest

COUNTS = (
    "wrong_run_rows",
    "duplicate_prompt_rows",
    "duplicate_requests",
    "duplicate_completions",
    "requests_without_prompt",
    "completions_without_request",
    "missing_requests",
    "unexpected_requests",
    "ambiguous_completions",
    "negative_durations",
    "incomplete_token_stamps",
)
SOUND = {**dict.fromkeys(COUNTS, 0), "is_sound": True}


def expect_defects(store, **defects):
    store.expect("request_integrity", {**SOUND, **defects, "is_sound": not any(defects.values())})


def test_request_integrity_of_an_intact_run_has_no_defects(store):
    store.given_answers(
        {
            "output_tokens": 2,
            "token_at_s": [1.0, 2.0],
            "arrived_at_s": 0.5,
            "finished_at_s": 2.0,
            "finish_reason": "stop",
        },
        {"error_kind": "any"},
        {"worker": "prepare", "error_kind": "template"},
    )
    expect_defects(store)


def test_request_integrity_accepts_a_prompt_that_occurs_twice(store):
    store.given("runs", {"expected_requests": 2})
    store.given("prompts", {"occurrence": 0}, {"occurrence": 1})
    store.given("requests", {"request_id": "a", "occurrence": 0}, {"request_id": "b", "occurrence": 1})
    store.given("completions", {"request_id": "a"}, {"request_id": "b"})
    expect_defects(store)


def test_a_run_of_nothing_is_sound(store):
    store.given("runs", {"expected_requests": 0})
    expect_defects(store)


def test_a_second_answer_is_a_defect(store):
    store.given_answers({"text": "a"}, {"text": "b"})
    store.given("completions", {"request_id": "1"}, {"request_id": "1"})
    expect_defects(store, duplicate_completions=2)


def test_doubled_rows_are_defects(store):
    store.given_answers({"text": "a"})
    store.given("runs", {"expected_requests": 1})
    store.given("prompts", {"prompt_id": "0"})
    store.given("requests", {"request_id": "0", "prompt_id": "0"})
    expect_defects(store, wrong_run_rows=1, duplicate_prompt_rows=1, duplicate_requests=1)


def test_rows_without_their_parent_are_defects(store):
    store.given("requests", {"request_id": "r"})
    store.given("completions", {"request_id": "r"}, {"request_id": "unknown"})
    expect_defects(store, wrong_run_rows=1, requests_without_prompt=1, completions_without_request=1)


def test_an_occurrence_without_its_own_row_is_a_defect(store):
    store.given_answers({"text": "a"})
    store.connection.execute("update requests set occurrence = 1")
    expect_defects(store, requests_without_prompt=1)


def test_completions_of_an_unknown_run_are_seen(store):
    store.given("completions", {"request_id": "r"})
    expect_defects(store, wrong_run_rows=1, completions_without_request=1)


@pytest.mark.parametrize(
    ("expected_requests", "missing", "unexpected"), [(3, 1, 0), (5, 3, 0), (1, 0, 2), (None, 1, 0)]
)
def test_requests_are_expected_and_answered(store, expected_requests, missing, unexpected):
    store.given("runs", {"expected_requests": expected_requests})
    store.given("prompts", {"prompt_id": "p"})
    store.given("requests", {"request_id": "a"}, {"request_id": "b"}, {"request_id": "c"})
    store.given("completions", {"request_id": "a"}, {"request_id": "b"})
    expect_defects(store, missing_requests=missing, unexpected_requests=unexpected)


def test_a_result_that_is_also_an_error_is_a_defect(store):
    store.given_answers({"finish_reason": "stop", "error_kind": "any"})
    expect_defects(store, ambiguous_completions=1)


@pytest.mark.parametrize(("stamps", "defects"), [([1.0], 1), ([1.0, 2.0], 0), ([1.0, 2.0, 3.0], 1), (None, 0), ([], 1)])
def test_every_token_has_its_stamp(store, stamps, defects):
    store.given_answers({"token_at_s": stamps, "output_tokens": 2})
    expect_defects(store, incomplete_token_stamps=defects)


ORDER = (
    "due_at_s",
    "sent_at_s",
    "arrived_at_s",
    "queued_at_s",
    "scheduled_at_s",
    "first_token_at_s",
    "last_token_at_s",
    "finished_at_s",
)


@pytest.mark.parametrize("later", range(1, len(ORDER)))
def test_a_stamp_before_the_one_before_is_a_negative_duration(store, later):
    stamps = dict(zip(ORDER, map(float, range(len(ORDER))), strict=True))
    store.given_answers(stamps, run_id="sound")
    store.given_answers({**stamps, ORDER[later]: later - 1.5}, run_id="negative")
    store.expect(
        "request_integrity",
        {"run_id": "sound", "negative_durations": 0, "is_sound": True},
        {"run_id": "negative", "negative_durations": 1, "is_sound": False},
        run_id=None,
    )


def test_no_duration_of_ordered_stamps_is_negative(store):
    """Whichever of the stamps are there."""
    random = np.random.default_rng(0)
    stamps = np.sort(random.uniform(0, 100, size=(200, len(ORDER))))
    known = random.random(stamps.shape) < 0.8
    store.given_answers(
        *(
            {
                "output_tokens": 3,
                **{name: float(at) if on else None for name, at, on in zip(ORDER, row, has, strict=True)},
            }
            for row, has in zip(stamps, known, strict=True)
        )
    )
    expect_defects(store)
    durations = ("send_lag_s", "queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s")
    found = [value for row in store.rows("stg_requests", *durations) for value in row.values() if value is not None]
    assert len(found) > 500
    assert min(found) >= 0


def test_request_integrity_accepts_equal_timestamps(store):
    store.given_answers(dict.fromkeys(ORDER, 1.0))
    expect_defects(store)
