"""Cost: rates times quantities, per unit of output, with and without loading; NULL if a part is not known."""

import json
from typing import Any

import numpy as np
import pytest
import scipy.stats
from row_kit import RUN, Store

from assayline.comparison.queries import compare_speed

HOUR = 3600.0
Array = np.ndarray[Any, Any]


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
        {"run_id": run_id, "event": "load_ended", "at_s": 300.0, "details_json": "{}"},  # no engine is left by then
        {"run_id": run_id, "event": "idle", "worker": "worker-9", "at_s": 310.0, "details_json": "{}"},
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
            "held_s": 150.0,
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


def given_priced_runs(store: Store, runs: dict[str, tuple[Array, Array]], repeats: int = 1) -> None:
    """Insert runs by output tokens and scores of all samples, those of a prompt next to each other; 100 s of work."""
    spec = json.dumps({"price": {"currency": "EUR", "per_machine_hour": 36.0}})
    store.given("runs", *({"run_id": run_id, "spec_json": spec} for run_id in runs))
    store.given("scorers", *({"run_id": run_id} for run_id in runs))
    samples = [
        {"run_id": run_id, "request_id": str(i), "prompt_id": str(i // repeats), "repeat_index": i % repeats}
        | {"output_tokens": int(tokens), "value": float(value)}
        for run_id, columns in runs.items()
        for i, (tokens, value) in enumerate(zip(*columns, strict=True))
    ]
    keys = ("run_id", "request_id", "prompt_id", "repeat_index")
    store.given("requests", *({key: row[key] for key in keys} for row in samples))
    stamps = {"arrived_at_s": 0.0, "finished_at_s": 100.0}
    store.given(
        "completions",
        *({key: row[key] for key in ("run_id", "request_id", "output_tokens")} | stamps for row in samples),
    )
    keys = ("run_id", "prompt_id", "repeat_index", "value")
    store.given("scores", *({key: row[key] for key in keys} for row in samples if row["value"] >= 0))


def draw_samples(random: np.random.Generator, prompts: int, repeats: int) -> tuple[Array, Array]:
    """Tokens and scores where hard prompts are e^0.7 times as long, and lengths spread by 0.6 in their logarithm."""
    is_hard = np.repeat(random.random(prompts) < 0.5, repeats)
    tokens = np.ceil(200 * np.exp(0.7 * is_hard + random.normal(0, 0.6, prompts * repeats)))
    return tokens, (random.random(prompts * repeats) < np.where(is_hard, 0.3, 0.9)).astype(float)


@pytest.mark.parametrize("repeats", [1, 4])
def test_cost_per_right_answer_has_the_interval_of_a_ratio_estimator(store: Store, repeats: int) -> None:
    """The residuals of C − R × A, summed by prompt: the form in which textbooks have the same variance."""
    tokens, values = draw_samples(np.random.default_rng(repeats), 50, repeats)
    given_priced_runs(store, {RUN: (tokens, values)}, repeats)
    cost = tokens / tokens.sum()  # 1 EUR in all
    residuals = (cost - values / values.sum()).reshape(50, repeats).sum(axis=1)
    factor = np.exp(scipy.stats.t.ppf(0.975, 49) * np.sqrt(50 * residuals.var(ddof=1)))
    row = store.row("run_cost")
    assert row["working_cost"] == pytest.approx(1.0)
    assert row["cost_per_right_answer"] == pytest.approx(1 / values.sum())
    assert row["cost_per_right_answer_low"] == pytest.approx(1 / values.sum() / factor, rel=1e-5)
    assert row["cost_per_right_answer_high"] == pytest.approx(1 / values.sum() * factor, rel=1e-5)


@pytest.mark.parametrize(("sizes", "freedom"), [([5] * 8, 7.0), ([12, 10, 6, 4, 4, 4], 328**2 / 32_800)])
def test_cost_per_right_answer_interval_counts_passages_as_clusters(
    store: Store, sizes: list[int], freedom: float
) -> None:
    """Forty prompts over some passages: residuals are summed by passage, and large passages leave less freedom.

    SQL interpolates between whole degrees of freedom.
    """
    tokens, values = draw_samples(np.random.default_rng(3), 40, 1)
    given_priced_runs(store, {RUN: (tokens, values)})
    spec = {"price": {"currency": "EUR", "per_machine_hour": 36.0}, "prompts": {"columns": {"cluster": "passage"}}}
    store.connection.execute("update raw.runs set spec_json = ?", [json.dumps(spec)])
    place = np.repeat(np.arange(len(sizes)), sizes)
    store.given(
        "prompts",
        *({"prompt_id": str(i), "metadata_json": json.dumps({"passage": f"text {place[i]}"})} for i in range(40)),
    )
    residuals = np.bincount(place, tokens / tokens.sum() - values / values.sum()) / (1 - np.array(sizes) / 40)
    spread = (len(sizes) - 1) / len(sizes) * (residuals**2).sum()
    factor = np.exp(scipy.stats.t.ppf(0.975, freedom) * np.sqrt(spread))
    row = store.row("run_cost")
    assert row["cost_per_right_answer_low"] == pytest.approx(1 / values.sum() / factor, rel=2e-3)
    assert row["cost_per_right_answer_high"] == pytest.approx(1 / values.sum() * factor, rel=2e-3)


def test_cost_per_right_answer_leaves_out_the_cost_of_unscored_samples(store: Store) -> None:
    """Ten answers of 0.1 EUR, five of them with a target and all right."""
    given_priced_runs(store, {RUN: (np.full(10, 100), np.array([1.0] * 5 + [-1.0] * 5))})
    store.expect("run_cost", {"working_cost": 1.0, "cost_per_right_answer": 0.1, "cost_per_right_answer_low": None})


def test_cost_per_right_answer_is_null_when_nothing_is_right(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6}, right=0)
    store.expect("run_cost", {f"cost_per_right_answer{end}": None for end in ("", "_low", "_high")})


def test_tokens_of_an_api_cached_ones_apart(store: Store) -> None:
    rates = {"per_million_input_tokens": 2.0, "per_million_cached_tokens": 0.5, "per_million_output_tokens": 10.0}
    given_run(store, rates, gpus=0)
    cost = (250 * 2.0 + 150 * 0.5 + 1000 * 10.0) / 1e6
    store.expect(
        "run_cost",
        {
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
    store.expect("run_cost", {"cost": None, "working_cost": None})
    samples = [{"at_s": float(second), "energy_joules": 500.0 * second} for second in range(60, 211)]
    store.given("device_telemetry", *samples)
    store.expect(
        "run_cost",
        {
            "cost": 0.36 * 75_000 / 3.6e6,
            "working_cost": 0.36 * 50_000 / 3.6e6,
            "cost_per_million_output_tokens": 0.36 * 50_000 / 3.6e6 / 1000 * 1e6,
        },
    )


def test_all_rates_that_are_given_are_added_up(store: Store) -> None:
    rates = {"per_gpu_hour": 3.6, "per_machine_hour": 5.4, "per_million_output_tokens": 10.0, "gpus": 8}
    given_run(store, rates)
    store.expect(
        "run_cost",
        {
            "token_cost": 0.01,
            "cost": (3.6 * 8 + 5.4) * 150 / HOUR + 0.01,
            "working_cost": (3.6 * 8 + 5.4) * 100 / HOUR + 0.01,
        },
    )


def test_gpu_hours_of_a_run_without_a_gpu_are_not_known(store: Store) -> None:
    given_run(store, {"per_gpu_hour": 3.6, "per_machine_hour": 1.0}, gpus=0)
    store.expect("run_cost", {"cost": None, "working_cost": None})


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
    store.measure()
    rows = compare_speed(store.connection, ["b"], ["a"], {})
    assert rows["cost_per_right_answer"].unit == "EUR/right answer"
    assert rows["cost_per_million_output_tokens"].difference == pytest.approx(-0.5)
    for candidate, found in (("b", pytest.approx(0.5 * 6 / 9 - 1)), ("c", None)):
        row = compare_speed(store.connection, [candidate], ["a"], {}).get("cost_per_right_answer")
        assert (row and row.difference) == found
