"""Readings of a device's sensors; a failing sensor ends nothing."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from run_kit import PATIENCE_S, wait_for

from assayline.clock import RunClock
from assayline.engines.devices import watch
from assayline.engines.devices.nvidia import hold_driver, name_reasons, read_sensors
from assayline.engines.devices.watch import DeviceSampler
from assayline.records import DeviceSample

GIB = 2**30
WHOLE: dict[str, Any] = {
    "uuid": "GPU-3f5a", "free": 20 * GIB, "total": 80 * GIB, "busy_percent": 97, "milliwatts": 612_345,
    "millijoules": 7_000_000_123, "temperature": 71, "clocks": [1800, 1755, 2619, 1500], "reasons": 0x4,
    "slices": [{"uuid": "MIG-77", "free": 4 * GIB, "total": 10 * GIB}],
}  # fmt: skip
BEFORE_VOLTA: dict[str, Any] = {**WHOLE, "uuid": "GPU-old", "driver_before_535": True, "slices": []}
del BEFORE_VOLTA["millijoules"]
FULL_READING = {
    "utilization_share": 0.97, "memory_used_bytes": 60 * GIB, "memory_total_bytes": 80 * GIB, "power_watts": 612.345,
    "energy_joules": 7_000_000.123, "temperature_c": 71, "sm_clock_mhz": 1755, "memory_clock_mhz": 2619,
    "throttle_reasons": "sw_power_cap",
}  # fmt: skip
NOTHING = dict.fromkeys(FULL_READING)


def read(gpu: str) -> dict[str, Any]:
    with hold_driver() as driver:
        return read_sensors(driver, gpu)


def test_a_missing_counter_is_none_and_takes_no_other_along(show_gpus):
    show_gpus(BEFORE_VOLTA)
    assert read("0") == {**FULL_READING, "energy_joules": None}
    show_gpus({"uuid": "GPU-dumb"})
    assert read("0") == NOTHING


def test_a_gpu_that_is_lost_or_not_there_says_nothing_until_it_is_back(show_gpus):
    show_gpus({**WHOLE, "is_lost": True})
    with hold_driver() as driver:
        assert (read_sensors(driver, "0"), read_sensors(driver, "7")) == (NOTHING, NOTHING)
        show_gpus(WHOLE)
        assert (read_sensors(driver, "0"), read_sensors(driver, "7")) == (FULL_READING, NOTHING)


def test_missing_sensor_in_the_module_does_not_raise(show_gpus, monkeypatch):
    show_gpus(WHOLE)
    import pynvml

    monkeypatch.delattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption")
    assert read("0") == {**FULL_READING, "energy_joules": None}


def test_without_a_driver_nothing_is_known_and_nothing_is_left_open(no_driver, show_gpus):
    assert read("0") == NOTHING
    show_gpus(WHOLE)
    read("0")
    assert sys.modules["pynvml"].opened == 0


def test_reasons_are_named_one_by_one():
    assert name_reasons(0) == ""
    assert name_reasons(0x1 | 0x40) == "gpu_idle,hw_thermal_slowdown"
    assert name_reasons(0x4 | 0x800) == "sw_power_cap,0x800"


def sample_for(gpus: tuple[str, ...], until: Callable[[list[DeviceSample]], bool]) -> list[DeviceSample]:
    taken: list[DeviceSample] = []
    with DeviceSampler(gpus, "worker-0", RunClock.start(), interval_s=0.02) as sampler:

        def has_enough() -> bool:
            sampler.hand_over(taken.append, pytest.fail)
            return until(taken)

        wait_for(has_enough)
    sampler.hand_over(taken.append, pytest.fail)
    return taken


def test_each_device_and_the_machine_are_sampled_in_turn(show_gpus):
    show_gpus(WHOLE, BEFORE_VOLTA)
    taken = sample_for(("0", "1"), lambda found: len(found) >= 9)
    assert [sample.device for sample in taken[:6]] == ["cuda-0", "cuda-1", "host"] * 2
    assert len(taken) % 3 == 0, "the last round is a whole one"
    assert {sample.energy_joules for sample in taken if sample.device == "cuda-0"} == {7_000_000.123}
    for device in ("cuda-0", "host"):
        stamps = [sample.at_s for sample in taken if sample.device == device]
        assert stamps == sorted(stamps) and stamps[0] >= 0


def test_the_machine_says_how_busy_and_how_full_it_is(no_driver):
    taken = sample_for((), lambda found: len(found) >= 3)
    assert {sample.device for sample in taken} == {"host"}
    assert taken[0].utilization_share is None, "busy since when?"
    assert all(0 <= (sample.utilization_share or 0.0) <= 1 for sample in taken)
    for sample in taken:
        assert sample.memory_used_bytes and sample.memory_total_bytes
        assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
        assert sample.power_watts is None and sample.energy_joules is None


def test_a_thread_that_fails_says_so_once_and_ends_nothing(no_driver, monkeypatch):
    def fail() -> None:
        raise RuntimeError("no such file")

    monkeypatch.setattr(watch.psutil, "virtual_memory", fail)
    said: list[str] = []
    with DeviceSampler((), "worker-0", RunClock.start(), interval_s=0.01) as sampler:
        wait_for(lambda: sampler.hand_over(pytest.fail, said.append) or bool(said))
    assert said == ["Telemetry of the device has ended: RuntimeError: no such file"]
    sampler.hand_over(pytest.fail, pytest.fail)


def test_a_driver_that_hangs_does_not_hold_up_the_end(show_gpus, monkeypatch):
    show_gpus(WHOLE)
    import pynvml

    monkeypatch.setattr(watch, "END_WAIT_S", 0.05)
    hangs, is_over = threading.Event(), threading.Event()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda handle: hangs.set() or is_over.wait())
    with DeviceSampler(("0",), "worker-0", RunClock.start()):
        hangs.wait(PATIENCE_S)
    is_over.set()
