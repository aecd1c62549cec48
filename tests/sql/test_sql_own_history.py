"""The check `own history` of the gate: its nights, its verdict, and the prompts that it names."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from assayline.comparison.gate import judge_run_against
from assayline.comparison.own_history import OWN_HISTORY, list_nights
from assayline.report.run.comparison import describe_comparison, read_comparison
from assayline.run.stages import save_verdicts
from assayline.spec.criteria import GateSpec
from assayline.stats.worse import NIGHTS

FIRST = datetime(2026, 1, 1, 1, 30)
PROMPTS = 120
LOST = range(30, 42)


def given_night(store, night, lost=(), **run):
    """A night on which the prompts 0 to 9 are right or wrong by chance, and all others right but the lost ones."""
    run_id = f"night-{night:02d}"
    columns = {"config_id": "c", "benchmark_id": None, "purpose": "night", "started_at": FIRST + timedelta(night)}
    store.given("runs", {"run_id": run_id, **columns, **run})
    store.given("engine_events", *({"run_id": run_id, "event": event} for event in ("opened", "warmed_up")))
    store.given("scorers", {"run_id": run_id})
    wrong = {*np.flatnonzero(np.random.default_rng(night).random(10) < 0.4).tolist(), *lost}
    keys = [{"run_id": run_id, "prompt_id": f"p{number:03d}"} for number in range(PROMPTS)]
    store.given("prompts", *({**key, "source_id": f"q{number}"} for number, key in enumerate(keys)))
    store.given("scores", *({**key, "value": float(number not in wrong)} for number, key in enumerate(keys)))
    return run_id


@pytest.fixture
def nights(store):
    return [given_night(store, night) for night in range(14)]


def judge(store, run_id, baseline, nights=NIGHTS, **limits):
    store.measure()
    report = judge_run_against(store.connection, run_id, baseline, GateSpec(max_slowdown={}, **limits), nights)
    return report, {check.check: check for check in report.checks}


def test_judge_own_history_names_the_lost_prompts(store, nights, tmp_path):
    new = given_night(store, 14, lost=LOST)
    report, checks = judge(store, new, nights[0])
    check = checks[OWN_HISTORY]
    assert check.verdict == "fail" and check.p_value < 1e-4
    assert check.words.startswith("12 prompts were right on at least 14 of 14 nights and wrong tonight; 0.")
    assert check.words.endswith("Lost: q30, q31, q32, q33, q34, q35, q36, q37, q38, q39 and 2 more.")
    save_verdicts(store.connection, tmp_path, report)
    rows = store.read("from verdict_prompt order by prompt_id")
    assert [row["prompt_id"] for row in rows] == [f"p{number:03d}" for number in LOST]
    assert all(row["finding"] == "lost" and row["is_last"] and row["chance"] < 0.05 for row in rows)
    assert rows[0]["scores"] == [1.0] * 14 + [0.0]
    section = describe_comparison(read_comparison(store.connection, new, nights[0]))
    (table,) = (
        block for block in section.blocks if getattr(block, "caption", "") == "Prompts against their own history"
    )
    assert len(table.cells) == 12 and {row[3] for row in table.cells} == {"●" * 14 + "○"}

    following = given_night(store, 15, lost=LOST)
    assert judge(store, following, nights[0])[1][OWN_HISTORY].verdict == "fail", "a failed night does not count as past"
    assert list_nights(store.connection, following, nights[0], "exact_match") == nights


def test_judge_own_history_passes_equal_nights_and_shares_the_level(store, nights):
    checks = judge(store, nights[-1], nights[0])[1]
    assert checks[OWN_HISTORY].verdict == "pass"
    assert checks[OWN_HISTORY].words.startswith("No more prompts are lost than their 13 past nights predict (p ")
    new = given_night(store, 14, lost=LOST)
    assert judge(store, new, nights[0], max_lost_share=0.15)[1][OWN_HISTORY].verdict == "pass"
    accuracy = judge(store, new, nights[0])[1]["accuracy, exact_match"]
    assert "needs p ≤ 0.00083" in accuracy.words


def test_list_nights_counts_comparable_runs_since_the_baseline(store, nights):
    def count(run_id, baseline=nights[0]):
        store.measure()
        return len(list_nights(store.connection, run_id, baseline, "exact_match"))

    new = given_night(store, 14)
    assert count(new) == 14 and count(new, nights[6]) == 8
    checks = judge(store, new, nights[6])[1]
    assert OWN_HISTORY not in checks
    assert "not yet judged: 8 of 10 nights of this configuration" in checks["accuracy, exact_match"].words
    assert count(given_night(store, 15, config_id="d")) == 0
    assert count(given_night(store, 16, machine="another")) == 0
    store.connection.execute("update scorers set definition = 'older' where run_id = ?", [nights[5]])
    store.connection.execute("update runs set state = 'failed' where run_id = ?", [nights[3]])
    assert count(new) == 12
