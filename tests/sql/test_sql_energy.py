"""Energy: counted or integrated, cut at the window of throughput, unknown where a part would look like the whole."""

import itertools

import numpy as np
import pytest
from row_kit import Store


def given_work(store: Store, *engines: tuple[str, float, float], answers: int = 2, tokens: int = 50) -> None:
    """One engine per worker, loaded in 10 s before its first answer; each gives `answers` answers in its time."""
    store.given("runs", {"expected_requests": answers * len(engines)})
    for worker, began, ended in engines:
        ids = [f"{worker}-{i}" for i in range(answers)]
        store.given("requests", *({"request_id": id_, "prompt_id": id_} for id_ in ids))
        store.given(
            "completions",
            *(
                {
                    "request_id": id_,
                    "worker": worker,
                    "arrived_at_s": began,
                    "finished_at_s": ended,
                    "output_tokens": tokens,
                    "prompt_tokens": 10,
                }
                for id_ in ids
            ),
        )
        store.given(
            "engine_events",
            {"worker": worker, "event": "opened", "at_s": began - 1, "duration_s": 9.0},
            {"worker": worker, "event": "closed", "at_s": ended + 2, "duration_s": 1.0},
        )


def given_power(store: Store, watts: dict[float, float | None], worker: str = "w", device: str = "cuda-0") -> None:
    rows = [{"worker": worker, "device": device, "at_s": at_s, "power_watts": power} for at_s, power in watts.items()]
    store.given("device_telemetry", *rows)


def given_counter(store: Store, joules: dict[float, float], worker: str = "w", device: str = "cuda-0") -> None:
    rows = [
        {"worker": worker, "device": device, "at_s": at_s, "energy_joules": total, "power_watts": 1.0}
        for at_s, total in joules.items()
    ]
    store.given("device_telemetry", *rows)


def test_the_counter_counts_and_power_does_not_matter(store: Store) -> None:
    given_work(store, ("w", 10.0, 20.0))
    given_counter(store, {float(second): 1000 + 50.0 * second for second in range(23)})
    store.expect(
        "run_energy",
        {
            "gpus": 1,
            "energy_joules": 22 * 50.0,
            "energy_error_joules": None,
            "working_joules": 500.0,
            "idle_joules": 600.0,
        },
    )
    store.expect(
        "run_cost",
        {
            "currency": None,
            "mean_power_watts": 50.0,
            "energy_per_output_token_joules": 5.0,
            "energy_per_request_joules": 250.0,
            "output_tokens_per_joule": 0.2,
        },
    )


def test_energy_counter_reset_is_bridged_by_power(store: Store) -> None:
    given_counter(store, {0.0: 100.0, 1.0: 150.0, 2.0: 3.0, 3.0: 53.0})
    store.expect(
        "energy_stretch",
        {"begins_at_s": 0.0, "source": "counter", "stretch_joules": 50.0, "error_joules": None},
        {"begins_at_s": 1.0, "source": "power", "stretch_joules": 1.0, "error_joules": 0.05},
        {"begins_at_s": 2.0, "source": "counter", "stretch_joules": 50.0, "error_joules": None},
    )


def test_power_is_integrated_by_trapezoids_as_numpy_does(store: Store) -> None:
    random = np.random.default_rng(7)
    at_s = np.cumsum(random.uniform(0.6, 1.4, 60))
    watts = random.uniform(80, 700, 60)
    given_work(store, ("w", float(at_s[12]), float(at_s[50])))
    given_power(store, dict(zip(at_s.tolist(), watts.tolist(), strict=True)))
    row = store.row("run_energy")
    steps, rises = np.diff(at_s), np.abs(np.diff(watts))
    errors = steps * (rises / 2 + 0.05 * (watts[1:] + watts[:-1]) / 2)
    work = slice(12, 51)
    assert row["energy_joules"] == pytest.approx(np.trapezoid(watts, at_s))
    assert row["energy_error_joules"] == pytest.approx(errors.sum())
    assert row["working_joules"] == pytest.approx(np.trapezoid(watts[work], at_s[work]))


def test_the_bound_holds_for_power_that_stays_between_its_samples(store: Store) -> None:
    """A finer curve, monotone between the samples, is integrated exactly: the difference is within the bound."""
    random = np.random.default_rng(11)
    samples = random.uniform(100, 600, 40)
    fine_at, fine = [0.0], [float(samples[0])]
    for second, (here, there) in enumerate(itertools.pairwise(samples)):
        parts = np.sort(random.uniform(0, 1, 8))
        fine_at += [*(second + np.sort(random.uniform(0, 1, 8))).tolist(), float(second + 1)]
        fine += [*(here + (there - here) * parts).tolist(), float(there)]
    given_power(store, {float(second): float(power) for second, power in enumerate(samples)})
    (row,) = store.rows("device_use", "energy_joules", "energy_error_joules")
    assert abs(row["energy_joules"] - np.trapezoid(fine, fine_at)) <= row["energy_error_joules"]


def test_the_window_cuts_a_stretch_in_proportion(store: Store) -> None:
    given_work(store, ("w", 10.25, 19.5))
    given_counter(store, {float(second): 100.0 * second for second in range(25)})
    store.expect("run_energy", {"working_joules": 925.0, "idle_joules": 1475.0})


def test_two_engines_count_over_the_union_of_their_work_and_each_gpu_while_it_is_held(store: Store) -> None:
    given_work(store, ("w", 10.0, 20.0), ("v", 12.0, 30.0))
    given_counter(store, {float(second): 100.0 * second for second in range(23)})
    given_counter(store, {float(second): 200.0 * second for second in range(33)}, worker="v", device="cuda-1")
    store.expect(
        "run_energy",
        {
            "gpus": 2,
            "working_joules": 10 * 100.0 + 18 * 200.0,  # each while its own worker had work
            "energy_joules": 22 * 100.0 + 32 * 200.0,
        },
    )


@pytest.mark.parametrize(
    ("span_s", "missing", "joules", "error"),
    [
        (200, range(0), 80_000.0, None),
        (300, range(100, 111), 120_000.0, None),
        (200, range(8), 80_000.0, 3_200.0),
        (200, range(100, 111), 80_000.0, None),
        (200, range(60, 160), 80_000.0, None),
    ],
    ids=["no gap", "12 s of 300 s", "first sample 8 s late", "12 s of 200 s", "101 s of 200 s"],
)
def test_run_energy_bridges_gaps_by_the_counter_and_scales_when_the_first_sample_is_late(
    store: Store, span_s: int, missing: range, joules: float, error: float | None
) -> None:
    """400 W from the first to the last second at work."""
    given_work(store, ("w", 0.0, float(span_s)))
    given_counter(store, {float(second): 400.0 * second for second in range(span_s + 1) if second not in missing})
    store.expect(
        "run_energy",
        {
            "energy_joules": joules,
            "energy_error_joules": error,
            "working_joules": joules,
            "idle_joules": 0.0,
        },
    )


def test_run_energy_scales_a_gap_of_power_and_adds_it_to_the_error(store: Store) -> None:
    """A gap of 12 s in 300 s, at a power that falls: NumPy integrates the rest, per second of it."""
    given_work(store, ("w", 0.0, 300.0))
    at_s = np.array([second for second in range(301) if second not in range(100, 111)], float)
    watts = 500 - at_s / 2
    given_power(store, dict(zip(at_s.tolist(), watts.tolist(), strict=True)))
    steps, pairs = np.diff(at_s), (watts[1:] + watts[:-1]) / 2
    known = steps <= 10
    joules, share = (steps * pairs)[known].sum(), steps[known].sum() / 300
    row = store.row("run_energy")
    assert row["working_joules"] == row["energy_joules"] == pytest.approx(joules / share)
    assert abs(row["working_joules"] - np.trapezoid(500 - np.arange(301) / 2)) < row["energy_error_joules"]


def test_energy_stretch_does_not_bridge_the_pause_between_two_attempts(store: Store) -> None:
    """The first attempt is killed: its last sign is a sample of its engine, and a device's sample comes after it."""
    store.given("engine_events", {"event": "opened", "at_s": 5.0, "duration_s": 4.0})
    store.given("telemetry", {"at_s": 30.0})
    events = {"opened": (1009.0, 8.0), "closed": (1030.0, 1.0)}
    store.given(
        "engine_events",
        *(
            {"event": event, "attempt": 2, "engine_generation": 1, "at_s": at_s, "duration_s": duration_s}
            for event, (at_s, duration_s) in events.items()
        ),
    )
    sampled = (0, 5, 17, 30, 30.5, 1000, 1001, 1015, 1031)
    given_counter(store, {float(at_s): 100.0 * at_s for at_s in sampled})
    begins = [row["begins_at_s"] for row in store.rows("energy_stretch", "begins_at_s")]
    assert sorted(begins) == [0.0, 5.0, 17.0, 30.0, 1000.0, 1001.0, 1015.0]


@pytest.mark.parametrize("gap", [range(13, 13), range(13, 23), range(16, 35)], ids=["none", "ten", "more"])
def test_a_gap_of_more_than_ten_seconds_in_power_is_not_known(store: Store, gap: range) -> None:
    given_work(store, ("w", 10.0, 40.0))
    given_power(store, {float(second): 100.0 for second in range(43) if second not in gap})
    row = store.row("run_energy")
    if len(gap) < 10:
        assert row["working_joules"] == pytest.approx(3000.0)
    else:
        assert row["energy_joules"] is None and row["mean_power_watts"] is None


def test_one_gpu_without_a_sensor_makes_the_run_unknown(store: Store) -> None:
    given_work(store, ("w", 10.0, 20.0))
    given_counter(store, {float(second): 100.0 * second for second in range(23)})
    given_power(store, {float(second): None for second in range(23)}, device="cuda-1")
    store.expect(
        "run_energy",
        {"gpus": 2, "energy_joules": None, "working_joules": None, "idle_joules": None},
    )


def test_the_machine_alone_has_no_energy_and_a_run_without_samples_no_row(store: Store) -> None:
    given_work(store, ("w", 10.0, 20.0))
    store.expect("run_energy")
    store.given("device_telemetry", {"device": "host", "at_s": 1.0, "utilization_share": 0.5})
    store.expect("run_energy")
    store.expect("device_use", {"device": "host", "mean_utilization_share": 0.5, "energy_joules": None})


def test_between_a_loads_windows_energy_is_of_what_throughput_is_of(store: Store) -> None:
    store.given("runs", {"expected_requests": 3})
    store.given("loads", {"warmup_s": 4.0, "cooldown_s": 2.0})
    store.given("requests", *({"request_id": str(i), "prompt_id": str(i)} for i in range(3)))
    store.given(
        "completions",
        *(
            {"request_id": str(i), "sent_at_s": at, "arrived_at_s": at, "finished_at_s": at + 1, "output_tokens": 10}
            for i, at in enumerate((10.0, 15.0, 20.0))
        ),
    )
    given_counter(store, {float(second): float(second) ** 2 for second in range(25)})
    summary = store.row("run_summary", "measured_s", "output_tokens_per_s")
    assert summary == {"measured_s": 4.0, "output_tokens_per_s": 2.5}
    store.expect("run_energy", {"working_joules": 21.0**2 - 10.0**2})
    store.expect("run_cost", {"energy_per_output_token_joules": 12.8, "mean_power_watts": 32.0})


def test_devices_are_described_over_all_of_their_samples(store: Store) -> None:
    reasons = ["", "gpu_idle", "sw_power_cap", "sw_power_cap,hw_thermal_slowdown"]
    store.given(
        "device_telemetry",
        *(
            {
                "at_s": float(second),
                "utilization_share": second / 4,
                "memory_used_bytes": 10 * second,
                "memory_total_bytes": 80,
                "power_watts": 100.0 * second,
                "temperature_c": 50 + second,
                "sm_clock_mhz": 1900 - second,
                "throttle_reasons": reason,
            }
            for second, reason in enumerate(reasons)
        ),
    )
    store.expect(
        "device_use",
        {
            "samples": 4,
            "mean_utilization_share": 0.375,
            "max_memory_used_bytes": 30,
            "memory_total_bytes": 80,
            "mean_power_watts": 150.0,
            "max_power_watts": 300.0,
            "max_temperature_c": 53,
            "throttled_share": 0.5,
            "throttle_reasons": "hw_thermal_slowdown, sw_power_cap",
            "energy_known_s": 3.0,
        },
    )


def test_the_scheduler_is_described_while_it_has_requests(store: Store) -> None:
    shares = [(0, 0.0), (4, 0.25), (4, 0.75)]
    store.given(
        "telemetry",
        *(
            {
                "at_s": float(second),
                "in_flight_requests": in_flight,
                "kv_cache_usage_share": share,
                "running_requests": in_flight // 2,
                "waiting_requests": in_flight // 2,
                "preemptions": second,
            }
            for second, (in_flight, share) in enumerate(shares)
        ),
    )
    store.expect(
        "engine",
        {
            "busy_samples": 2,
            "mean_kv_cache_usage_share": 0.5,
            "max_kv_cache_usage_share": 0.75,
            "mean_running_requests": 2.0,
            "max_waiting_requests": 2,
            "preemptions": 2,
        },
    )


def test_telemetry_lies_on_the_slices_of_activity(store: Store) -> None:
    given_work(store, ("w", 10.0, 20.0))
    given_power(store, {10.21: 100.0, 10.3: 300.0, 11.5: 400.0})
    given_power(store, {10.25: 50.0}, device="cuda-1")
    store.given("telemetry", {"at_s": 10.25, "in_flight_requests": 1, "kv_cache_usage_share": 0.5})
    slices = store.rows("telemetry_activity", "begins_at_s", "power_watts", "kv_cache_usage_share")
    assert {row["begins_at_s"] for row in slices} == {row["begins_at_s"] for row in store.rows("activity")}
    found = {round(row["begins_at_s"], 6): (row["power_watts"], row["kv_cache_usage_share"]) for row in slices}
    assert found.pop(10.2) == (250.0, 0.5), "the mean of one GPU, and the only sample of the other"
    assert found.pop(11.4) == (400.0, None)
    assert set(found.values()) == {(None, None)}
