"""Sources of the history page: find_history, history, list_changes, read_band and gate_verdict."""

import json
from datetime import datetime, timedelta
from statistics import median

import numpy as np
import pytest
from row_kit import give_run_metric

from assayline.comparison.queries import read_band
from assayline.report.history_rows import list_changes

NIGHT = datetime(2026, 1, 1, 1, 30)


def given_run(store, run_id, night, *, config="c", vllm="1", driver=None, warmed_up=True, prompts="ab", **run):
    columns = {"model_id": "m", "config_id": config, "benchmark_id": None, "message": None, **run}
    store.given("runs", {"run_id": run_id, "started_at": NIGHT + timedelta(days=night), **columns})
    details = json.dumps({"vllm_version": vllm, "device_name": "X1", **({"driver_version": driver} if driver else {})})
    events = ["opened", "warmed_up"] if warmed_up else ["opened"]
    store.given("engine_events", *({"run_id": run_id, "event": event, "details_json": details} for event in events))
    store.given("prompts", *({"run_id": run_id, "prompt_id": prompt} for prompt in prompts))


def given_metrics(store, *rows):
    """Values of run_metric, in place of the view: (run_id, metric, value), and low and high where they matter."""
    names = ("run_id", "metric", "value", "low", "high")
    give_run_metric(store.connection, *(dict(zip(names, row, strict=False)) for row in rows))


def read(store, macro, *arguments):
    store.measure()
    marks = ", ".join("?" * len(arguments))
    return store.read(f"from {macro}({marks})", *arguments)


def ids(rows):
    return [row["run_id"] for row in rows]


def test_a_history_is_the_runs_of_one_name_model_and_prompt_set_in_their_order(store):
    given_run(store, "b", 2)
    given_run(store, "a", 1)
    given_run(store, "failed", 3, state="failed", message="disk")
    given_run(store, "running", 4, state="running")
    given_run(store, "other name", 5, name="another")
    given_run(store, "benchmark", 6, benchmark_id="bench")
    given_run(store, "suite", 7, purpose="suite")
    rows = read(store, "find_history", "spec")
    assert ids(rows) == ["a", "b", "failed"]
    assert [row["position"] for row in rows] == [1, 2, 3]
    assert [row["message"] for row in rows] == [None, None, "disk"]
    assert ids(read(store, "find_history", "a")) == ["a", "b", "failed"], "the id of a run stands for its history"
    assert read(store, "find_history", "nobody") == []


def test_find_history_leaves_out_evaluations_of_configurations_without_a_night(store):
    given_run(store, "night", 1, purpose="night")
    given_run(store, "again", 2)
    given_run(store, "hot", 3, config="temperature 1.5")
    given_run(store, "changed night", 4, config="d", purpose="night")
    assert ids(read(store, "find_history", "spec")) == ["night", "again", "changed night"]
    assert ids(read(store, "find_history", "temperature 1.5")) == ["hot"], "unless it is asked for"


def test_of_one_name_the_newest_runs_model_and_prompt_set_count(store):
    given_run(store, "old model", 1, model="old")
    given_run(store, "old prompts", 2, prompt_set="old")
    given_run(store, "now", 3)
    assert ids(read(store, "find_history", "spec")) == ["now"]
    assert ids(read(store, "find_history", "old model")) == ["old model"]


def test_a_config_id_leaves_out_what_is_configured_otherwise(store):
    given_run(store, "a", 1)
    given_run(store, "b", 2, config="d")
    given_run(store, "c", 3)
    assert ids(read(store, "find_history", "c")) == ["a", "c"], "run c has the id that is also a config_id's name"
    assert ids(read(store, "find_history", "d")) == ["b"]
    assert ids(read(store, "find_history", "spec")) == ["a", "b", "c"]


def verdicts(*verdicts, run_id="a", baseline="base", day=0, flow_run_id=None):
    return [
        {
            "run_id": run_id,
            "baseline_run_id": baseline,
            "judged_at": NIGHT + timedelta(days=day),
            "ordinal": ordinal,
            "limit_on": f"limit {ordinal}",
            "verdict": verdict,
            "unit": "",
            "words": f"words {ordinal}.",
            "flow_run_id": flow_run_id,
        }
        for ordinal, verdict in enumerate(verdicts)
    ]


@pytest.mark.parametrize(
    ("limits", "verdict", "failed", "inconclusive", "words"),
    [
        (["pass", "pass"], "pass", [], [], None),
        (["pass", "inconclusive"], "inconclusive", [], ["limit 1"], None),
        (["inconclusive", "inconclusive"], "inconclusive", [], ["limit 0", "limit 1"], None),
        (["fail", "pass", "fail"], "fail", ["limit 0", "limit 2"], [], "words 0. words 2."),
    ],
)
def test_gate_verdict_summarizes_limits(store, limits, verdict, failed, inconclusive, words):
    store.given("verdicts", *verdicts(*limits))
    store.expect(
        "gate_verdict",
        {"verdict": verdict, "failed_limits": failed, "inconclusive_limits": inconclusive, "words": words},
        run_id="a",
    )


def test_find_history_shows_the_last_judgement_of_a_run(store):
    given_run(store, "a", 1)
    given_run(store, "b", 2)
    store.given("verdicts", *verdicts("pass", day=0), *verdicts("fail", baseline="other", day=1))
    first, second = read(store, "find_history", "spec")
    assert (first["verdict"], first["baseline_run_id"], first["failed_limits"]) == ("fail", "other", ["limit 0"])
    assert (second["verdict"], second["baseline_run_id"], second["verdict_words"]) == (None, None, None)


def test_gate_verdict_takes_the_judgement_of_the_night_before_a_later_one(store):
    night = verdicts("fail", day=1, flow_run_id="night")
    store.given("verdicts", *verdicts("fail", day=0, flow_run_id="night before"), *night, *verdicts("pass", day=2))
    store.expect("gate_verdict", {"verdict": "fail", "flow_run_id": "night"}, run_id="a")
    store.given("verdicts", *verdicts("fail", run_id="b", day=0), *verdicts("pass", run_id="b", day=2))
    store.expect("gate_verdict", {"verdict": "pass", "flow_run_id": None}, run_id="b")


def test_values_have_the_intervals_of_their_run_and_say_whether_they_count(store):
    given_run(store, "a", 1)
    given_run(store, "cold", 2, warmed_up=False)
    given_run(store, "failed", 3, state="failed")
    given_metrics(
        store,
        *((run, "accuracy", 0.5, 0.1, 0.9) for run in ("a", "cold", "failed")),
        *((run, "tpot_p50_s", 0.5) for run in ("a", "cold", "failed")),
        ("a", "ttft_p50_s", None),
    )
    rows = read(store, "history", "spec")
    assert {(row["run_id"], row["metric"]): row["is_counted"] for row in rows} == {
        ("a", "accuracy"): True,
        ("a", "tpot_p50_s"): True,
        ("cold", "accuracy"): True,
        ("cold", "tpot_p50_s"): False,
        ("failed", "accuracy"): False,
        ("failed", "tpot_p50_s"): False,
    }
    (mine,) = (row for row in rows if (row["run_id"], row["metric"]) == ("a", "accuracy"))
    assert (mine["low"], mine["high"]) == (0.1, 0.9)
    assert (mine["unit"], mine["higher_is_better"], mine["position"]) == ("u", True, 1)


def test_latencies_have_the_interval_of_their_percentile(store):
    store.given_answers(
        *(
            {
                "arrived_at_s": float(i),
                "first_token_at_s": i + 1.0 + i * 37 % 100,
                "last_token_at_s": i + 200.0,
                "finished_at_s": i + 200.0,
                "output_tokens": 5,
            }
            for i in range(100)
        ),
        run_id="a",
    )
    (row,) = (row for row in read(store, "history", "spec") if row["metric"] == "ttft_p50_s")
    found = store.values("a")["ttft_s p50"]
    assert (row["value"], row["low"], row["high"]) == (found["value"], found["low"], found["high"])
    assert row["low"] is not None


def changes(store, history="spec"):
    store.measure()
    return [
        (row["run_id"], row["condition"], row["before"], row["after"])
        for row in list_changes(store.connection, history)
    ]


def test_list_changes_names_the_first_run_with_a_change(store):
    given_run(store, "a", 1)
    given_run(store, "b", 2)
    given_run(store, "c", 3, vllm="2", prompts="abc", driver="5", machine="other")
    given_run(store, "d", 4, vllm="2", prompts="cba", driver="5", machine="other", assayline_version="1")
    found = {(run, condition): (before, after) for run, condition, before, after in changes(store)}
    assert found.pop(("c", "prompts"))[0] is not None, "the order of the rows is none of its content"
    assert found == {("c", "vLLM"): ("1", "2"), ("c", "machine"): ("host", "other"), ("d", "assayline"): ("0", "1")}


def test_list_changes_skips_unknown_conditions(store):
    given_run(store, "a", 1, driver="5")
    given_run(store, "b", 2)
    given_run(store, "c", 3, driver="6")
    assert changes(store) == [("c", "driver", "5", "6")]
    (row,) = list_changes(store.connection, "spec")
    assert row["run_id_before"] == "a"


def test_list_changes_separates_model_from_settings(store):
    given_run(store, "a", 1, config="m1-s1", model_id="m1", spec_hash="s1")
    given_run(store, "b", 2, config="m2-s1", model_id="m2", spec_hash="s1")
    given_run(store, "c", 3, config="m2-s2", model_id="m2", spec_hash="s2")
    given_run(store, "d", 4, config="m3-s3", model_id="m3", spec_hash="s3")
    assert [(run, condition) for run, condition, _, _ in changes(store)] == [
        ("b", "model"),
        ("c", "settings"),
        ("d", "model"),
        ("d", "settings"),
    ]


def test_the_band_of_a_speed_is_median_and_range_of_the_baselines_repeats(store):
    """Compare with NumPy, with runs that are not repeats in between."""
    dice = np.random.default_rng(3)
    values = {}
    for night in range(14):
        given_run(store, f"n{night:02}", night)
        values[f"n{night:02}"] = float(dice.normal(100, 5))
    given_run(store, "other", 5, config="d")
    given_run(store, "cold", 6, warmed_up=False)
    given_run(store, "new vllm", 7, vllm="2")
    odd = [(run, "tpot_p50_s", 1e6) for run in ("other", "cold", "new vllm")]
    given_metrics(
        store, *((run, "tpot_p50_s", value) for run, value in values.items()), *odd, ("n12", "ttft_p50_s", None)
    )
    store.measure()
    (row,) = read_band(store.connection, "n12")
    mine = [values[f"n{night:02}"] for night in range(3, 13)]
    expected = {"metric": "tpot_p50_s", "unit": "u", "repeats": 10, "low": min(mine), "high": max(mine)}
    assert {key: row[key] for key in expected} == expected
    assert row["value"] == pytest.approx(median(mine))
    (alone,) = read_band(store.connection, "cold")
    assert (alone["value"], alone["repeats"]) != (1e6, 1), "its repeats tell its level"


def test_a_baseline_without_repeats_is_its_own_band_and_accuracy_has_its_interval(store):
    given_run(store, "a", 1, warmed_up=False)
    given_metrics(store, ("a", "tpot_p50_s", 2.0), ("a", "accuracy", 0.75, 0.4, 0.9))
    store.measure()
    rows = {row["metric"]: row for row in read_band(store.connection, "a")}
    assert (rows["tpot_p50_s"]["value"], rows["tpot_p50_s"]["low"], rows["tpot_p50_s"]["repeats"]) == (2.0, 2.0, 1)
    assert [rows["accuracy"][column] for column in ("value", "low", "high")] == [0.75, 0.4, 0.9]
    assert read_band(store.connection, "nobody") == []
