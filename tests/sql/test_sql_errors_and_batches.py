"""Errors of a report and engine: what failed where, and how full the batches were."""

from row_kit import as_rows

from assayline.report.run.engines import _ERRORS, ERROR_KINDS
from assayline.store.database import read_rows


def test_errors_are_counted_by_kind_and_worker(store):
    store.given_answers(
        {"worker": "a", "error_kind": "engine_died", "error_message": "second", "finished_at_s": 5.0},
        {"worker": "a", "error_kind": "engine_died", "error_message": "first", "finished_at_s": 3.0},
        {
            "worker": "b",
            "error_kind": "engine_died",
            "error_message": "other",
            "finished_at_s": None,
            "arrived_at_s": 4.0,
        },
        {"worker": "prepare", "error_kind": "template", "error_message": "no role"},
        {"worker": "a"},
    )
    assert read_rows(store.connection, _ERRORS, "run", ERROR_KINDS) == as_rows(
        "error_kind worker error_requests error_share example_message first_at_s last_at_s",
        ("engine_died", "a", 2, 0.4, "first", 3.0, 5.0),
        ("engine_died", "b", 1, 0.2, "other", 4.0, 4.0),
        ("template", "prepare", 1, 0.2, "no role", None, None),
    )


def test_the_share_is_of_all_requests_missing_ones_too(store):
    store.given("runs", {})
    store.given("requests", {"request_id": "a"}, {"request_id": "b"}, {"request_id": "c"}, {"request_id": "d"})
    store.given("completions", {"request_id": "a", "error_kind": "any"})
    (row,) = read_rows(store.connection, _ERRORS, "run", ERROR_KINDS)
    assert (row["error_requests"], row["error_share"], row["example_message"]) == (1, 0.25, None)


def test_batches_are_output_tokens_per_engine_step(store):
    store.given_answers({"window_requests": 80}, {"window_requests": 80}, {"window_requests": 80, "error_kind": "any"})
    store.given(
        "telemetry",
        {"at_s": 1.0, "engine_steps": 10, "output_tokens": 100},
        {"at_s": 2.0, "engine_steps": 50, "output_tokens": 2000},
    )
    store.expect(
        "engine",
        {
            "worker": "w",
            "engine_generation": 0,
            "ok_requests": 2,
            "error_requests": 1,
            "last_max_concurrency": 80,
            "telemetry_samples": 2,
            "engine_steps": 50,
            "output_tokens": 2000,
            "output_tokens_per_step": 40.0,
            "concurrency_used_share": 0.5,
        },
    )


def test_each_engine_generation_has_its_row(store):
    """The first died before its first sample, the second was smaller; another worker was never rebuilt."""
    store.given_answers(
        {"worker": "a", "engine_generation": 1, "window_requests": 40},
        {"worker": "b", "engine_generation": 0, "window_requests": 80},
        {"worker": "prepare", "error_kind": "template"},
    )
    store.given("engine_events", {"worker": "a", "engine_generation": 0, "event": "opened"})
    store.given("telemetry", {"worker": "a", "engine_generation": 1, "engine_steps": 10, "output_tokens": 200})
    store.expect(
        "engine",
        *as_rows(
            "worker engine_generation ok_requests last_max_concurrency engine_steps concurrency_used_share",
            ("a", 0, 0, None, None, None),
            ("a", 1, 1, 40, 10, 0.5),
            ("b", 0, 1, 80, None, None),
        ),
    )
    store.expect("run_summary", {"engine_steps": 10, "output_tokens_per_step": 20.0, "window_share": 0.5, "workers": 2})


def test_engines_of_later_attempts_did_not_replace_an_engine(store):
    """Two engines in the first attempt, the second after a reduction; one in the next, of the first one's size."""
    store.given_answers({"engine_generation": 1, "window_requests": 40}, {"engine_generation": 2})
    store.connection.execute("update runs set attempt = 2")
    opened = {"event": "opened", "details_json": '{"window_requests": 80}'}
    store.given(
        "engine_events",
        {"attempt": 1, "engine_generation": 0, **opened},
        {"attempt": 1, "engine_generation": 0, "event": "reduced", "details_json": "{}"},
        {"attempt": 1, "engine_generation": 1, "event": "opened", "details_json": '{"window_requests": 40}'},
        {"attempt": 2, "engine_generation": 2, **opened},
    )
    store.expect(
        "engine",
        *as_rows(
            "attempt engine_generation earlier_reductions max_concurrency last_max_concurrency",
            (1, 0, 0, 80, 80),
            (1, 1, 1, 40, 40),
            (2, 2, 0, 80, 8),
        ),
    )


def test_the_summary_adds_the_batches_up(store):
    """Engines of two attempts and two workers, by steps: the sums of engines, not means of their ratios."""
    store.given_answers(
        *as_rows("worker engine_generation window_requests", ("a", 0, 80), ("a", 1, 40), ("b", 0, 80)),
    )
    for attempt, worker, generation, steps, tokens in [(1, "a", 0, 10, 300), (2, "a", 1, 50, 900), (1, "b", 0, 7, 99)]:
        engine = {"worker": worker, "engine_generation": generation}
        store.given("engine_events", {"attempt": attempt, "event": "opened", **engine})
        store.given("telemetry", {"engine_steps": steps, "output_tokens": tokens, **engine})
    batches = store.rows("engine", "engine_steps", "output_tokens", "last_max_concurrency")
    steps, tokens = (sum(row[name] for row in batches) for name in ("engine_steps", "output_tokens"))
    room = sum(row["engine_steps"] * row["last_max_concurrency"] for row in batches)
    assert (steps, tokens, room) == (67, 1299, 80 * 17 + 40 * 50)
    expected = {"engine_steps": steps, "output_tokens_per_step": tokens / steps, "window_share": tokens / room}
    store.expect("run_summary", expected)


def test_an_engine_that_answered_nothing_has_no_part_in_the_window_share(store):
    store.given_answers({"engine_generation": 1, "window_requests": 40})
    store.given(
        "telemetry",
        {"engine_generation": 0, "engine_steps": 5, "output_tokens": 500},
        {"engine_generation": 1, "engine_steps": 10, "output_tokens": 200},
    )
    store.expect("run_summary", {"engine_steps": 15, "output_tokens_per_step": 700 / 15, "window_share": 0.5})


def test_engine_has_no_batch_means_without_steps(store):
    store.given("telemetry", {"engine_steps": 0, "output_tokens": 0})
    store.expect("engine", {"engine_steps": 0, "output_tokens_per_step": None, "concurrency_used_share": None})
