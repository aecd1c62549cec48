"""benchmarks.gpu without a GPU: limits, what a part leaves when it is stopped, the page, and energy from a counter.

The whole of it is rehearsed by `make gpu-check DEVICE=cpu`, with real vLLM.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_kit import PATIENCE_S, wait_for

from benchmarks.gpu import __main__ as check
from benchmarks.gpu import energy, parts, runs
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part, run_part
from benchmarks.gpu.setup import Setup, SkipPart, make_tiny
from benchmarks.overhead import Measurement

STORED = Path(__file__).resolve().parents[1] / "fixtures" / "gpu_check.json"


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup("cpu", (), (make_tiny(2, 64),), 1, tmp_path)


FAKE = """
import json, subprocess, sys, time
from pathlib import Path
name, _, findings = sys.argv[1:]
if name == "slow":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(findings, "a") as file:
    file.write('{"test": "one"}\\n')
    file.flush()
    if name == "slow":
        time.sleep(600)
    if name == "dying":
        sys.exit("no more")
    state = "skipped: two are needed" if name == "idle" else "done"
    two = '{"test": "two"}\\n' * (name == "quick")
    file.write(two + json.dumps({"state": state}) + "\\n")
"""


@pytest.mark.parametrize(
    ("name", "state", "rows"),
    [
        ("quick", "done", ["one", "two"]),
        ("slow", "stopped after 4 s", ["one"]),
        ("dying", "died: no more", ["one"]),
        ("idle", "skipped: two are needed", ["one"]),
    ],
)
def test_a_part_that_is_stopped_or_dies_leaves_what_it_has(setup, tmp_path, monkeypatch, name, state, rows):
    (tmp_path / "benchmarks" / "gpu").mkdir(parents=True)
    (tmp_path / "benchmarks" / "gpu" / "parts.py").write_text(FAKE)
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    told: list[dict[str, Any]] = []
    found = run_part(Part(name, name, 2, ""), setup, 4 if name == "slow" else PATIENCE_S, told.append)
    assert found["state"].strip() == state
    assert [row["test"] for row in found["rows"]] == [row["test"] for row in told] == rows


def test_time_that_is_over_is_said_and_what_was_found_is_kept(setup, tmp_path, monkeypatch):
    limits: list[float] = []
    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: 0.2 * len(limits)))

    def run(part: Part, setup: Setup, limit_s: float, tell: Any) -> dict[str, Any]:
        limits.append(limit_s)
        return {"state": "done", "seconds": 0.2, "rows": []}

    monkeypatch.setattr(check, "run_part", run)
    report = check.check(setup, list(PARTS[:3]), 0.1 / 60, 3.0, tmp_path / "out")
    assert [part["state"].partition(":")[0] for part in report["parts"].values()] == ["done", "done", "not reached"]
    assert limits[0] > limits[1] > 0
    assert json.loads((tmp_path / "out" / "gpu.json").read_text()) == report
    assert "Not reached" in (tmp_path / "out" / "gpu.md").read_text()


def test_the_commands_for_a_lent_gpu_fit_their_minutes_and_a_quarter_of_an_hour():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "gpu-status.md").read_text()
    limits = {part.name: part.limit_s for part in PARTS}
    commands = re.findall(r"`python3 -m benchmarks\.gpu --parts ([\w,]+) --minutes ([\d.]+)`", page)
    assert all(sum(limits[name] for name in names.split(",")) <= 60 * float(given) for names, given in commands)
    assert sum(float(given) for _, given in commands) <= 15
    planned = {name for names, _ in commands for name in names.split(",")}
    assert planned == limits.keys() - {"sharing", "tensor_parallel"}, "these two can wait"


def test_the_page_of_a_stored_check_has_a_table_for_each_part():
    report = json.loads(STORED.read_text())
    page = write_page(report)
    for part in PARTS:
        assert f"### {part.title}" in page
    for row in report["parts"]["throughput"]["rows"]:
        assert row["shape"] in page
    widths = [line.count(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert widths and "Traceback" not in page
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.page"],
        input=STORED.read_text(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == page


class Nvml(SimpleNamespace):
    """A driver with 100 W idle; `counter` says whether it counts energy."""

    class NVMLError(Exception):
        """As pynvml's."""

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if not self.counter:
            raise self.NVMLError("not supported")
        return int(1000 * 100 * (time.monotonic() - self.zero))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if not self.power:
            raise self.NVMLError("not supported")
        return 100_000


@pytest.mark.parametrize(("counter", "source"), [(True, "energy counter"), (False, "power, integrated")])
def test_energy_is_read_from_the_counter_or_else_from_power(counter, source):
    nvml: Any = Nvml(counter=counter, power=True, zero=time.monotonic())
    meter = energy.EnergyMeter(nvml, "0")
    assert meter.source == source
    begun, before = time.monotonic(), meter.read_joules()
    joules, seconds, _ = energy.spend(meter, lambda: wait_for(lambda: meter.read_joules() > before + 60))
    meter.close()
    assert 60 < joules <= 100 * (time.monotonic() - begun) + 20 and 0 < seconds <= time.monotonic() - begun


def test_a_driver_that_tells_neither_is_a_reason_to_skip():
    with pytest.raises(SkipPart, match="neither energy nor power"):
        energy.EnergyMeter(Nvml(counter=False, power=False), "0")  # type: ignore[arg-type]


def test_energy_above_idle_is_what_work_adds():
    row = energy.describe_energy((500.0, 5.0, None), (3000.0, 10.0, Measurement(8.0, 1000, 50)))
    assert (row["idle_w"], row["working_w"]) == (100.0, 300.0)
    assert (row["joules_per_output_token"], row["joules_per_output_token_above_idle"]) == (3.0, 2.0)


def test_gpu_check_rejects_an_impossible_check(monkeypatch):
    monkeypatch.setattr(check, "list_gpus", list)
    with pytest.raises(SystemExit, match="no GPU found"):
        check.main([])
    with pytest.raises(SystemExit, match=r"unknown part speed\. hint: tests, handover, tight"):
        check.main(["--device", "cpu", "--parts", "speed"])


@pytest.mark.rare
@pytest.mark.slow
def test_runs_side_by_side_begin_when_all_their_engines_are_warm(tiny_model, tmp_path):
    folders, gate = [tmp_path / "first", tmp_path / "second"], tmp_path / "gate"
    source = {"kind": "inline", "rows": [{"prompt": f"{number}"} for number in range(40)]}
    spec = {"model": str(tiny_model), "prompts": {"source": source}, "engine": {"backend": "fake"}}
    started = [runs.start_run(spec, folders[0], gate)]
    wait_for((folders[0] / "warm").exists, f"the first is warm; {folders[0] / 'run.log'}")
    assert not list(folders[0].glob("data/runs/*/parts/completions/*")), "it waits for the other one"
    started.append(runs.start_run(spec, folders[1], gate))
    runs.open_gate(gate, folders, started)
    for run in started:
        told = json.loads(run.communicate(timeout=PATIENCE_S)[0].splitlines()[-1])
        assert told["is_sound"] and (told["requests"], told["answered"]) == (40, 40)
        assert [engine["ending"] for engine in told["engines"]] == ["closed"]
