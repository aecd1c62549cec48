"""engine: what became of every engine, and the stretches in which it worked."""

import json

import pytest
from row_kit import as_rows

pytestmark = pytest.mark.slow

OPENED = {
    "window_requests": 80,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "max_model_len": 4096,
    "gpu_memory_utilization": 0.9,
    "kv_cache_tokens": 100_000,
    "vllm_version": "0.32.0",
    "device_name": "H200",
}
OUT_OF_MEMORY = {"kind": "device_oom", "is_memory": True, "phase": "run", "exit_code": 1, "in_flight_requests": 80}
SMALLER = {"gpu_memory_utilization": {"from": 0.9, "to": 0.8}}
REDUCED = {"window_requests": {"from": 80, "to": 40}, "max_num_seqs": {"from": 64, "to": 32}}


def tell(store, event, at_s, duration_s=None, details=None, message=None, **columns):
    store.given(
        "engine_events",
        {
            "event": event,
            "at_s": at_s,
            "duration_s": duration_s,
            "details_json": json.dumps(details or {}),
            "message": message,
            **columns,
        },
    )


def answer(generation, arrived_at_s, finished_at_s, **columns):
    return {
        "engine_generation": generation,
        "arrived_at_s": arrived_at_s,
        "finished_at_s": finished_at_s,
        "window_requests": 80,
        **columns,
    }


def sample(store, at_s, in_flight_requests=1, **columns):
    store.given("telemetry", {"at_s": at_s, "in_flight_requests": in_flight_requests, "engine_steps": 1, **columns})


def test_an_engine_that_lived_well(store):
    store.given_answers(answer(0, 11.0, 13.0, output_tokens=30), answer(0, 12.0, 21.0, output_tokens=20))
    tell(store, "opened", 8.0, 7.5, OPENED)
    tell(store, "warmed_up", 9.0, 0.5)
    tell(store, "closed", 22.0, 0.1)
    store.given("telemetry", {"at_s": 12.0, "engine_steps": 10, "output_tokens": 30, "in_flight_requests": 2})
    store.expect(
        "engine",
        {
            "run_id": "run",
            "worker": "w",
            "engine_generation": 0,
            "attempt": 1,
            "is_rebuild": False,
            "earlier_reductions": 0,
            "ending": "closed",
            "failure_phase": None,
            "failure_kind": None,
            "is_memory_failure": None,
            "failure_message": None,
            "exit_code": None,
            "failed_requests": None,
            "reductions": 0,
            "reduced_arguments": None,
            "restored_arguments": None,
            "isolated_requests": 0,
            "opened_at_s": 8.0,
            "warmed_up_at_s": 9.0,
            "work_began_at_s": 11.0,
            "last_ok_finished_at_s": 21.0,
            "work_ended_at_s": 21.0,
            "ended_at_s": 22.0,
            "load_s": 7.5,
            "warmup_s": 0.5,
            "working_s": 10.0,
            "lost_s": None,
            "rebuild_s": None,
            "recovery_s": None,
            "ok_requests": 2,
            "error_requests": 0,
            "ok_output_tokens": 50,
            "ok_output_tokens_per_s": 5.0,
            "max_concurrency": 80,
            "last_max_concurrency": 80,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 8192,
            "max_model_len": 4096,
            "gpu_memory_utilization": 0.9,
            "kv_cache_tokens": 100_000,
            "vllm_version": "0.32.0",
            "device_name": "H200",
            "telemetry_samples": 1,
            "engine_steps": 10,
            "output_tokens": 30,
        },
    )


def test_an_engine_that_dies_of_memory_is_followed_by_a_smaller_one(store):
    """The second does not even start; the third is smaller again, and ends well."""
    store.given_answers(answer(0, 10.0, 14.0), answer(2, 52.0, 60.0, window_requests=20))
    tell(store, "opened", 8.0, 8.0, OPENED)
    tell(store, "warmed_up", 9.0, 1.0)
    tell(store, "failed", 16.5, details=OUT_OF_MEMORY, message="CUDA out of memory")
    tell(store, "reduced", 17.0, details=REDUCED)
    second = {"engine_generation": 1}
    tell(store, "failed", 30.0, details={"kind": "start_memory", "is_memory": True, "phase": "start"}, **second)
    tell(store, "reduced", 30.0, details=SMALLER, **second)
    third = {"engine_generation": 2}
    tell(store, "opened", 50.0, 9.0, {"window_requests": 40, "gpu_memory_utilization": 0.8}, **third)
    tell(store, "warmed_up", 51.0, 1.0, **third)
    tell(store, "closed", 61.0, 0.1, **third)
    store.expect(
        "engine",
        *as_rows(
            "engine_generation is_rebuild earlier_reductions ending failure_phase failure_kind is_memory_failure "
            "failure_message exit_code failed_requests reductions reduced_arguments",
            (
                0,
                False,
                0,
                "failed",
                "run",
                "device_oom",
                True,
                "CUDA out of memory",
                1,
                80,
                1,
                json.dumps(REDUCED).replace("window_requests", "max_concurrency"),
            ),
            (1, True, 1, "failed", "start", "start_memory", True, None, None, None, 1, json.dumps(SMALLER)),
            (2, True, 2, "closed", None, None, None, None, None, None, 0, None),
        ),
    )
    store.expect(
        "engine",
        *as_rows(
            "engine_generation working_s lost_s ended_at_s rebuild_s recovery_s max_concurrency",
            (0, 6.5, 2.5, 16.5, None, None, 80),
            (1, None, None, 30.0, None, 13.5, None),
            (2, 8.0, None, 61.0, 10.0, 21.0, 40),
        ),
    )


def test_engine_history_uses_answers_for_an_engine_without_events(store):
    """Error rows have no part in it, as in any throughput."""
    store.given_answers(answer(0, 10.0, 14.0), answer(0, 1.0, 99.0, error_kind="refused"))
    sample(store, 17.0)
    expected = {"attempt": 1, "is_rebuild": False, "ending": None, "ended_at_s": None, "working_s": 4.0, "lost_s": None}
    store.expect("engine", {**expected, "max_concurrency": 80, "ok_requests": 1, "error_requests": 1})
    store.expect("run_summary", {"duration_s": 4.0, "working_s": 4.0, "vanished_engines": 0, "lost_s": None})


def test_the_attempt_of_such_an_engine_is_unknown_where_the_run_had_several(store):
    store.given_answers(answer(0, 10.0, 14.0), answer(1, 20.0, 24.0))
    store.connection.execute("update runs set attempt = 2")
    store.expect("engine", *[{"attempt": None, "is_rebuild": None, "working_s": 4.0}] * 2)
    store.expect("run_summary", {"rebuilds": 0, "working_s": 8.0, "downtime_s": 6.0, "load_s": None})


def test_an_engine_that_dies_with_requests_in_flight_worked_since_it_opened_when_nothing_else_is_known(store):
    tell(store, "opened", 8.0, 8.0)
    tell(store, "failed", 20.0, details={"phase": "run", "in_flight_requests": 5})
    store.expect("engine", {"work_began_at_s": 8.0, "working_s": 12.0, "lost_s": 12.0})


def test_results_of_a_crashed_engine_count_when_read_later(store):
    store.given_answers(answer(0, 10.0, 12.5))
    tell(store, "opened", 8.0, 8.0)
    tell(store, "failed", 12.0, details=OUT_OF_MEMORY)
    store.expect("engine", {"ended_at_s": 12.0, "work_ended_at_s": 12.5, "working_s": 2.5, "lost_s": 0.0})


def test_a_death_that_is_told_twice_is_one_and_closing_it_changes_nothing(store):
    store.given("runs", {"run_id": "run"})
    tell(store, "opened", 8.0, 8.0)
    tell(store, "failed", 12.0, details=OUT_OF_MEMORY, message="CUDA out of memory")
    tell(store, "failed", 13.0, details={"kind": "other"}, message="The worker gives up")
    tell(store, "closed", 14.0, 0.1)
    expected = {"ending": "failed", "ended_at_s": 12.0, "failure_kind": "device_oom"}
    store.expect("engine", {**expected, "failure_message": "CUDA out of memory"})
    store.expect("run_summary", {"engine_failures": 1, "vanished_engines": 0})


def test_where_a_failure_does_not_say_its_phase_it_is_told_by_the_opening(store):
    tell(store, "failed", 9.0)
    tell(store, "opened", 8.0, 8.0, worker="v")
    tell(store, "failed", 9.0, worker="v")
    store.expect("engine", {"worker": "w", "failure_phase": "start"}, {"worker": "v", "failure_phase": "run"})


def test_a_window_may_grow(store):
    tell(store, "opened", 8.0, 8.0, {"window_requests": 40})
    tell(store, "grown", 20.0, details={"window_requests": {"from": 40, "to": 45}})
    tell(store, "grown", 30.0, details={"window_requests": {"from": 45, "to": 50}})
    tell(store, "closed", 40.0)
    store.expect("engine", {"max_concurrency": 40, "last_max_concurrency": 50, "reductions": 0})


def test_engine_history_takes_the_window_from_answers_without_events(store):
    store.given_answers(answer(0, 1.0, 2.0, window_requests=40), answer(0, 1.0, 2.0, window_requests=50))
    store.expect("engine", {"max_concurrency": 40, "last_max_concurrency": 50})


def test_reductions_that_were_undone_do_not_lead_to_what_follows(store):
    """Two reductions, then one request is found to blame: it is an error row, and the engine gets back what it had."""
    store.given_answers({"engine_generation": 2, "error_kind": "killed_engine"}, answer(3, 10.0, 20.0))
    restored = {"window_requests": {"from": 20, "to": 80}}
    for generation in range(4):
        tell(store, "opened", 8.0 + generation, 8.0, engine_generation=generation)
    for generation in range(3):
        tell(store, "failed", 8.5 + generation, engine_generation=generation)
    for generation in range(2):
        tell(store, "reduced", 8.5 + generation, details=REDUCED, engine_generation=generation)
    tell(store, "isolated", 10.6, details={"request_id": "0"}, engine_generation=2)
    tell(store, "restored", 10.7, details=restored, engine_generation=2)
    tell(store, "failed", 30.0, engine_generation=3)
    tell(store, "reduced", 30.0, details=REDUCED, engine_generation=3)
    tell(store, "opened", 40.0, 8.0, engine_generation=4)
    plain = {"restored_arguments": None, "isolated_requests": 0, "error_requests": 0}
    store.expect(
        "engine",
        {"engine_generation": 0, "earlier_reductions": 0, **plain},
        {"engine_generation": 1, "earlier_reductions": 1, **plain},
        {
            "engine_generation": 2,
            "earlier_reductions": 2,
            "restored_arguments": json.dumps(restored),
            "isolated_requests": 1,
            "error_requests": 1,
        },
        {"engine_generation": 3, "earlier_reductions": 0, **plain},
        {"engine_generation": 4, "earlier_reductions": 1, **plain},
    )
    store.expect("run_summary", {"reductions": 3, "isolated_requests": 1, "rebuilds": 4})


def test_engine_history_ignores_requests_that_never_reached_an_engine(store):
    store.given_answers({"worker": "prepare", "error_kind": "template"})
    store.expect("engine")
