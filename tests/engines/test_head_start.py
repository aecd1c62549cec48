"""A head start: who takes the process over, who does not, and that nothing is left of it either way."""

import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_helpers import start_python

from assayline.engines.devices.claims import Device, claim_device, list_devices
from assayline.engines.head_start import HeadStart, find_head_start, head_start
from assayline.engines.parking import hold_device
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.worker import run_worker
from assayline.settings import Settings

COMMAND = """
import sys, time
from pathlib import Path
from assayline.engines.head_start import find_head_start, head_start
from assayline.settings import Settings
from assayline.spec.file import load_spec
folder = Path(sys.argv[1])
with head_start(load_spec(sys.argv[2]), Settings(data_dir=folder, lock_dir=folder)):
    print(find_head_start()._host.pid, flush=True)
    time.sleep(60)
"""


def begun() -> HeadStart:
    found = find_head_start()
    assert found is not None
    return found


def host_of(found: HeadStart) -> psutil.Process:
    assert found._host is not None
    return psutil.Process(found._host.pid)


def logs_in(settings: Settings) -> list[Path]:
    return list((settings.data_dir / "cache").glob("engine-*.log"))


@pytest.mark.vllm
def test_a_runs_engine_takes_the_process_over(settings: Settings, make_spec: Any) -> None:
    spec = make_spec(prompts={"limit": 5})
    lines: list[str] = []
    opened_s: list[float | None] = []
    with head_start(spec, settings):
        host = host_of(begun())
        zero_s = host.create_time()
        evaluation = begin_evaluation(spec, settings)
        preparing = threading.Thread(target=evaluation.prepare)
        preparing.start()
        order = evaluation.order(0)
        report = run_worker(
            order,
            lambda _: None,
            lines.append,
            lambda event: opened_s.append(event.duration_s) if event.event == "opened" else None,
        )
        preparing.join()
        assert begun()._host is None, "it was taken"
        with claim_device(list_devices("cpu", 1), settings.lock_dir, 0):
            pass  # the device is free as soon as the worker is done
    assert report.answered_requests == 5
    assert not host.is_running() and logs_in(settings) == []
    log = evaluation.run_dir / "logs" / "worker-0-generation-0.log"
    assert log.read_text().splitlines()[0].strip() == lines[0], "the log moved, from its first line on"
    wall_zero_s = evaluation.clock.started_wall_s
    assert opened_s[0] is not None and opened_s[0] > wall_zero_s - zero_s, "loading is counted from the process's start"
    evaluation.stop()
    evaluation.lock.release()


def test_a_process_whose_environment_does_not_fit_is_ended(settings: Settings, make_spec: Any, tmp_path: Path) -> None:
    with head_start(make_spec(), settings):
        found = begun()
        host, env = host_of(found), dict(found._env)
        assert found.take_host({**env, "VLLM_CPU_KVCACHE_SPACE": "1"}, tmp_path / "log", lambda _: None) is None
        assert not host.is_running() and logs_in(settings) == []
        assert found.take_host(env, tmp_path / "log", lambda _: None) is None, "there is one process"


def test_variables_that_this_process_got_meanwhile_make_no_difference(
    settings: Settings, make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_start(make_spec(), settings):
        found = begun()
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
        taken = found.take_host({**found._env, **os.environ}, tmp_path / "log", lambda _: None)
        assert taken is not None and taken.log_path == tmp_path / "log"
        taken.kill()


def test_another_device_is_claimed_instead(settings: Settings, make_spec: Any) -> None:
    other = Device("cpu-other", {}, ("cpu-other",))
    with head_start(make_spec(), settings):
        host = host_of(begun())
        with hold_device([other], settings.lock_dir, 0) as device:
            assert device.name == "cpu-other"
            assert not host.is_running()
            with claim_device(list_devices("cpu", 1), settings.lock_dir, 0):
                pass


def test_a_device_that_is_taken_is_left_to_the_worker_to_complain_of(settings: Settings, make_spec: Any) -> None:
    with claim_device(list_devices("cpu", 1), settings.lock_dir, 0), head_start(make_spec(), settings):
        assert find_head_start() is None


@pytest.mark.parametrize("changes", [{"engine": {"backend": "fake"}}, {"workers": 2}, {"runner": "ray"}])
def test_engines_of_other_kinds_have_none(settings: Settings, make_spec: Any, changes: dict[str, Any]) -> None:
    with head_start(make_spec(**changes), settings):
        assert find_head_start() is None
    assert not settings.data_dir.exists()


def test_a_killed_command_takes_it_along(tmp_path: Path, make_spec: Any) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(make_spec().model_dump_json())
    command = start_python(COMMAND, tmp_path / "data", spec)
    assert command.stdout is not None
    host = psutil.Process(int(command.stdout.readline()))
    command.kill()
    command.communicate()
    assert psutil.wait_procs([host], timeout=20)[1] == []
