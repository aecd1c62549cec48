"""Views of requests and samples, counts of requests, and what must be 0: a run's rows in, rows and metrics out."""

from typing import Any

import numpy as np
import pytest
from row_kit import as_rows

from assayline.report.run.engines import _ERRORS, ERROR_KINDS
from assayline.report.run.speed import judge_throughput
from assayline.spec.criteria import ExactMatch
from assayline.store.database import read_rows
from assayline.store.ingest import read_outcome
from assayline.store.metrics import list_warnings, warn_unread
from assayline.store.scoring import score_run

ORDER = (
    "due_at_s", "sent_at_s", "arrived_at_s", "queued_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s",
    "finished_at_s",
)  # fmt: skip
STAMPS = dict(zip(ORDER, (1.0, 1.5, 2.0, 2.25, 3.0, 5.0, 11.0, 12.0), strict=True))
DURATIONS = ("send_lag_s", "queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s")
SPENT = dict(zip(DURATIONS, (0.5, 0.75, 2.0, 6.0, 3.0, 2.0, 10.0), strict=True))
LENGTH = {"finish_reason": "length"}
ANY = {"error_kind": "any"}
ANSWER = {"sent_at_s": 1.0, "arrived_at_s": 1.0, "finished_at_s": 2.0, "text": "yes", "output_tokens": 1}
UNSENT = {"error_kind": "not_sent", "error_message": "Sending has ended: load.max_requests is 2.", "text": "no"}
COUNTS = (
    "wrong_run_rows", "duplicate_prompt_rows", "duplicate_requests", "duplicate_completions", "requests_without_prompt",
    "completions_without_request", "missing_requests", "unexpected_requests", "ambiguous_completions",
    "negative_durations", "incomplete_token_stamps",
)  # fmt: skip
Case = tuple[dict[str, Any], dict[str, Any]]


def requests(**rows: Any) -> Case:
    """One request and completion, of which stg_requests has these columns."""
    given, expected = rows.pop("given"), rows
    return {"answers": [given], "request": rows.pop("request", {})}, {"stg_requests": [expected]}


def defects(given: dict[str, Any], **found: int) -> Case:
    """A run with these defects and no others."""
    return given, {"request_integrity": [{**dict.fromkeys(COUNTS, 0), **found, "is_sound": not found}]}


def options(*completions: dict[str, Any] | None) -> dict[str, Any]:
    """One prompt with an option per completion, in another order; None for a missing one."""
    places = range(len(completions))
    return {
        "run": {},
        "prompts": {"target": "b", "options": list("abc"[: len(completions)])},
        "requests": as_rows(
            "request_id option_index option option_tokens", *((f"r{i}", i, "abc"[i], i + 1) for i in reversed(places))
        ),
        "completions": [{"request_id": f"r{i}", **one} for i, one in enumerate(completions) if one is not None],
    }


ENDED = {
    "loads": {"max_requests": 2},
    "run": {"expected_requests": 5},
    "answers": [
        {"request_id": "ok", **ANSWER}, {"request_id": "error", **ANSWER, "error_kind": "timeout"},
        {"request_id": "unsent", **UNSENT}, {"request_id": "unsent too", **UNSENT},
    ],
    "target": "yes",
    "requests": {"request_id": "silent", "prompt_id": "silent"},
    "prompts": {"prompt_id": "silent", "target": "yes"},
}  # fmt: skip
"""Of five requests one is answered, one an error, two unsent, and one missing."""
SAMPLE = "request_id repeat_index source_row status answer target options option_logprobs error_kind"

CASES: dict[str, Case] = {
    "durations are differences of stamps": requests(given={**STAMPS, "output_tokens": 4}, status="ok", **SPENT),
    **{
        f"{missing} is not known": requests(
            given={**STAMPS, missing: None, "output_tokens": 4},
            **{name: None if name in unknown.split() else value for name, value in SPENT.items()},
        )
        for missing, unknown in {
            "due_at_s": "send_lag_s", "sent_at_s": "send_lag_s", "arrived_at_s": "ttft_s e2e_s",
            "queued_at_s": "queue_s", "scheduled_at_s": "queue_s prefill_s",
            "first_token_at_s": "prefill_s decode_s ttft_s tpot_s", "last_token_at_s": "decode_s tpot_s",
            "finished_at_s": "e2e_s",
        }.items()
    },
    **{
        f"tpot_s of {tokens} tokens": requests(given={**STAMPS, "output_tokens": tokens}, tpot_s=tpot_s)
        for tokens, tpot_s in {None: None, 0: None, 1: None, 2: 6.0, 3: 3.0}.items()
    },
    **{
        f"tpot_s without {hidden} hidden of {reasoning} reasoning": requests(
            given={**STAMPS, "output_tokens": 13, "reasoning_tokens": reasoning, "hidden_tokens": hidden}, tpot_s=tpot_s
        )
        for reasoning, hidden, tpot_s in (
            (None, None, 0.5), (9, 0, 0.5), (9, 9, 2.0), (12, 12, None), (9, None, None),
        )
    },
    "tokens that came at one moment have no tpot_s": requests(
        given={**STAMPS, "last_token_at_s": 5.0, "output_tokens": 13}, tpot_s=None, decode_s=0.0
    ),
    "a request is ok, an error or missing": (
        {
            "requests": as_rows("request_id", ["answered"], ["failed"], ["silent"]),
            "completions": as_rows(
                "request_id finish_reason error_kind error_message",
                ("answered", "stop", None, None), ("failed", None, "engine_died", "it died"),
            ),
        },
        {
            "stg_requests": as_rows(
                "request_id status worker error_kind error_message", ("answered", "ok", "w", None, None),
                ("failed", "error", "w", "engine_died", "it died"), ("silent", "missing", None, None, None),
            )
        },
    ),
    "a prompt that could not be rendered is an error row": (
        {"answers": [{"worker": "prepare", "error_kind": "template"}], "target": "4",
         "request": {"prompt_token_ids": None}},
        {"stg_requests": [{"status": "error", "worker": "prepare", "target": "4", "e2e_s": None}], "engine": []},
    ),
    **{
        f"the context or max_tokens ended an output: {sampling}, {reason}, {tokens}": requests(
            given={"finish_reason": reason, "output_tokens": tokens}, request={"sampling_json": sampling},
            max_tokens=most, context_limited=by_context, truncated=is_cut,
        )
        for sampling, reason, tokens, most, by_context, is_cut in (
            ('{"max_tokens": 16}', "length", 16, 16, False, True),
            ('{"max_tokens": 16}', "length", 15, 16, True, False),
            ('{"max_tokens": 16}', "stop", 15, 16, False, False),
            ('{"max_tokens": null}', "length", 90, None, True, False),
            ("{}", "length", 90, None, True, False),
            ("{}", "stop", 90, None, False, False),
            ('{"max_tokens": 16}', "length", None, 16, None, None),
            ('{"max_tokens": 16}', None, 3, 16, None, None),
        )
    },
    "each occurrence of a prompt has its own row": (
        {
            "run": {"expected_requests": 2},
            "prompts": as_rows("occurrence target", (0, "a"), (1, "b")),
            "requests": as_rows("request_id occurrence", ("r0", 0), ("r1", 1)),
            "completions": as_rows("request_id text", ("r0", "a"), ("r1", "a")),
        },
        {
            "stg_requests": as_rows("request_id target", ("r0", "a"), ("r1", "b")),
            "request_integrity": [{**dict.fromkeys(COUNTS, 0), "is_sound": True}],
        },
    ),
    "of two answers a result counts, then the earlier": (
        {
            "requests": as_rows("request_id", "r", "s"),
            "completions": as_rows(
                "request_id finished_at_s text error_kind", ("r", 1.0, "early error", "engine_died"),
                ("r", 3.0, "late", None), ("r", 2.0, "early", None), ("r", None, "no stamp", None),
                ("s", 1.0, "only", None),
            ),
        },
        {"stg_requests": as_rows("request_id text", ("r", "early"), ("s", "only"))},
    ),
    "an answer is a sample": (
        {
            "prompts": {"target": "4", "source_row": 7},
            "requests": as_rows("request_id repeat_index", ("r0", 0), ("r1", 1)),
            "completions": {"request_id": "r0", "text": "5", "reasoning": "4, no, 5"},
        },
        {
            "stg_samples": as_rows(
                SAMPLE, ("r0", 0, 7, "ok", "5", "4", None, None, None),
                ("r1", 1, 7, "missing", None, "4", None, None, None),
            )
        },
    ),
    "samples leave out the partial answers of errors": (
        {"answers": [{"text": "4", "error_kind": "killed_engine", "error_message": "gone"}], "target": "4"},
        {"stg_samples": as_rows("status answer error_kind error_message", ("error", None, "killed_engine", "gone"))},
    ),
    "the options of a prompt are one sample": (
        options(*({"option_logprob": -value} for value in (1.0, 2.0, 3.0))),
        {
            "stg_samples": as_rows(
                "request_id status answer target options option_logprobs option_tokens",
                ("r0", "ok", None, "b", ["a", "b", "c"], [-1.0, -2.0, -3.0], [1, 2, 3]),
            )
        },
    ),
    **{
        f"without all of its options a sample is {status} of {kind}: {second}": (
            options({"option_logprob": -1.0}, second, third),
            {
                "stg_samples": as_rows(
                    "status error_kind options option_logprobs", (status, kind, ["a", "b", "c"], None)
                )
            },
        )
        for second, third, status, kind in (
            ({"error_kind": "late"}, {"option_logprob": -1.0}, "error", "late"),
            ({"error_kind": "late"}, {"error_kind": "later"}, "error", "late"),
            (None, {"option_logprob": -1.0}, "missing", None),
            (None, {"error_kind": "later"}, "missing", "later"),
            ({"error_kind": "not_sent"}, {"error_kind": "timeout"}, "missing", "timeout"),
        )
    },
    "a bad row of a run with options is an error sample": (
        {
            **(two := options({"option_logprob": -1.0}, {"option_logprob": -2.0})),
            "prompts": [two["prompts"], {"prompt_id": "bad", "target": None}],
            "requests": [*two["requests"], {"request_id": "bad", "prompt_id": "bad"}],
            "completions": [
                *two["completions"], {"request_id": "bad", "worker": "prepare", "error_kind": "row_error"},
            ],
        },
        {"stg_samples": as_rows("prompt_id status options", ("p", "ok", ["a", "b"]), ("bad", "error", None))},
    ),
    "a sample is the answer to the last turn": (
        {
            "run": {},
            "prompts": as_rows("prompt_id", "0", "1"),
            "requests": as_rows(
                "request_id prompt_id turn_index turns", ("0.0", "0", 0, 2), ("0.1", "0", 1, 2), ("1.0", "1", 0, 1)
            ),
            "completions": as_rows("request_id text", ("0.0", "first"), ("0.1", "last"), ("1.0", "only")),
        },
        {"stg_samples": as_rows("request_id answer", ("0.1", "last"), ("1.0", "only"))},
    ),
    "an intact run has no defects": defects({
        "answers": [
            {"output_tokens": 2, "token_at_s": [1.0, 2.0], "arrived_at_s": 0.5, "finished_at_s": 2.0,
             "finish_reason": "stop"},
            ANY, {"worker": "prepare", "error_kind": "template"}, dict.fromkeys(ORDER, 1.0),
        ],
    }),
    "a run of nothing is sound": defects({"run": {"expected_requests": 0}}),
    "rows without their parent are defects": defects(
        {"requests": {"request_id": "r"}, "completions": as_rows("request_id", ["r"], ["unknown"])},
        wrong_run_rows=1, requests_without_prompt=1, completions_without_request=1,
    ),
    "an occurrence without its own row is a defect": defects(
        {"answers": [{"text": "a"}], "request": {"occurrence": 1}}, requests_without_prompt=1
    ),
    "completions of an unknown run are seen": defects(
        {"completions": {"request_id": "r"}}, wrong_run_rows=1, completions_without_request=1
    ),
    **{
        f"{expected} requests are expected, three there and two answered": defects(
            {"run": {"expected_requests": expected}, "prompts": {}, "requests": as_rows("request_id", *"abc"),
             "completions": as_rows("request_id", *"ab")}, **found,
        )
        for expected, found in {
            3: {"missing_requests": 1}, 5: {"missing_requests": 3}, 1: {"unexpected_requests": 2},
            None: {"missing_requests": 1},
        }.items()
    },
    "a result that is also an error is a defect": defects(
        {"answers": [{"finish_reason": "stop", **ANY}]}, ambiguous_completions=1
    ),
    **{
        f"every token has its stamp: {stamps}": defects(
            {"answers": [{"token_at_s": stamps, "output_tokens": 2}]}, **dict.fromkeys(found, 1)
        )
        for bad in [["incomplete_token_stamps"]]
        for stamps, found in (([1.0], bad), ([1.0, 2.0], []), ([1.0, 2.0, 3.0], bad), (None, []), ([], bad))
    },
    **{
        f"{ORDER[later]} before {ORDER[later - 1]} is a negative duration": defects(
            {"answers": [{**dict(zip(ORDER, map(float, range(8)), strict=True)), ORDER[later]: later - 1.5}]},
            negative_durations=1,
        )
        for later in range(1, len(ORDER))
    },
    "requests are counted by what became of them": (
        {"answers": [LENGTH, {"finish_reason": "stop"}, ANY], "run": {"expected_requests": 5},
         "requests": {"request_id": "silent", "prompt_id": "silent"}},
        {"expected_requests": 5, "answered_requests": 3, "ok_requests": 2, "error_requests": 1, "missing_requests": 2,
         "error_share": 1 / 3, "context_limited_requests": 1, "prompts": 4},
    ),
    "rows that could not be asked are counted, not their requests": (
        {
            "run": {"expected_requests": 6},
            "prompts": as_rows("prompt_id occurrence", ("a", 0), ("a", 1), ("b", 0)),
            "requests": as_rows(
                "request_id prompt_id occurrence repeat_index",
                *((f"{p}{o}{r}", p, o, r) for p, o in (("a", 0), ("a", 1), ("b", 0)) for r in (0, 1)),
            ),
            "completions": as_rows(
                "request_id worker error_kind",
                *((f"{p}{o}{r}", "w" if p == "b" else "prepare", "any")
                  for p, o in (("a", 0), ("a", 1), ("b", 0)) for r in (0, 1)),
            ),
        },
        {"error_requests": 6, "unasked_rows": 2},
    ),
    "until they are counted, the prepared requests are expected": (
        {"run": {"expected_requests": None}, "requests": as_rows("request_id", *"ab")},
        {"expected_requests": 2, "missing_requests": 2, "answered_requests": 0},
    ),
    "a run of nothing counts zero and leaves the rest undefined": (
        {"run": {"expected_requests": 0}},
        {
            **dict.fromkeys(
                ("expected_requests", "answered_requests", "ok_requests", "error_requests", "unsent_requests",
                 "measured_requests", "retried_requests", "missing_requests", "context_limited_requests",
                 "truncated_requests", "prompts", "unasked_rows", "workers", "engine_failures", "vanished_engines",
                 "rebuilds", "reductions", "isolated_requests"), 0,
            ),
            **dict.fromkeys(
                ("error_share", "prompt_tokens", "output_tokens", "duration_s", "working_s", "requests_per_s", "load_s",
                 "in_flight_requests", "accuracy", "truncated_share", "prefix_cache_hit_rate", "lost_s"),
            ),
            **dict.fromkeys(
                (f"{name} {p}" for name in ("ttft_s", "queue_s", "prefill_s", "decode_s", "tpot_s", "e2e_s", "itl_s")
                 for p in ("p50", "p90", "p95", "p99", "p99.9")), (None, 0),
            ),
            "attempts": 1,
        },
    ),
    "values that the engine does not report are NULL": (
        {"answers": [{"prompt_tokens": 10}]},
        {"cached_tokens": None, "prefix_cache_hit_rate": None, "preemptions": None, "prompt_tokens": 10},
    ),
    "the hit rate is of requests that know theirs": (
        {"answers": as_rows("prompt_tokens cached_tokens preemptions", (10, 5, 0), (90, None, 2))},
        {"prefix_cache_hit_rate": 0.5, "prompt_tokens": 100, "preemptions": 2},
    ),
    "requests that were sent twice are counted": (
        {"answers": [{**ANSWER, "retries": retries} for retries in (2, 0, None)]}, {"retried_requests": 1},
    ),
    "every request of a load that ended is counted once": (
        ENDED,
        {
            "ok_requests": 1, "error_requests": 1, "unsent_requests": 2, "missing_requests": 1, "expected_requests": 5,
            "answered_requests": 2, "error_share": 0.5, "measured_requests": 2,
            "request_integrity": [{"missing_requests": 1, "negative_durations": 0, "is_sound": False}],
            "stg_samples": as_rows(
                "request_id status answer error_message", ("ok", "ok", "yes", None),
                ("error", "error", None, None), ("unsent", "missing", None, None),
                ("unsent too", "missing", None, None), ("silent", "missing", None, None),
            ),
        },
    ),
    "unsent requests are not missing": (
        {**ENDED, "run": {"expected_requests": 4}, "requests": [], "prompts": []},
        {"missing_requests": 0, "request_integrity": [{"missing_requests": 0, "is_sound": True}]},
    ),
    "an engine that sent nothing gave nothing": (
        {"loads": {}, "answers": [{**UNSENT, "worker": "idle"}, ANSWER]},
        {"workers": 1, "engine": as_rows("worker ok_requests error_requests", ("w", 1, 0))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_requests_and_samples_of_rows(cases, name):
    cases.expect_case(name, CASES[name][1])


def test_doubled_rows_count_once_and_are_defects(store):
    store.given_answers({"text": "4"}, {"text": "5", "finished_at_s": 2.0}, target="4")
    store.given("runs", {"expected_requests": 2})
    store.given("prompts", {"prompt_id": "0", "target": "4"})
    store.given("requests", {"request_id": "0", "prompt_id": "0"})
    store.given("completions", {"request_id": "0", **UNSENT}, {"request_id": "1", "finished_at_s": 3.0})
    rows = as_rows("request_id status text target", ("0", "ok", "4", "4"), ("1", "ok", "5", "4"))
    store.expect("stg_requests", *rows)
    found = {"wrong_run_rows": 1, "duplicate_prompt_rows": 1, "duplicate_requests": 1, "duplicate_completions": 2}
    store.expect_case("run", defects({}, **found)[1])


def test_no_duration_of_ordered_stamps_is_negative(store):
    """Whichever of the stamps are there."""
    random = np.random.default_rng(0)
    stamps = np.sort(random.uniform(0, 100, size=(200, len(ORDER))))
    known = random.random(stamps.shape) < 0.8
    drawn = (
        {name: float(at) if on else None for name, at, on in zip(ORDER, row, has, strict=True)}
        for row, has in zip(stamps, known, strict=True)
    )
    store.given_answers(*({"output_tokens": 3, **row} for row in drawn))
    store.expect("request_integrity", {"negative_durations": 0, "is_sound": True})
    found = [value for row in store.rows("stg_requests", *DURATIONS) for value in row.values() if value is not None]
    assert len(found) > 500 and min(found) >= 0


def test_errors_are_counted_by_kind_and_worker_as_shares_of_all_requests(store):
    store.given_answers(
        *as_rows(
            "worker error_kind error_message arrived_at_s finished_at_s", ("a", "engine_died", "second", None, 5.0),
            ("a", "engine_died", "first", None, 3.0), ("b", "engine_died", None, 4.0, None),
            ("prepare", "template", "no role", None, None), ("a", None, None, None, None),
        )
    )  # fmt: skip
    store.given("requests", *as_rows("request_id prompt_id", *((f"missing {i}", f"{i}") for i in range(5))))
    assert read_rows(store.connection, _ERRORS, "run", ERROR_KINDS) == as_rows(
        "error_kind worker error_requests error_share example_message first_at_s last_at_s",
        ("engine_died", "a", 2, 0.2, "first", 3.0, 5.0), ("engine_died", "b", 1, 0.1, None, 4.0, 4.0),
        ("template", "prepare", 1, 0.1, "no role", None, None),
    )  # fmt: skip


def test_unsent_requests_are_neither_errors_nor_scored_and_the_load_ended_for_a_reason(store):
    store.given_case("run", ENDED)
    ended = {"event": "load_ended", "message": "Sending has ended.", "details_json": '{"reason": "max_requests"}'}
    store.given("engine_events", ended)
    outcome = read_outcome(store.connection, "run")
    assert outcome.errors == {"timeout": 1} and outcome.broken == {"missing_requests": 1}
    assert (outcome.sent, outcome.unsent) == (2, 2)
    assert outcome.load_ends == {"max_requests": "Sending has ended."}
    assert score_run(store.connection, "run", [ExactMatch(kind="exact_match")]) == {"exact_match": 2}
    store.expect_values({"accuracy of exact_match": (0.5, 2)})


def test_truncated_answers_are_counted_apart_from_the_context_and_scored_apart(store):
    """Two of five answers end at max_tokens, one at the context; the option's single token was all that was asked."""
    cut, whole = {**LENGTH, "output_tokens": 16}, {"finish_reason": "stop", "output_tokens": 9}
    answers = [cut, cut, {**cut, "output_tokens": 12}, whole, whole, ANY, cut]
    store.given_answers(*answers, sampling_json='{"max_tokens": 16}')
    store.connection.execute("update requests set option_index = 0, option = 'A' where request_id = '6'")
    store.given("scorers", {})
    store.given("scores", *({"prompt_id": str(i), "value": v} for i, v in enumerate((0, 0.5, 0, 1, 1))))
    store.given("scores", {"prompt_id": "5", "value": 0, "error_kind": "any"})
    counts = {"context_limited_requests": (1, 6), "truncated_requests": (2, 6), "truncated_share": (0.4, 6)}
    scores = {"accuracy_not_truncated of exact_match": (2 / 3, 3), "accuracy_truncated of exact_match": (0.25, 2)}
    store.expect_values(counts | scores)
    warning = "The model wrote more than max_tokens in 40% of 5 answers. "
    assert str(warn_unread(store.connection, "run")).startswith(warning)


def test_warn_unread_counts_thinking_that_is_scored_with_the_answer(store):
    store.given_answers({"text": "<think>Is it A?</think>B"}, {"text": "B"})
    store.given("scorers", {})
    store.given("scores", *({"prompt_id": str(number), "value": 0} for number in range(2)))
    warning = "The model wrote thinking that only `reasoning` in the spec separates in 50% of 2 answers. "
    assert str(warn_unread(store.connection, "run")).startswith(warning)


def test_requests_per_s_is_null_when_all_answers_outlast_the_sending(store):
    """Sent over 60 s, answered after 100 s, with windows of 10 s: nothing finishes in the measured 40 s."""
    store.given("loads", {"warmup_s": 10.0, "cooldown_s": 10.0})
    store.given("slos", {"slo": "fast", "metric": "e2e_s", "limit_s": 200.0})
    sent = [{"sent_at_s": float(at), "arrived_at_s": float(at), "finished_at_s": at + 100.0} for at in range(61)]
    store.given_answers(*({**one, "output_tokens": 5} for one in sent))
    good = {"good_share of fast": 1.0, "good_requests_per_s of fast": None, "good_output_tokens_per_s of fast": None}
    store.expect_values({"measured_requests": 41, "requests_per_s": None, "output_tokens_per_s": None, **good})
    (warning,) = judge_throughput({key: row["value"] for key, row in store.values().items()})
    assert warning.is_warning and "answers take longer than sending" in warning.text


def test_list_warnings_repeats_what_a_server_reports_of_its_answers(store):
    times = {"retries": 0, "first_token_at_s": 1.0, "last_token_at_s": 2.0, "finish_reason": "stop"}
    good = {**times, "response_model": "m", "output_tokens": 16, "prompt_tokens": 3}
    changes = [
        {}, {"response_model": "other"}, {"finish_reason": "content_filter"}, {"prompt_tokens": 2},
        {"output_tokens": 17}, {"reasoning_tokens": 9, "hidden_tokens": 9}, {"last_token_at_s": 1.0},
    ]  # fmt: skip
    answers = [*({**good, **one} for one in changes), {**times, "retries": 1, "finish_reason": "length"}]
    store.given_answers(*answers, prompt_token_ids=[1, 2, 3], sampling_json='{"max_tokens": 16}')
    assert list_warnings(store.connection, "run") == [], "not of a server"
    store.given("engine_events", {"event": "opened", "details_json": '{"served_model": "m"}'})
    assert list_warnings(store.connection, "run") == [
        "The server reports a prompt of another length than was sent in 1, all tokens at one moment (no TPOT) in 1, "
        "finish_reason content_filter in 1, more tokens than max_tokens in 1, reasoning tokens that were not sent (not "
        "in TPOT) in 1, the model name other instead of m in 1 of 8 answers."
    ]
