"""One clock per run, in every process and on every machine."""

import pickle
import time

import pytest
from run_kit import read_line, start_python

from assayline import clock
from assayline.clock import RunClock

SHOW = """
import pickle, sys
print(pickle.loads(bytes.fromhex(sys.argv[1])).on_this_machine().now_s())
"""


def test_another_process_of_this_machine_reads_the_same_clock():
    """No mapping between clocks loses time."""
    run_clock = RunClock.start()
    with start_python(SHOW, pickle.dumps(run_clock).hex()) as process:
        theirs = float(read_line(process))
    assert 0 < theirs <= run_clock.now_s()
    assert run_clock.on_this_machine() is run_clock


def test_another_machine_maps_the_start_by_its_wall_clock(monkeypatch):
    elsewhere = RunClock(time.time() - 100, 1e9, "another boot")
    here = elsewhere.on_this_machine()
    assert here.now_s() == pytest.approx(100, abs=0.5)
    assert here.boot_id == clock.boot_id() and here.started_wall_s == elsewhere.started_wall_s
    assert here.on_this_machine() is here
    stamp = time.monotonic()
    assert here.at_s(stamp + 1.25) - here.at_s(stamp) == pytest.approx(1.25, abs=2e-6)


def test_stamps_are_seconds_since_the_start_to_the_microsecond():
    assert RunClock(0.0, 10.0, "boot").at_s(12.3456789) == 2.345679
