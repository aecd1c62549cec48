"""The table that a person reads: chosen and named in Python, computed in SQL."""

import inspect
import re

import pytest

from assayline.errors import StoreError
from assayline.report.run.rows import open_run
from assayline.store import measure
from assayline.store.measure import list_statements
from assayline.store.metrics import SHOWN, read_metric_table

LATENCIES = ("ttft_s", "queue_s", "prefill_s", "decode_s", "tpot_s", "itl_s", "e2e_s")


def test_a_run_that_is_not_there_is_said_so(store):
    with pytest.raises(StoreError, match="Run elsewhere is not in"), open_run(store.connection, "elsewhere"):
        pass
    assert read_metric_table(store.connection, "' or 1=1 --") == []


def read_table(store):
    store.measure()
    return read_metric_table(store.connection, "run")


def test_the_metric_table_names_and_orders_and_computes_nothing(store):
    store.given_answers(
        *(
            {"arrived_at_s": i, "first_token_at_s": i + 1.0 + i % 12, "finished_at_s": i + 300.0, "text": "4"}
            for i in range(240)
        ),
        target="4",
    )
    store.given("scorers", {"scorer": "numeric"})
    store.given("scores", *({"scorer": "numeric", "prompt_id": str(i), "value": 1.0} for i in range(240)))
    table, values = read_table(store), store.values()
    usual = [
        shown.words.format(metric="pass@1", detail="numeric", accuracy="accuracy (numeric)")
        for shown in SHOWN
        if shown.only_above is None
    ]
    assert [row["metric"] for row in table] == [name for name in usual if name in {row["metric"] for row in table}]
    assert 12 <= len(table) <= 20
    assert all(list(row) == ["metric", "source", "unit", "value", "low", "high", "n"] for row in table)
    by_name = {row["metric"]: row for row in table}
    assert by_name["accuracy (numeric)"] == {
        "metric": "accuracy (numeric)",
        "unit": "share",
        "source": "accuracy mean",
        "value": 1.0,
        "low": values["accuracy of numeric"]["low"],
        "high": 1.0,
        "n": 240,
    }
    p95 = values["ttft_s p95"]
    assert by_name["TTFT p95"] == {
        "metric": "TTFT p95",
        "unit": "s",
        "source": "ttft_s p95",
        "value": p95["value"],
        "low": p95["low"],
        "high": p95["high"],
        "n": 240,
    }
    assert p95["low"] is not None
    assert by_name["TPOT p50"]["value"] is None


def test_scorers_and_repeats_have_rows_of_their_own(store):
    store.given_answers({"text": "4"})
    kinds = {"numeric": "numeric", "f1": "f1", "tests": "code", "helpful": "judge"}
    rows = [{"scorer": name, "kind": kind, "ordinal": place} for place, (name, kind) in enumerate(kinds.items())]
    store.given("scorers", *rows)
    scores = [("numeric", i, float(i == 3)) for i in range(12)]
    scores += [("f1", 0, 0.5), ("tests", 0, 1.0), ("helpful", 0, 0.25)]
    store.given("scores", *({"scorer": name, "repeat_index": i, "value": value} for name, i, value in scores))
    table = {row["metric"]: (row["value"], row["n"]) for row in read_table(store)}
    assert {name: cells for name, cells in table.items() if "(" in name or name in kinds} == {
        "accuracy (numeric)": (pytest.approx(1 / 12), 12),
        "accuracy (f1)": (0.5, 1),
        "pass@1 (tests)": (1.0, 1),
        "helpful": (0.25, 1),
        "pass@5 (numeric)": (pytest.approx(5 / 12), 1),
        "pass@10 (numeric)": (pytest.approx(10 / 12), 1),
        "pass@12 (numeric)": (1.0, 1),
        "majority vote (numeric)": (0.0, 1),
    }


def test_error_does_not_count_as_an_answer(store):
    failed = {"error_kind": "bad", "error_message": "it was bad"}
    store.given_answers({"text": "4"}, {"text": "5"}, failed)
    store.connection.execute("update runs set expected_requests = 4")
    table = {row["metric"]: (row["value"], row["n"]) for row in read_table(store)}
    assert (table["answered"], table["errors"], table["missing"]) == ((2, 4), (1, 4), (1, 4))


def test_the_metric_table_of_a_run_of_nothing(store):
    store.given("runs", {"expected_requests": 0})
    table = {row["metric"]: row["value"] for row in read_table(store)}
    defined = {name for name, value in table.items() if value is not None}
    assert defined == {"answered", "errors"}


def given_troubles(store):
    """An engine dies of memory, its successor is killed with its worker, and a second attempt ends with its load."""
    store.given_answers(
        {"engine_generation": 0, "arrived_at_s": 10.0, "finished_at_s": 12.0},
        {"engine_generation": 1, "arrived_at_s": 30.0, "finished_at_s": 35.0},
        {"engine_generation": 2, "arrived_at_s": 90.0, "finished_at_s": 100.0, "retries": 2},
        {"engine_generation": 0, "error_kind": "killed_engine"},
        {"engine_generation": 2, "error_kind": "not_sent"},
        {"engine_generation": 0, "error_kind": "row_error", "worker": "prepare"},
    )
    store.connection.execute("update runs set attempt = 2")
    store.given(
        "engine_events",
        {"event": "opened", "at_s": 8.0, "duration_s": 8.0},
        {"event": "failed", "at_s": 15.0, "duration_s": None},
        {"event": "reduced", "at_s": 15.0, "duration_s": None},
        {"event": "isolated", "at_s": 16.0, "duration_s": None},
    )
    store.given("engine_events", {"engine_generation": 1, "event": "opened", "at_s": 29.0, "duration_s": 7.0})
    store.given(
        "engine_events", {"attempt": 2, "engine_generation": 2, "event": "opened", "at_s": 89.0, "duration_s": 9.0}
    )


def test_metric_value_has_error_rows_only_if_there_are_errors(store):
    given_troubles(store)
    absent = {"missing", "cut off by the context", "cut off by max_tokens", "prefix cache hits"}
    absent |= {"tokens per step with a draft", "draft tokens accepted"}
    rare = {shown.words for shown in SHOWN if shown.only_above is not None} - absent
    table = {row["metric"]: row["value"] for row in read_table(store) if row["metric"] in rare}
    assert table == {
        "not sent, as the load or the run had ended": 1,
        "sent more than once": 1,
        "rows that could not be asked": 1,
        "of it without an engine at work": (30.0 - 15.0) + (90.0 - 35.0),
        "of it lost to engine failures": 3.0,
        "attempts": 2,
        "engine starts of later attempts": 9.0,
        "engine failures": 1,
        "engine rebuilds": 1,
        "from failure to ready again": 29.0 - 15.0,
        "reductions": 1,
        "requests that kill engines": 1,
    }
    assert table.keys() == rare


def test_everything_that_is_shown_is_a_metric(store):
    """A misspelt name would never be shown."""
    sources = "".join([*list_statements().values(), inspect.getsource(measure)])
    named = {*re.findall(r"['\"](\w+)['\"]", sources), *LATENCIES, "pass@k"}
    assert {shown.metric for shown in SHOWN} <= named


def test_a_load_has_rows_about_goodput_and_lateness(store):
    store.given("loads", {"arrival": "constant", "requests_per_s": 1.0, "warmup_s": 0.0, "cooldown_s": 0.0})
    store.given("slos", {"slo": "fast", "metric": "ttft_s", "limit_s": 1.5})
    stamps = [
        {"due_at_s": float(i), "sent_at_s": i + 0.25, "arrived_at_s": i + 0.25, "first_token_at_s": i + 1.25 + i / 2,
         "last_token_at_s": i + 4.0, "finished_at_s": i + 4.0}
        for i in range(4)
    ]  # fmt: skip
    store.given_answers(*stamps)
    by_name = {row["metric"]: row for row in read_table(store)}
    assert by_name["good requests (fast)"]["value"] == 0.5  # TTFT is 1, 1.5, 2 and 2.5 s
    ((per_s,),) = store.connection.execute(
        "select value from metric_value where metric = 'good_requests_per_s'"
    ).fetchall()
    assert by_name["good requests/s (fast)"]["value"] == per_s is not None
    assert by_name["good requests/s (fast)"]["source"] == "good_requests_per_s mean"
    assert by_name["sent late, p99"] == {
        "metric": "sent late, p99", "unit": "s", "source": "send_lag_s p99", "value": 0.25, "low": None, "high": None,
        "n": 4,
    }  # fmt: skip
