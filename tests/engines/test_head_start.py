"""A head start: who takes the device and the imports over, who does not, and that nothing is left either way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_helpers import start_python

from assayline.engines import fork_server
from assayline.engines.devices.claims import Device, claim_device, list_devices
from assayline.engines.fork_server import ForkServer
from assayline.engines.head_start import find_head_start, head_start
from assayline.engines.parking import hold_device
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.worker import run_worker
from assayline.settings import Settings

COMMAND = """
import sys, time
from pathlib import Path
from assayline.engines import fork_server
from assayline.engines.head_start import head_start
from assayline.settings import Settings
from assayline.spec.file import load_spec
folder = Path(sys.argv[1])
with head_start(load_spec(sys.argv[2]), Settings(data_dir=folder, lock_dir=folder)):
    print(fork_server._server.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here a head start begins a server of its own, as it does in a command."""
    monkeypatch.setattr(fork_server, "_users", 0)
    monkeypatch.setattr(fork_server, "_server", None)
    yield
    assert fork_server._server is None


def begun() -> ForkServer:
    assert find_head_start() is not None and fork_server._server is not None
    return fork_server._server


def logs_in(settings: Settings) -> list[Path]:
    return list((settings.data_dir / "cache").glob("imports-*.log"))


@pytest.mark.vllm
def test_a_runs_engine_is_forked_from_it(settings: Settings, make_spec: Any) -> None:
    spec = make_spec(prompts={"limit": 5})
    opened_s: list[float | None] = []
    with head_start(spec, settings):
        server = begun()
        zero_s = psutil.Process(server.pid).create_time()
        evaluation = begin_evaluation(spec, settings)
        preparing = threading.Thread(target=evaluation.prepare)
        preparing.start()
        order = evaluation.order(0)
        report = run_worker(
            order,
            lambda _: None,
            lambda _: None,
            lambda event: opened_s.append(event.duration_s) if event.event == "opened" else None,
        )
        preparing.join()
        assert server.has_forked and server.is_alive
        with claim_device(list_devices("cpu", 1), settings.lock_dir, 0):
            pass  # the device is free as soon as the worker is done
    assert report.answered_requests == 5
    assert not server.is_alive and logs_in(settings) == []
    wall_zero_s = evaluation.clock.started_wall_s
    assert opened_s[0] is not None and opened_s[0] > wall_zero_s - zero_s, "loading is counted from the import's start"
    evaluation.stop()
    evaluation.lock.release()


def test_another_device_is_claimed_instead(settings: Settings, make_spec: Any) -> None:
    other = Device("cpu-other", {}, ("cpu-other",))
    with head_start(make_spec(), settings):
        server = begun()
        with hold_device([other], settings.lock_dir, 0) as device:
            assert device.name == "cpu-other"
            assert not server.is_alive and logs_in(settings) == []
            with claim_device(list_devices("cpu", 1), settings.lock_dir, 0):
                pass


def test_a_device_that_is_taken_is_left_to_the_worker_to_complain_of(settings: Settings, make_spec: Any) -> None:
    with claim_device(list_devices("cpu", 1), settings.lock_dir, 0), head_start(make_spec(), settings):
        assert find_head_start() is None


@pytest.mark.parametrize("changes", [{"engine": {"backend": "fake"}}, {"workers": 2}, {"runner": "ray"}])
def test_engines_of_other_kinds_have_none(settings: Settings, make_spec: Any, changes: dict[str, Any]) -> None:
    with head_start(make_spec(**changes), settings):
        assert find_head_start() is None and fork_server._server is None
    assert not settings.data_dir.exists()


def test_a_killed_command_takes_it_along(tmp_path: Path, make_spec: Any) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(make_spec().model_dump_json())
    command = start_python(COMMAND, tmp_path / "data", spec)
    assert command.stdout is not None
    server = psutil.Process(int(command.stdout.readline()))
    command.kill()
    command.communicate()
    assert psutil.wait_procs([server], timeout=20)[1] == []
