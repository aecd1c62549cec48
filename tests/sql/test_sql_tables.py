"""The tables and functions of the schema main, for users."""

from datetime import datetime, timedelta

import duckdb
from row_kit import RUN, as_rows

from assayline.comparison.board import rank_board
from assayline.store.database import connect
from assayline.store.metrics import forget_metrics

TABLES = {
    "answer", "comparison", "engine", "frontier", "judge_audit", "judgement", "label", "load_point", "metric_value",
    "prompt", "ranking", "request", "run", "score", "timeline", "token", "verdict", "verdict_prompt",
}  # fmt: skip
FUNCTIONS = {"compare_configs", "compare_runs", "history"}
START = datetime(2026, 1, 1)
ANSWER = {"arrived_at_s": 1.0, "scheduled_at_s": 1.0, "queued_at_s": 1.0, "first_token_at_s": 1.5, "prompt_tokens": 4}


def answered(request_id, at_s=2.0, **more):
    times = {"last_token_at_s": at_s, "finished_at_s": at_s, "output_tokens": 3}
    return {"request_id": request_id, **ANSWER, **times, **more}


def given_scores(store, *values, run_id=RUN):
    store.given("scorers", {"run_id": run_id})
    store.given("scores", *({"run_id": run_id, "prompt_id": str(i), "value": v} for i, v in enumerate(values)))


def test_another_client_sees_the_tables_and_functions_for_users(tmp_path):
    with connect(tmp_path / "new.duckdb", 10):
        pass
    with duckdb.connect(tmp_path / "new.duckdb", read_only=True) as connection:
        assert {name for (name,) in connection.execute("show tables").fetchall()} == TABLES
        functions = "select distinct function_name from duckdb_functions() where schema_name = 'main' and not internal"
        assert {name for (name,) in connection.execute(functions).fetchall()} == FUNCTIONS
        for table in TABLES:
            assert connection.execute(f"from {table}").fetchall() == []


def test_a_run_has_its_headline_metrics_its_gate_and_its_conditions(store):
    store.given_answers(answered("0"), answered("1", 3.0), {"request_id": "2", "error_kind": "timeout"}, target="t")
    given_scores(store, 1.0, 0.0, 0.0)
    store.connection.execute("insert into baselines values ('stable', ?, ?, null, null)", [RUN, START])
    store.given("verdicts", {"limit_on": "accuracy", "verdict": "pass", "baseline_run_id": "old"})
    store.given("engine_events", {"event": "opened", "at_s": 0.5, "details_json": '{"device_name": "H100"}'})
    store.given("runs", {"run_id": "under way", "state": "running"})
    store.measure()
    store.expect(
        "run",
        {
            "ok_requests": 2, "error_requests": 1, "missing_requests": 0, "scorer": "exact_match", "accuracy": 1 / 3,
            "ttft_p50_s": 0.5, "e2e_p50_s": 1.5, "requests_per_s": 1.0, "duration_s": 2.0, "verdict": "pass",
            "baseline_run_id": "old", "baselines": ["stable"], "device_name": "H100", "attempts": 1,
        },
    )  # fmt: skip
    found = {"state": "running", "accuracy": None, "ok_requests": None, "verdict": None, "baselines": None}
    store.expect("run", found, run_id="under way")


def test_a_metric_value_knows_its_run(store):
    store.given_answers(answered("0"), answered("1"))
    store.measure()
    rows = store.connection.execute(
        "select name, model, started_at, statistic, value, n, unit from metric_value where metric = 'ok_requests'"
    ).fetchall()
    assert rows == [("spec", "model", START, "total", 2.0, 2, "requests")]


def test_request_has_durations_and_answer_has_texts(store):
    store.given_answers(answered("0", text="four", window_requests=16), {"request_id": "1", "error_kind": "oom"})
    store.connection.execute("update requests set rendered = '2 + 2 =' where request_id = '0'")
    store.expect(
        "request",
        *as_rows(
            "request_id status e2e_s tpot_s max_concurrency error_kind",
            ("0", "ok", 1.0, 0.25, 16, None),
            ("1", "error", None, None, 8, "oom"),
        ),
    )
    store.expect(
        "answer",
        {"request_id": "0", "text": "four", "rendered": "2 + 2 =", "error_kind": None},
        {"request_id": "1", "text": None, "rendered": None, "error_kind": "oom"},
    )


def test_a_request_and_its_texts_are_there_once_where_rows_are_there_twice(store):
    store.given_answers(answered("0", text="a"), answered("0", text="b"))
    for table in ("request", "answer", "prompt"):
        assert len(store.rows(table)) == 1, table


def test_an_engine_has_its_size_its_end_and_how_full_it_was(store):
    store.given_answers(answered("0", window_requests=4), answered("1", window_requests=4))
    store.given("engine_events", {"event": "opened", "at_s": 0.5}, {"event": "closed", "at_s": 9.0})
    busy = {"in_flight_requests": 2, "kv_cache_usage_share": 0.5, "engine_steps": 3}
    store.given("telemetry", {"at_s": 1.5, **busy}, {"at_s": 3.0, **busy, "output_tokens": 6})
    store.expect(
        "engine",
        {
            "ending": "closed", "max_concurrency": 4, "last_max_concurrency": 4, "ok_requests": 2,
            "output_tokens_per_step": 2.0, "concurrency_used_share": 0.5, "max_kv_cache_usage_share": 0.5,
        },
    )  # fmt: skip


def test_a_second_has_the_power_and_the_cache_of_its_samples(store):
    store.given_answers(answered("0", 3.5))
    devices = [("cuda-0", 100.0), ("cuda-0", 200.0), ("cuda-1", 50.0), ("host", None)]
    store.given("device_telemetry", *({"device": name, "at_s": 1.2, "power_watts": watts} for name, watts in devices))
    store.given("telemetry", *({"at_s": 1.5, "kv_cache_usage_share": share} for share in (0.2, 0.4)))
    rows = {row["second"]: row for row in store.rows("timeline")}
    assert (rows[1]["power_watts"], round(rows[1]["kv_cache_usage_share"], 9)) == (200.0, 0.3)
    assert rows[2]["power_watts"] is None and rows[3]["finished_requests"] == 1


def test_verdicts_say_which_judgement_counts(store):
    store.given("runs", {})
    for hour, verdict in enumerate(["broken", "pass"]):
        at = {"judged_at": START + timedelta(hours=hour)}
        store.given(
            "verdicts", *({**at, "ordinal": i, "limit_on": on, "verdict": verdict} for i, on in enumerate("ab"))
        )
    found = {(row["judged_at"].hour, row["is_last"]) for row in store.rows("verdict")}
    assert found == {(0, False), (1, True)}
    assert {row["name"] for row in store.rows("verdict")} == {"spec"}


def test_ranking_has_the_last_leaderboard_of_each_name_until_a_run_changes(store):
    for model, right in (("good", 40), ("bad", 10), ("other prompts", 40)):
        rows = [str(i) for i in range(40 + (model == "other prompts"))]
        store.given("runs", {"run_id": model, "model": model, "name": model, "expected_requests": len(rows)})
        store.given("prompts", *({"run_id": model, "prompt_id": row} for row in rows))
        store.given("requests", *({"run_id": model, "prompt_id": row, "request_id": row} for row in rows))
        store.given("completions", *({"run_id": model, "request_id": row} for row in rows))
        given_scores(store, *(float(i < right) for i in range(len(rows))), run_id=model)
    store.measure()
    rank_board(store.connection)
    rank_board(store.connection, ["good"])
    rank_board(store.connection)
    columns = "select model, value, best_rank, worst_rank, is_winner, obstacle from ranking where names ="
    assert store.connection.execute(f"{columns} []").fetchall() == [
        ("good", 1.0, 1, 1, True, None),
        ("bad", 0.25, 2, 2, False, None),
        ("other prompts", 40 / 41, None, None, False, "it was asked other prompts"),
    ]
    compared = store.rows("comparison", run_id=None)
    kept = ("kind", "run_id", "baseline_run_id", "metric", "difference", "n", "method", "verdict")
    assert [tuple(row[name] for name in kept) for row in compared] == [
        ("leaderboard", "good", "bad", "accuracy", 0.75, 40, "prompts", "better")
    ]
    (row,) = compared
    assert row["low"] < 0.75 < row["high"] and 0 < row["p_value"] < 1e-6
    forget_metrics(store.connection, "bad")
    assert store.rows("comparison", run_id=None) == []
    assert store.connection.execute("select names, model from ranking").fetchall() == [(["good"], "good")]
