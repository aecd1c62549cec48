"""compare_metrics: two runs side by side."""

import pytest


def given_speed(store, run_id, seconds_per_request):
    stamps = [(i * seconds_per_request, (i + 1) * seconds_per_request) for i in range(4)]
    answers = [{"arrived_at_s": begin, "finished_at_s": end, "output_tokens": 10} for begin, end in stamps]
    store.given_answers(*answers, run_id=run_id)


def compare(store, candidate, baseline):
    store.measure()
    return {row["metric"]: row for row in store.read("from compare_metrics(?, ?)", candidate, baseline)}


def test_values_stand_side_by_side_and_better_is_faster_and_sooner(store):
    given_speed(store, "slow", 2.0)
    given_speed(store, "fast", 0.5)
    rows = compare(store, "fast", "slow")
    assert rows["output_tokens_per_s"] == {
        "metric": "output_tokens_per_s",
        "unit": "tokens/s",
        "candidate_value": pytest.approx(20.0),
        "baseline_value": pytest.approx(5.0),
        "change_share": pytest.approx(3.0),
        "is_better": True,
    }
    assert rows["e2e_p50_s"]["change_share"] == pytest.approx(-0.75)
    assert rows["e2e_p50_s"]["is_better"] is True
    assert compare(store, "slow", "fast")["e2e_p50_s"]["is_better"] is False


def test_compare_metrics_calls_equal_or_unknown_values_neither_better_nor_worse(store):
    given_speed(store, "one", 1.0)
    given_speed(store, "other", 1.0)
    rows = compare(store, "one", "other")
    assert rows["requests_per_s"]["change_share"] == 0.0
    assert rows["requests_per_s"]["is_better"] is None
    assert rows["ttft_p50_s"]["candidate_value"] is None
    assert (rows["ttft_p50_s"]["change_share"], rows["ttft_p50_s"]["is_better"]) == (None, None)


def test_a_run_that_is_not_there_compares_with_nothing(store):
    given_speed(store, "one", 1.0)
    assert compare(store, "one", "none") == {}
