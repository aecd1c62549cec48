"""Cost: rates times quantities, per what was got for it, with and without loading; NULL where a part is not known."""

import json
from typing import Any

import pytest
from given_rows import RUN, Store

HOUR = 3600.0


def given_run(store: Store, price: dict[str, Any] | None, *, gpus: int = 2, right: int = 6, run_id: str = RUN) -> None:
    """Ten answers of 100 output and 40 prompt tokens, 15 of them cached, between second 100 and 200. Loading began at
    60, and the engine was closed at 210. `right` of them are right."""
    spec = {"price": {"currency": "EUR", **price}} if price is not None else {}
    ids = [str(i) for i in range(10)]
    store.given("runs", {"run_id": run_id, "expected_requests": 10, "spec_json": json.dumps(spec)})
    store.given("requests", *({"run_id": run_id, "request_id": id_, "prompt_id": id_} for id_ in ids))
    store.given(
        "completions",
        *(
            {
                "run_id": run_id,
                "request_id": id_,
                "arrived_at_s": 100.0,
                "finished_at_s": 200.0,
                "prompt_tokens": 40,
                "cached_tokens": 15,
                "output_tokens": 100,
            }
            for id_ in ids
        ),
    )
    details = json.dumps({"claimed_gpus": gpus})
    store.given(
        "engine_events",
        {"run_id": run_id, "event": "opened", "at_s": 90.0, "duration_s": 30.0, "details_json": details},
        {"run_id": run_id, "event": "warmed_up", "at_s": 95.0, "duration_s": 5.0, "details_json": "{}"},
        {"run_id": run_id, "event": "closed", "at_s": 210.0, "duration_s": 1.0, "details_json": "{}"},
    )
    store.given("scorers", {"run_id": run_id})
    store.given("scores", *({"run_id": run_id, "prompt_id": id_, "value": float(int(id_) < right)} for id_ in ids))


def test_gpu_hours_with_and_without_loading(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6})
    per_second = 3.6 * 2 / HOUR
    store.expect(
        "run_cost",
        {
            "currency": "EUR",
            "gpus": 2,
            "machines": None,
            "held_s": 150.0,
            "gpu_cost": 150 * per_second,
            "machine_cost": None,
            "energy_cost": None,
            "token_cost": None,
            "cost": 150 * per_second,
            "working_cost": 100 * per_second,
            "cost_per_million_output_tokens": 100 * per_second / 1000 * 1e6,
            "full_cost_per_million_output_tokens": 150 * per_second / 1000 * 1e6,
            "cost_per_thousand_requests": 100 * per_second / 10 * 1000,
            "full_cost_per_thousand_requests": 150 * per_second / 10 * 1000,
            "right_answers": 6.0,
            "cost_per_right_answer": 100 * per_second / 6,
            "full_cost_per_right_answer": 150 * per_second / 6,
        },
    )


def test_the_interval_of_a_right_answers_cost_is_that_of_their_number(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6})
    summary, cost = store.row("run_summary"), store.row("run_cost")
    for prefix, total in (("", cost["working_cost"]), ("full_", cost["cost"])):
        assert cost[f"{prefix}cost_per_right_answer_low"] == pytest.approx(total / (10 * summary["accuracy_high"]))
        assert cost[f"{prefix}cost_per_right_answer_high"] == pytest.approx(total / (10 * summary["accuracy_low"]))


def test_nothing_right_has_no_cost_per_right_answer_and_no_upper_end(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6}, right=0)
    row = store.row("run_cost")
    assert row["cost_per_right_answer"] is None and row["cost_per_right_answer_high"] is None
    assert row["cost_per_right_answer_low"] is not None, "at the best it cost as much"


def test_tokens_of_an_api_cached_ones_apart(store: Store) -> None:
    rates = {"per_million_input_tokens": 2.0, "per_million_cached_tokens": 0.5, "per_million_output_tokens": 10.0}
    given_run(store, rates, gpus=0)
    cost = (250 * 2.0 + 150 * 0.5 + 1000 * 10.0) / 1e6
    store.expect(
        "run_cost",
        {
            "gpus": None,
            "token_cost": cost,
            "cost": cost,
            "working_cost": cost,
            "cost_per_million_output_tokens": cost / 1000 * 1e6,
        },
    )


def test_cached_tokens_without_a_rate_cost_as_others(store: Store) -> None:
    given_run(store, {"per_million_input_tokens": 2.0}, gpus=0)
    store.expect("run_cost", {"token_cost": 400 * 2.0 / 1e6})


def test_energy_is_paid_for_over_the_same_windows(store: Store) -> None:
    given_run(store, {"per_kwh": 0.36})
    store.expect("run_cost", {"cost": None, "working_cost": None, "energy_cost": None})
    samples = [{"at_s": float(second), "energy_joules": 500.0 * second} for second in range(60, 211)]
    store.given("device_telemetry", *samples)
    store.expect(
        "run_cost",
        {
            "energy_cost": 0.36 * 75_000 / 3.6e6,
            "cost": 0.36 * 75_000 / 3.6e6,
            "working_cost": 0.36 * 50_000 / 3.6e6,
            "cost_per_million_output_tokens": 0.36 * 50_000 / 3.6e6 / 1000 * 1e6,
        },
    )


def test_all_rates_that_are_given_are_added_up(store: Store) -> None:
    rates = {"per_gpu_hour": 3.6, "per_machine_hour": 1.8, "machines": 3, "per_million_output_tokens": 10.0, "gpus": 8}
    given_run(store, rates)
    store.expect(
        "run_cost",
        {
            "gpus": 8,
            "machines": 3,
            "gpu_cost": 3.6 * 8 * 150 / HOUR,
            "machine_cost": 1.8 * 3 * 150 / HOUR,
            "token_cost": 0.01,
            "cost": (3.6 * 8 + 1.8 * 3) * 150 / HOUR + 0.01,
            "working_cost": (3.6 * 8 + 1.8 * 3) * 100 / HOUR + 0.01,
        },
    )


def test_gpu_hours_of_a_run_without_a_gpu_are_not_known(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6, "per_machine_hour": 1.0}, gpus=0)
    store.expect("run_cost", {"gpus": None, "cost": None, "working_cost": None, "machine_cost": 150 / HOUR})


def test_the_time_between_two_attempts_is_not_paid_for(store: Store) -> None:
    given_run(store, {"per_machine_hour": 36.0})
    store.given(
        "engine_events",
        {"attempt": 2, "engine_generation": 1, "event": "opened", "at_s": 9_000.0, "duration_s": 20.0},
        {"attempt": 2, "engine_generation": 1, "event": "closed", "at_s": 9_010.0, "duration_s": 1.0},
    )
    store.expect("run_cost", {"held_s": 180.0, "cost": 1.8})


def test_a_run_without_a_price_has_no_cost(store: Store) -> None:
    given_run(store, None)
    store.expect("run_cost", {"currency": None, "cost": None, "working_cost": None, "mean_power_watts": None})
    store.given("device_telemetry", *({"at_s": float(second), "power_watts": 50.0} for second in range(60, 211)))
    store.expect("run_cost", {"currency": None, "cost": None, "cost_per_right_answer": None, "mean_power_watts": 50.0})
    assert not [row for row in store.rows("run_metric") if "cost" in row["metric"]]


def test_costs_are_metrics_that_are_compared_in_one_currency_alone(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6}, run_id="a")
    given_run(store, {"per_gpu_hour": 1.8}, run_id="b", right=9)
    given_run(store, {"per_gpu_hour": 1.8, "currency": "USD"}, run_id="c")
    store.connection.execute("create temp table run_metric as from main.run_metric")  # computed once for what follows
    compare = "select metric, unit, change_share, is_better from compare_metrics(?, ?) where metric like 'cost%'"
    rows = {row[0]: row[1:] for row in store.connection.execute(compare, ["b", "a"]).fetchall()}
    assert rows["cost_per_right_answer"] == ("EUR/right answer", pytest.approx(0.5 * 6 / 9 - 1), True)
    assert rows["cost_per_million_output_tokens"] == ("EUR/million tokens", pytest.approx(-0.5), True)
    assert store.connection.execute(compare, ["c", "a"]).fetchall() == []
    repeats = "select metric, relative_shift from compare_repeats(?, ?) where metric like 'cost%right%'"
    for candidate, found in (("b", [("cost_per_right_answer", pytest.approx(0.5 * 6 / 9 - 1))]), ("c", [])):
        assert store.connection.execute(repeats, [[candidate], ["a"]]).fetchall() == found
