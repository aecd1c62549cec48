"""Energy: counted or integrated, cut at the window of throughput. Cost: rates times quantities, NULL if a part is."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
import scipy.stats
from row_kit import RUN, Row, Store, as_rows

from assayline.comparison.queries import compare_speed

HOUR = 3600.0
Array = np.ndarray[Any, Any]
Given = dict[str, Any]


def work(*engines: tuple[str, float, float], answers: int = 2, tokens: int = 50) -> Given:
    """One engine per worker, loaded in 10 s before its first answer; each gives `answers` answers in its time."""
    events = [
        {"worker": worker, "event": event, "at_s": at_s, "duration_s": duration_s}
        for worker, began, ended in engines
        for event, at_s, duration_s in (("opened", began - 1, 9.0), ("closed", ended + 2, 1.0))
    ]
    rows = as_rows(
        "request_id worker arrived_at_s finished_at_s",
        *((f"{w}-{i}", w, began, ended) for w, began, ended in engines for i in range(answers)),
    )
    return {"answers": [{**row, "output_tokens": tokens, "prompt_tokens": 10} for row in rows], "engine_events": events}


def power(watts: dict[float, float | None], device: str = "cuda-0") -> list[Row]:
    return [{"device": device, "at_s": float(at_s), "power_watts": one} for at_s, one in watts.items()]


def counter(joules: dict[float, float], worker: str = "w", device: str = "cuda-0") -> list[Row]:
    rows = ((worker, device, float(at_s), one, 1.0) for at_s, one in joules.items())
    return as_rows("worker device at_s energy_joules power_watts", *rows)


def counted(watts: float, seconds: int, missing: range = range(0), **where: str) -> list[Row]:
    """A counter that rises by `watts`, from second 0 on."""
    return counter({second: watts * second for second in range(seconds) if second not in missing}, **where)


def priced(price: Given | None, *, gpus: int = 2, right: int = 6, **more: Any) -> Given:
    """Ten answers of 100 output and 40 prompt tokens, 15 of them cached, between second 100 and 200. Loading began at
    60, and the engine was closed at 210. `right` of them are right."""
    spec = {"price": {"currency": "EUR", **price}} if price is not None else {}
    answer = {"arrived_at_s": 100.0, "finished_at_s": 200.0, "prompt_tokens": 40, "cached_tokens": 15}
    events = as_rows(
        "event worker at_s duration_s details_json", ("opened", "w", 90.0, 30.0, json.dumps({"claimed_gpus": gpus})),
        ("warmed_up", "w", 95.0, 5.0, "{}"), ("closed", "w", 210.0, 1.0, "{}"),
        ("load_ended", "w", 300.0, None, "{}"), ("idle", "worker-9", 310.0, None, "{}"),  # no engine is left by then
    )  # fmt: skip
    return {
        "answers": [{**answer, "output_tokens": 100}] * 10, "run": {"spec_json": json.dumps(spec)},
        "engine_events": [*events, *more.pop("events", [])], "scorers": {},
        "scores": [{"prompt_id": str(i), "value": float(i < right)} for i in range(10)], **more,
    }  # fmt: skip


RATES = {"per_gpu_hour": 3.6, "per_machine_hour": 5.4, "per_million_output_tokens": 10.0, "gpus": 8}
PER_S, ALL_PER_S = 3.6 * 2 / HOUR, (3.6 * 8 + 5.4) / HOUR
TOKENS = {"per_million_input_tokens": 2.0, "per_million_cached_tokens": 0.5, "per_million_output_tokens": 10.0}
TOKEN_COST = (250 * 2.0 + 150 * 0.5 + 1000 * 10.0) / 1e6
KWH = 0.36 / 3.6e6
NO_COST = {"cost": None, "working_cost": None}
NO_ENERGY = dict.fromkeys(("energy_joules", "working_joules", "idle_joules"))
PAUSE = as_rows(
    "event attempt engine_generation at_s duration_s", ("opened", 1, 0, 5.0, 4.0), ("opened", 2, 1, 1009.0, 8.0),
    ("closed", 2, 1, 1030.0, 1.0),
)  # fmt: skip
REASONS = ["", "gpu_idle", "sw_power_cap", "sw_power_cap,hw_thermal_slowdown"]

CASES: dict[str, tuple[Given, dict[str, Any]]] = {
    "the counter counts, and power does not matter": (
        {**work(("w", 10.0, 20.0)), "device_telemetry": counter({s: 1000 + 50.0 * s for s in range(23)})},
        {"gpus": 1, "energy_joules": 22 * 50.0, "energy_error_joules": None, "working_joules": 500.0,
         "idle_joules": 600.0, "mean_power_watts": 50.0, "energy_per_output_token_joules": 5.0,
         "energy_per_request_joules": 250.0, "output_tokens_per_joule": 0.2, "cost": None},
    ),
    "a reset of the counter is bridged by power": (
        {"device_telemetry": counter({0.0: 100.0, 1.0: 150.0, 2.0: 3.0, 3.0: 53.0})},
        {"energy_stretch": as_rows(
            "begins_at_s source stretch_joules error_joules", (0.0, "counter", 50.0, None), (1.0, "power", 1.0, 0.05),
            (2.0, "counter", 50.0, None),
        )},
    ),
    "the window cuts a stretch in proportion": (
        {**work(("w", 10.25, 19.5)), "device_telemetry": counted(100.0, 25)},
        {"working_joules": 925.0, "idle_joules": 1475.0},
    ),
    "each GPU works while its own worker has work, and is held longer": (
        {**work(("w", 10.0, 20.0), ("v", 12.0, 30.0)),
         "device_telemetry": [*counted(100.0, 23), *counted(200.0, 33, worker="v", device="cuda-1")]},
        {"gpus": 2, "working_joules": 10 * 100.0 + 18 * 200.0, "energy_joules": 22 * 100.0 + 32 * 200.0},
    ),
    **{
        f"400 W over gaps of a counter: {name}": (
            {**work(("w", 0.0, float(span_s))), "device_telemetry": counted(400.0, span_s + 1, missing)},
            {"energy_joules": joules, "energy_error_joules": error, "working_joules": joules, "idle_joules": 0.0},
        )
        for name, span_s, missing, joules, error in (
            ("none", 200, range(0), 80_000.0, None), ("12 s of 300 s", 300, range(100, 111), 120_000.0, None),
            ("first sample 8 s late", 200, range(8), 80_000.0, 3_200.0),
            ("12 s of 200 s", 200, range(100, 111), 80_000.0, None),
            ("101 s of 200 s", 200, range(60, 160), 80_000.0, None),
        )
    },
    "the pause between two attempts is not bridged": (
        {"engine_events": PAUSE, "telemetry": {"at_s": 30.0},
         "device_telemetry": counter({at_s: 100.0 * at_s for at_s in (0, 5, 17, 30, 30.5, 1000, 1001, 1015, 1031)})},
        {"energy_stretch": as_rows("begins_at_s", *([at] for at in (0.0, 5.0, 17.0, 30.0, 1000.0, 1001.0, 1015.0)))},
    ),
    **{
        f"power is known over a gap of up to ten seconds: {gap}": (
            {**work(("w", 10.0, 40.0)), "device_telemetry": power({s: 100.0 for s in range(43) if s not in gap})},
            {"working_joules": joules, "mean_power_watts": joules and 100.0},
        )
        for gap, joules in ((range(13, 13), 3000.0), (range(13, 23), None), (range(16, 35), None))
    },
    "one GPU without a sensor makes the run unknown": (
        {**work(("w", 10.0, 20.0)),
         "device_telemetry": [*counted(100.0, 23), *power(dict.fromkeys(range(23)), device="cuda-1")]},
        {"gpus": 2, **NO_ENERGY},
    ),
    "a run without samples has no energy": (work(("w", 10.0, 20.0)), {"gpus": None, **NO_ENERGY}),
    "the machine alone has no energy": (
        {**work(("w", 10.0, 20.0)), "device_telemetry": {"device": "host", "at_s": 1.0, "utilization_share": 0.5}},
        {"gpus": None, **NO_ENERGY,
         "device_use": as_rows("device mean_utilization_share energy_joules", ("host", 0.5, None))},
    ),
    "between a load's windows, energy is of what throughput is of": (
        {
            "loads": {"warmup_s": 4.0, "cooldown_s": 2.0},
            "answers": [{"sent_at_s": at, "arrived_at_s": at, "finished_at_s": at + 1, "output_tokens": 10}
                        for at in (10.0, 15.0, 20.0)],
            "device_telemetry": counter({second: float(second) ** 2 for second in range(25)}),
        },
        {"measured_s": 4.0, "output_tokens_per_s": 2.5, "working_joules": 21.0**2 - 10.0**2,
         "energy_per_output_token_joules": 12.8, "mean_power_watts": 32.0},
    ),
    "devices are described over all of their samples": (
        {"device_telemetry": [
            {"at_s": float(n), "utilization_share": n / 4, "memory_used_bytes": 10 * n, "memory_total_bytes": 80,
             "power_watts": 100.0 * n, "temperature_c": 50 + n, "sm_clock_mhz": 1900 - n, "throttle_reasons": reason}
            for n, reason in enumerate(REASONS)
        ]},
        {"device_use": [{
            "samples": 4, "mean_utilization_share": 0.375, "max_memory_used_bytes": 30, "memory_total_bytes": 80,
            "mean_power_watts": 150.0, "max_power_watts": 300.0, "max_temperature_c": 53, "throttled_share": 0.5,
            "throttle_reasons": "hw_thermal_slowdown, sw_power_cap", "energy_known_s": 3.0,
        }]},
    ),
    "GPU hours with and without loading": (
        priced({"per_gpu_hour": 3.6}),
        {
            "held_s": 150.0, "token_cost": None, "cost": 150 * PER_S, "working_cost": 100 * PER_S,
            "cost_per_million_output_tokens": 100 * PER_S / 1000 * 1e6,
            "full_cost_per_million_output_tokens": 150 * PER_S / 1000 * 1e6,
            "cost_per_thousand_requests": 100 * PER_S / 10 * 1000,
            "full_cost_per_thousand_requests": 150 * PER_S / 10 * 1000,
            "cost_per_right_answer": 100 * PER_S / 6, "full_cost_per_right_answer": 150 * PER_S / 6,
        },
    ),
    "nothing right has no cost per right answer": (
        priced({"per_gpu_hour": 3.6}, right=0),
        dict.fromkeys(("cost_per_right_answer", "cost_per_right_answer low", "cost_per_right_answer high")),
    ),
    "tokens of an API, cached ones apart": (
        priced(TOKENS, gpus=0),
        {"token_cost": TOKEN_COST, "cost": TOKEN_COST, "working_cost": TOKEN_COST,
         "cost_per_million_output_tokens": TOKEN_COST / 1000 * 1e6},
    ),
    "cached tokens without a rate cost as others": (
        priced({"per_million_input_tokens": 2.0}, gpus=0), {"token_cost": 400 * 2.0 / 1e6},
    ),
    "energy that is not known has no cost": (priced({"per_kwh": 0.36}), NO_COST),
    "energy is paid for over the same windows": (
        priced({"per_kwh": 0.36}, device_telemetry=counter({second: 500.0 * second for second in range(60, 211)})),
        {"cost": KWH * 75_000, "working_cost": KWH * 50_000,
         "cost_per_million_output_tokens": KWH * 50_000 / 1000 * 1e6},
    ),
    "all rates that are given are added up": (
        priced(RATES), {"token_cost": 0.01, "cost": ALL_PER_S * 150 + 0.01, "working_cost": ALL_PER_S * 100 + 0.01},
    ),
    "GPU hours of a run without a GPU are not known": (
        priced({"per_gpu_hour": 3.6, "per_machine_hour": 1.0}, gpus=0), NO_COST,
    ),
    "the time between two attempts is not paid for": (
        priced({"per_machine_hour": 36.0}, events=as_rows(
            "attempt engine_generation event worker at_s duration_s details_json",
            (2, 1, "opened", "w", 9_000.0, 20.0, "{}"), (2, 1, "closed", "w", 9_010.0, 1.0, "{}"),
        )),
        {"held_s": 180.0, "cost": 1.8},
    ),
    "a run without a price has no cost": (
        priced(None, device_telemetry=power(dict.fromkeys(range(60, 211), 50.0))),
        {**NO_COST, "cost_per_right_answer": None, "mean_power_watts": 50.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_energy_and_cost_of_rows(cases, name):
    cases.expect_case(name, CASES[name][1])


def test_power_is_integrated_by_trapezoids_as_numpy_does(store: Store) -> None:
    random = np.random.default_rng(7)
    at_s, watts = np.cumsum(random.uniform(0.6, 1.4, 60)), random.uniform(80, 700, 60)
    samples = power(dict(zip(at_s.tolist(), watts.tolist(), strict=True)))
    store.given_case(RUN, {**work(("w", float(at_s[12]), float(at_s[50]))), "device_telemetry": samples})
    steps, rises = np.diff(at_s), np.abs(np.diff(watts))
    errors = steps * (rises / 2 + 0.05 * (watts[1:] + watts[:-1]) / 2)
    inside = slice(12, 51)
    store.expect_values({
        "energy_joules": float(np.trapezoid(watts, at_s)), "energy_error_joules": float(errors.sum()),
        "working_joules": float(np.trapezoid(watts[inside], at_s[inside])),
    })  # fmt: skip


def test_the_bound_holds_for_power_that_stays_between_its_samples(store: Store) -> None:
    """A finer curve, monotone between the samples, is integrated exactly: the difference is within the bound."""
    random = np.random.default_rng(11)
    samples = random.uniform(100, 600, 40)
    fine_at, fine = [0.0], [float(samples[0])]
    for second, (here, there) in enumerate(itertools.pairwise(samples)):
        parts = np.sort(random.uniform(0, 1, 8))
        fine_at += [*(second + np.sort(random.uniform(0, 1, 8))).tolist(), float(second + 1)]
        fine += [*(here + (there - here) * parts).tolist(), float(there)]
    store.given("device_telemetry", *power({second: float(one) for second, one in enumerate(samples)}))
    (row,) = store.rows("device_use", "energy_joules", "energy_error_joules")
    assert abs(row["energy_joules"] - np.trapezoid(fine, fine_at)) <= row["energy_error_joules"]


def test_energy_scales_a_gap_of_power_and_adds_it_to_the_error(store: Store) -> None:
    """A gap of 12 s in 300 s, at a power that falls: NumPy integrates the rest, per second of it."""
    at_s = np.array([second for second in range(301) if second not in range(100, 111)], float)
    watts = 500 - at_s / 2
    samples = power(dict(zip(at_s.tolist(), watts.tolist(), strict=True)))
    store.given_case(RUN, {**work(("w", 0.0, 300.0)), "device_telemetry": samples})
    steps, pairs = np.diff(at_s), (watts[1:] + watts[:-1]) / 2
    known = steps <= 10
    joules = float((steps * pairs)[known].sum() / (steps[known].sum() / 300))
    store.expect_values({"working_joules": joules, "energy_joules": joules})
    assert abs(joules - np.trapezoid(500 - np.arange(301) / 2)) < store.value("energy_error_joules")


def test_activity_has_means_of_telemetry_by_slice(store: Store) -> None:
    samples = [*power({10.21: 100.0, 10.3: 300.0, 11.5: 400.0}), *power({10.25: 50.0}, device="cuda-1")]
    cache = {"at_s": 10.25, "in_flight_requests": 1, "kv_cache_usage_share": 0.5}
    store.given_case(RUN, {**work(("w", 10.0, 20.0)), "device_telemetry": samples, "telemetry": cache})
    slices = store.rows("activity", "begins_at_s", "power_watts", "kv_cache_usage_share")
    found = {round(row["begins_at_s"], 6): (row["power_watts"], row["kv_cache_usage_share"]) for row in slices}
    assert found.pop(10.2) == (250.0, 0.5), "the mean of one GPU, and the only sample of the other"
    assert found.pop(11.4) == (400.0, None)
    assert set(found.values()) == {(None, None)}


def given_priced_run(store: Store, tokens: Array, values: Array, repeats: int = 1, **prompts: Any) -> None:
    """Insert a run by output tokens and scores of all samples, those of a prompt together; 100 s of work, 1 EUR."""
    spec = {"price": {"currency": "EUR", "per_machine_hour": 36.0}, "prompts": prompts}
    store.given("runs", {"spec_json": json.dumps(spec)})
    store.given("scorers", {})
    keys = [{"prompt_id": str(i // repeats), "repeat_index": i % repeats} for i in range(len(tokens))]
    store.given("requests", *({**key, "request_id": str(i)} for i, key in enumerate(keys)))
    stamps = [{"request_id": str(i), "output_tokens": int(n)} for i, n in enumerate(tokens)]
    store.given("completions", *({**one, "arrived_at_s": 0.0, "finished_at_s": 100.0} for one in stamps))
    scored = zip(keys, values.tolist(), strict=True)
    store.given("scores", *({**key, "value": float(value)} for key, value in scored if value >= 0))


def draw_samples(random: np.random.Generator, prompts: int, repeats: int) -> tuple[Array, Array]:
    """Tokens and scores where hard prompts are e^0.7 times as long, and lengths spread by 0.6 in their logarithm."""
    is_hard = np.repeat(random.random(prompts) < 0.5, repeats)
    tokens = np.ceil(200 * np.exp(0.7 * is_hard + random.normal(0, 0.6, prompts * repeats)))
    return tokens, (random.random(prompts * repeats) < np.where(is_hard, 0.3, 0.9)).astype(float)


def expect_ends(store: Store, value: float, factor: float, rel: float) -> None:
    row = store.values()["cost_per_right_answer"]
    assert row["value"] == pytest.approx(value)
    assert (row["low"], row["high"]) == pytest.approx((value / factor, value * factor), rel=rel)


@pytest.mark.parametrize("repeats", [1, 4])
def test_cost_per_right_answer_has_the_interval_of_a_ratio_estimator(store: Store, repeats: int) -> None:
    """The residuals of C − R × A, summed by prompt: the form in which textbooks have the same variance."""
    tokens, values = draw_samples(np.random.default_rng(repeats), 50, repeats)
    given_priced_run(store, tokens, values, repeats)
    residuals = (tokens / tokens.sum() - values / values.sum()).reshape(50, repeats).sum(axis=1)
    factor = np.exp(scipy.stats.t.ppf(0.975, 49) * np.sqrt(50 * residuals.var(ddof=1)))
    assert store.value("working_cost") == pytest.approx(1.0)
    expect_ends(store, 1 / values.sum(), factor, 1e-5)


@pytest.mark.parametrize(("sizes", "freedom"), [([5] * 8, 7.0), ([12, 10, 6, 4, 4, 4], 328**2 / 32_800)])
def test_cost_per_right_answer_interval_counts_passages_as_clusters(
    store: Store, sizes: list[int], freedom: float
) -> None:
    """Forty prompts over some passages: residuals are summed by passage, and large passages leave less freedom."""
    tokens, values = draw_samples(np.random.default_rng(3), 40, 1)
    given_priced_run(store, tokens, values, columns={"cluster": "passage"})
    place = np.repeat(np.arange(len(sizes)), sizes)
    named = [json.dumps({"passage": f"text {one}"}) for one in place]
    store.given("prompts", *({"prompt_id": str(i), "metadata_json": one} for i, one in enumerate(named)))
    residuals = np.bincount(place, tokens / tokens.sum() - values / values.sum()) / (1 - np.array(sizes) / 40)
    spread = (len(sizes) - 1) / len(sizes) * (residuals**2).sum()
    expect_ends(store, 1 / values.sum(), np.exp(scipy.stats.t.ppf(0.975, freedom) * np.sqrt(spread)), 2e-3)


def test_cost_per_right_answer_leaves_out_the_cost_of_unscored_samples(store: Store) -> None:
    """Ten answers of 0.1 EUR, five of them with a target and all right."""
    given_priced_run(store, np.full(10, 100), np.array([1.0] * 5 + [-1.0] * 5))
    store.expect_values({"working_cost": 1.0, "cost_per_right_answer": 0.1, "cost_per_right_answer low": None})


def test_costs_are_metrics_that_are_compared_in_one_currency_alone(store: Store) -> None:
    store.given_case("a", priced({"per_gpu_hour": 3.6}))
    store.given_case("b", priced({"per_gpu_hour": 1.8}, right=9))
    store.given_case("c", priced({"per_gpu_hour": 1.8, "currency": "USD"}))
    store.given_case("free", priced(None))
    assert [row for row in store.rows("run_metric", run_id="free") if "cost" in row["metric"]] == []
    rows = compare_speed(store.connection, ["b"], ["a"], {})
    assert rows["cost_per_right_answer"].unit == "EUR/correct answer"
    assert rows["cost_per_million_output_tokens"].difference == pytest.approx(-0.5)
    for candidate, found in (("b", pytest.approx(0.5 * 6 / 9 - 1)), ("c", None)):
        row = compare_speed(store.connection, [candidate], ["a"], {}).get("cost_per_right_answer")
        assert (row and row.difference) == found
