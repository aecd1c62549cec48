"""engine, draft_use and metrics of starts, failures and batches: what became of every engine."""

import json
from typing import Any

import pytest
from row_kit import Row, as_rows

OPENED = {
    "window_requests": 80, "max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_model_len": 4096,
    "gpu_memory_utilization": 0.9, "kv_cache_tokens": 100_000, "vllm_version": "0.32.0", "device_name": "H200",
}  # fmt: skip
OUT_OF_MEMORY = {"kind": "device_oom", "is_memory": True, "phase": "run", "exit_code": 1, "in_flight_requests": 80}
SMALLER = {"gpu_memory_utilization": {"from": 0.9, "to": 0.8}}
REDUCED = {"window_requests": {"from": 80, "to": 40}, "max_num_seqs": {"from": 64, "to": 32}}
RESTORED = {"window_requests": {"from": 20, "to": 80}}
NO_MEMORY = "CUDA out of memory"


def tell(event: str, at_s: float, duration_s: float | None = None, details: Row | None = None, **columns: Any) -> Row:
    """An event of an engine."""
    told = {"event": event, "at_s": at_s, "duration_s": duration_s, "details_json": json.dumps(details or {})}
    return {**told, "message": None, **columns}


def answer(generation: int, arrived_at_s: float | None = None, finished_at_s: float | None = None, **columns: Any):
    stamps = {"engine_generation": generation, "arrived_at_s": arrived_at_s, "finished_at_s": finished_at_s}
    return {**stamps, "window_requests": 80, **columns}


def of_generation(generation: int, *events: Row) -> list[Row]:
    return [{**event, "engine_generation": generation} for event in events]


def steps(*rows: tuple[Any, ...]) -> list[Row]:
    """Samples: worker, generation, steps and output tokens."""
    return as_rows("worker engine_generation engine_steps output_tokens", *rows)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an engine that lived well": (
        {
            "answers": [answer(0, 11.0, 13.0, output_tokens=30), answer(0, 12.0, 21.0, output_tokens=20)],
            "engine_events": [tell("opened", 8.0, 7.5, OPENED), tell("warmed_up", 9.0, 0.5), tell("closed", 22.0, 0.1)],
            "telemetry": {"at_s": 12.0, "engine_steps": 10, "output_tokens": 30, "in_flight_requests": 2},
        },
        {"engine": [{
            "worker": "w", "engine_generation": 0, "attempt": 1, "is_rebuild": False, "earlier_reductions": 0,
            "ending": "closed", "failure_phase": None, "failure_kind": None, "is_memory_failure": None,
            "failure_message": None, "exit_code": None, "failed_requests": None, "reductions": 0,
            "reduced_arguments": None, "restored_arguments": None, "isolated_requests": 0, "opened_at_s": 8.0,
            "warmed_up_at_s": 9.0, "work_began_at_s": 11.0, "last_ok_finished_at_s": 21.0, "work_ended_at_s": 21.0,
            "ended_at_s": 22.0, "load_s": 7.5, "warmup_s": 0.5, "working_s": 10.0, "lost_s": None, "rebuild_s": None,
            "recovery_s": None, "ok_requests": 2, "error_requests": 0, "ok_output_tokens": 50,
            "ok_output_tokens_per_s": 5.0, "max_concurrency": 80, "last_max_concurrency": 80, "max_num_seqs": 64,
            "max_num_batched_tokens": 8192, "max_model_len": 4096, "gpu_memory_utilization": 0.9,
            "kv_cache_tokens": 100_000, "vllm_version": "0.32.0", "device_name": "H200", "telemetry_samples": 1,
            "engine_steps": 10, "output_tokens": 30,
        }]},
    ),
    "an engine that dies of memory is followed by one that does not start and a smaller one that ends well": (
        {
            "answers": [answer(0, 10.0, 14.0), answer(2, 52.0, 60.0, window_requests=20)],
            "engine_events": [
                tell("opened", 8.0, 8.0, OPENED), tell("warmed_up", 9.0, 1.0),
                tell("failed", 16.5, None, OUT_OF_MEMORY, message=NO_MEMORY), tell("reduced", 17.0, None, REDUCED),
                *of_generation(
                    1, tell("failed", 30.0, None, {"kind": "start_memory", "is_memory": True, "phase": "start"}),
                    tell("reduced", 30.0, None, SMALLER),
                ),
                *of_generation(
                    2, tell("opened", 50.0, 9.0, {"window_requests": 40, "gpu_memory_utilization": 0.8}),
                    tell("warmed_up", 51.0, 1.0), tell("closed", 61.0, 0.1),
                ),
            ],
        },
        {"engine": as_rows(
            "engine_generation is_rebuild earlier_reductions ending failure_phase failure_kind is_memory_failure "
            "failure_message exit_code failed_requests reductions reduced_arguments working_s lost_s ended_at_s "
            "rebuild_s recovery_s max_concurrency",
            (0, False, 0, "failed", "run", "device_oom", True, NO_MEMORY, 1, 80, 1,
             json.dumps(REDUCED).replace("window_requests", "max_concurrency"), 6.5, 2.5, 16.5, None, None, 80),
            (1, True, 1, "failed", "start", "start_memory", True, None, None, None, 1, json.dumps(SMALLER), None, None,
             30.0, None, 13.5, None),
            (2, True, 2, "closed", None, None, None, None, None, None, 0, None, 8.0, None, 61.0, 10.0, 21.0, 40),
        )},
    ),
    "an engine without events is known by its ok answers": (
        {"answers": [answer(0, 10.0, 14.0), answer(0, 1.0, 99.0, error_kind="refused")],
         "telemetry": {"at_s": 17.0, "in_flight_requests": 1, "engine_steps": 1}},
        {
            "engine": [{
                "attempt": 1, "is_rebuild": False, "ending": None, "ended_at_s": None, "working_s": 4.0, "lost_s": None,
                "max_concurrency": 80, "ok_requests": 1, "error_requests": 1,
            }],
            "duration_s": 4.0, "working_s": 4.0, "vanished_engines": 0, "lost_s": None,
        },
    ),
    "its attempt is unknown where the run had several": (
        {"answers": [answer(0, 10.0, 14.0), answer(1, 20.0, 24.0)], "run": {"attempt": 2}},
        {"engine": [{"attempt": None, "is_rebuild": None, "working_s": 4.0}] * 2, "rebuilds": 0, "working_s": 8.0,
         "downtime_s": 6.0, "load_s": None},
    ),
    "an engine that dies with requests in flight worked since it opened when nothing else is known": (
        {"engine_events": [
            tell("opened", 8.0, 8.0), tell("failed", 20.0, None, {"phase": "run", "in_flight_requests": 5}),
        ]},
        {"engine": as_rows("work_began_at_s working_s lost_s", (8.0, 12.0, 12.0))},
    ),
    "results of a crashed engine count when they are read later": (
        {"answers": [answer(0, 10.0, 12.5)],
         "engine_events": [tell("opened", 8.0, 8.0), tell("failed", 12.0, None, OUT_OF_MEMORY)]},
        {"engine": as_rows("ended_at_s work_ended_at_s working_s lost_s", (12.0, 12.5, 2.5, 0.0))},
    ),
    "a death that is told twice is one, and closing it changes nothing": (
        {"run": {}, "engine_events": [
            tell("opened", 8.0, 8.0), tell("failed", 12.0, None, OUT_OF_MEMORY, message=NO_MEMORY),
            tell("failed", 13.0, None, {"kind": "other"}, message="The worker gives up"), tell("closed", 14.0, 0.1),
        ]},
        {"engine": as_rows("ending ended_at_s failure_kind failure_message", ("failed", 12.0, "device_oom", NO_MEMORY)),
         "engine_failures": 1, "vanished_engines": 0},
    ),
    "without a phase of the failure, the opening tells it": (
        {"engine_events": [
            tell("failed", 9.0), tell("opened", 8.0, 8.0, worker="v"), tell("failed", 9.0, worker="v"),
        ]},
        {"engine": as_rows("worker failure_phase", ("w", "start"), ("v", "run"))},
    ),
    "a window may grow": (
        {"engine_events": [
            tell("opened", 8.0, 8.0, {"window_requests": 40}), tell("closed", 40.0),
            *(tell("grown", at, None, {"window_requests": {"from": at + 20, "to": at + 25}}) for at in (20, 25)),
        ]},
        {"engine": as_rows("max_concurrency last_max_concurrency reductions", (40, 50, 0))},
    ),
    "answers tell the window without events": (
        {"answers": [answer(0, 1.0, 2.0, window_requests=size) for size in (40, 50)]},
        {"engine": as_rows("max_concurrency last_max_concurrency", (40, 50))},
    ),
    "reductions that were undone do not lead to what follows": (
        {
            "answers": [answer(2, error_kind="killed_engine"), answer(3, 10.0, 20.0)],
            "engine_events": [
                *(event for n in range(4) for event in of_generation(n, tell("opened", 8.0 + n, 8.0))),
                *(event for n in range(3) for event in of_generation(n, tell("failed", 8.5 + n))),
                *(event for n in range(2) for event in of_generation(n, tell("reduced", 8.5 + n, None, REDUCED))),
                *of_generation(
                    2, tell("isolated", 10.6, None, {"request_id": "0"}), tell("restored", 10.7, None, RESTORED)
                ),
                *of_generation(3, tell("failed", 30.0), tell("reduced", 30.0, None, REDUCED)),
                *of_generation(4, tell("opened", 40.0, 8.0)),
            ],
        },
        {
            "engine": as_rows(
                "engine_generation earlier_reductions restored_arguments isolated_requests error_requests",
                (0, 0, None, 0, 0), (1, 1, None, 0, 0), (2, 2, json.dumps(RESTORED), 1, 1), (3, 0, None, 0, 0),
                (4, 1, None, 0, 0),
            ),
            "reductions": 3, "isolated_requests": 1, "rebuilds": 4,
        },
    ),
    "batches are output tokens per engine step": (
        {"answers": [answer(0), answer(0), answer(0, error_kind="any")],
         "telemetry": as_rows("at_s engine_steps output_tokens", (1.0, 10, 100), (2.0, 50, 2000))},
        {"engine": as_rows(
            "worker engine_generation ok_requests error_requests last_max_concurrency telemetry_samples engine_steps "
            "output_tokens output_tokens_per_step concurrency_used_share", ("w", 0, 2, 1, 80, 2, 50, 2000, 40.0, 0.5),
        )},
    ),
    "each generation has its row: one died before its first sample, another worker was never rebuilt": (
        {
            "answers": [
                answer(1, worker="a", window_requests=40), answer(0, worker="b"),
                {"worker": "prepare", "error_kind": "template"},
            ],
            "engine_events": {"worker": "a", "event": "opened"}, "telemetry": steps(("a", 1, 10, 200)),
        },
        {
            "engine": as_rows(
                "worker engine_generation ok_requests last_max_concurrency engine_steps concurrency_used_share",
                ("a", 0, 0, None, None, None), ("a", 1, 1, 40, 10, 0.5), ("b", 0, 1, 80, None, None),
            ),
            "engine_steps": 10, "output_tokens_per_step": 20.0, "concurrency_used_share": 0.5, "workers": 2,
        },
    ),
    "engines of later attempts did not replace an engine": (
        {
            "answers": [answer(1, window_requests=40), answer(2, window_requests=8)], "run": {"attempt": 2},
            "engine_events": [
                tell("opened", 0.0, None, {"window_requests": 80}), tell("reduced", 0.0),
                *of_generation(1, tell("opened", 0.0, None, {"window_requests": 40})),
                *of_generation(2, tell("opened", 0.0, None, {"window_requests": 80}, attempt=2)),
            ],
        },
        {"engine": as_rows(
            "attempt engine_generation earlier_reductions max_concurrency last_max_concurrency", (1, 0, 0, 80, 80),
            (1, 1, 1, 40, 40), (2, 2, 0, 80, 8),
        )},
    ),
    "occupancy is of the sums of engines, not a mean of their ratios": (
        {
            "answers": [answer(0, worker="a"), answer(1, worker="a", window_requests=40), answer(0, worker="b")],
            "engine_events": as_rows(
                "attempt event worker engine_generation", (1, "opened", "a", 0), (2, "opened", "a", 1),
                (1, "opened", "b", 0),
            ),
            "telemetry": steps(("a", 0, 10, 300), ("a", 1, 50, 900), ("b", 0, 7, 99)),
        },
        {"engine_steps": 67, "output_tokens_per_step": 1299 / 67,
         "concurrency_used_share": 1299 / (80 * 17 + 40 * 50)},
    ),
    "an engine that answered nothing has no part in the share of the window": (
        {"answers": [answer(1, window_requests=40)], "telemetry": steps(("w", 0, 5, 500), ("w", 1, 10, 200))},
        {"engine_steps": 15, "output_tokens_per_step": 700 / 15, "concurrency_used_share": 0.5},
    ),
    "an engine without steps does not lower the occupancy of others": (
        {"answers": [answer(0, window_requests=4), answer(1, window_requests=4)],
         "telemetry": steps(("w", 0, 10, 20), ("w", 1, None, 1000))},
        {"output_tokens_per_step": 2.0, "concurrency_used_share": 0.5},
    ),
    "no batch means without steps": (
        {"telemetry": {"engine_steps": 0, "output_tokens": 0}},
        {"engine": as_rows("engine_steps output_tokens_per_step concurrency_used_share", (0, None, None))},
    ),
    "a server in an open loop has no steps, no window and no queue": (
        {
            "loads": {},
            "engine_events": tell("opened", 0.5, None, {"window_requests": 80, "device": "x"}),
            "answers": [answer(0, 1.0, 2.0, sent_at_s=1.0, first_token_at_s=1.5, last_token_at_s=2.0, output_tokens=1,
                               window_requests=None)],
            "telemetry": {"at_s": 1.0, "engine_steps": None, "output_tokens": 7, "in_flight_requests": 1},
        },
        {
            "engine": as_rows(
                "max_concurrency last_max_concurrency concurrency_used_share output_tokens_per_step engine_steps "
                "output_tokens", (None, None, None, None, None, 7),
            ),
            "concurrency_used_share": None, "output_tokens_per_step": None, "engine_steps": None,
            **{f"{name} p50": (value, n) for name, value, n in (
                ("ttft_s", 0.5, 1), ("queue_s", None, 0), ("prefill_s", None, 0), ("decode_s", 0.5, 1),
                ("tpot_s", None, 0), ("e2e_s", 1.0, 1), ("itl_s", None, 0),
            )},
        },
    ),
    "the scheduler is described while it has requests": (
        {"telemetry": as_rows(
            "at_s in_flight_requests kv_cache_usage_share running_requests waiting_requests preemptions",
            (0.0, 0, 0.0, 0, 0, 0), (1.0, 4, 0.25, 2, 2, 1), (2.0, 4, 0.75, 2, 2, 2),
        )},
        {"engine": as_rows(
            "busy_samples mean_kv_cache_usage_share max_kv_cache_usage_share mean_running_requests "
            "max_waiting_requests preemptions", (2, 0.5, 0.75, 2.0, 2, 2),
        )},
    ),
    "drafts are accepted by position": (
        {"answers": [
            {"acceptance_histogram": [2, 0, 1], "draft_tokens": 5},
            {"acceptance_histogram": [1, 3, 3], "draft_tokens": 15},
            {"acceptance_histogram": [9, 9, 9], "draft_tokens": 54, "error_kind": "any"}, {"output_tokens": 5},
        ]},
        {"draft_use": as_rows(
            "position accepted_share requests drafts draft_tokens accepted_tokens acceptance_length draft_acceptance",
            *((position, share, 2, 10, 20, 11, 2.1, 0.55) for position, share in ((1, 0.7), (2, 0.4))),
        ), "acceptance_length": (2.1, 10), "draft_acceptance": (0.55, 20)},
    ),
    "without a draft nothing is accepted": (
        {"answers": [
            {"output_tokens": 5, "acceptance_histogram": None}, {"acceptance_histogram": [0, 0], "draft_tokens": 0},
        ]},
        {"draft_use": []},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_engines_of_rows(cases, name):
    cases.expect_case(name, CASES[name][1])
