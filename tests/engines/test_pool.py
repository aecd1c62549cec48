"""Engines that wait between runs: who takes them over, who does not, and that none is left."""

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from engine_kit import Control, open_engine, parts_of, wait_until_gone
from run_kit import PATIENCE_S, plain_request

from assayline.clock import RunClock
from assayline.engines import client
from assayline.engines.client import HostedEngine
from assayline.engines.devices import watch
from assayline.engines.devices.claims import Device, claim_device
from assayline.engines.messages import Open
from assayline.engines.pool import EnginePool, IdleEngine, own_variables
from assayline.engines.process import HostProcess, engine_environment
from assayline.errors import DeviceError
from assayline.settings import Settings
from assayline.spec.engine import ServerSpec

ASKED = plain_request("r", prompt_token_ids=[5] * 8, sampling={"max_tokens": 4})
DEVICE = Device("cpu-0-1", {}, ("cpu-0", "cpu-1"))


def open_served(url: str | None, run_dir: Path, control: Control | None = None, **changes: Any) -> HostedEngine:
    """As the worker of a run does whose folder this is."""
    values = {"args": {}, "run_id": run_dir.name, "server": ServerSpec(url=url), "window": 2, **changes}
    return open_engine("fake-model", run_dir / "logs" / "engine.log", control, backend="server", **values)


def test_the_next_run_takes_the_engine_over_with_a_clock_and_names_of_its_own(server, tmp_path):
    with EnginePool() as pool:
        with closing(open_served(server.url, tmp_path / "first", pool=pool)) as first:
            list(first.generate([ASKED]))
        assert psutil.pid_exists(first.host_pid)
        clock = RunClock.start()
        with closing(
            open_served(server.url, tmp_path / "second", pool=pool, clock=clock, engine_generation=3)
        ) as second:
            assert second.host_pid == first.host_pid
            assert second.facts.details["kept_from"] == "first" and "kept_from" not in first.facts.details
            [answer] = second.generate([ASKED])
            assert answer.engine_generation == 3 and answer.error_kind is None
            assert answer.sent_at_s is not None and answer.finished_at_s is not None
            assert 0 <= answer.sent_at_s <= answer.finished_at_s <= clock.now_s(), (
                "seconds of this run, not of the first"
            )
        with closing(open_served(server.url, tmp_path / "third", pool=pool)) as third:
            assert third.facts.details["kept_from"] == "first", "whose folder has the log"
    wait_until_gone(first.host_pid)
    told = (tmp_path / "third" / "logs" / "engine.log").read_text()
    assert str(tmp_path / "first" / "logs" / "engine.log") in told


class Waiting:
    """An idle host that counts how often it is ended."""

    exit_code = None

    def __init__(self) -> None:
        self.ends = 0

    def listen(self, on_log: Any) -> None: ...

    def end(self, timeout_s: float) -> None:
        self.ends += 1


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"run_id": "second", "engine_generation": 3}, True),
        ({"args": {"max_num_seqs": 3}}, False),
        ({"env": {"VLLM_LOGGING_LEVEL": "ERROR"}}, False),
        ({"server": ServerSpec(url="http://127.0.0.1:9/v1", timeout_s=7)}, False),
        ({"sampling": {"temperature": 0.5}}, True),
        ({"max_concurrency": 3, "warmup": False, "min_concurrency": 2}, True),
        ({"record_token_times": True}, False),
    ],
    ids=str,
)
def test_only_who_orders_the_same_engine_takes_it_over(tmp_path, change, is_taken):
    def ordered(env: Any = None, **changes: Any) -> tuple[Open, dict[str, str]]:
        served = {"args": {}, "server": ServerSpec(url="http://127.0.0.1:9/v1"), **changes}
        parts = parts_of("server", "fake-model", tmp_path / "log", **served)
        return parts["order"], own_variables(engine_environment(Settings(), {}, env or {}))

    pool, host = EnginePool(), Waiting()
    idle = IdleEngine(cast(HostProcess, host), *ordered(), "first", 1.0)
    pool.keep(idle)
    assert pool.take(*ordered(**change)) is (idle if is_taken else None)
    assert host.ends == (0 if is_taken else 1)


def test_memory_is_back_when_no_engine_holds_it_any_more(tmp_path, monkeypatch):
    """A run that takes an engine over, or makes room for its own, compares with the device as it was before both."""
    free = {"0": 80}
    monkeypatch.setattr(watch, "read_free_bytes", lambda gpu: free[gpu] << 30)
    device = Device("cuda-0", {"CUDA_VISIBLE_DEVICES": "0"}, ("0",))
    with EnginePool() as pool:
        pool.claim([device], tmp_path, 0)
        free["0"] = 8
        pool.keep(
            IdleEngine(cast(HostProcess, Waiting()), parts_of("offline", "m", tmp_path)["order"], {}, "first", 1.0)
        )
        pool.claim([device], tmp_path, 0)
        for gib, is_back in ((8, False), (60, False), (80, True)):
            free["0"] = gib
            assert pool.memory.wait_until_back(0, lambda: False) is is_back


def test_variables_that_a_library_sets_here_make_no_other_engine(server, tmp_path, monkeypatch):
    with EnginePool() as pool:
        open_served(server.url, tmp_path / "first", pool=pool).close()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        with closing(open_served(server.url, tmp_path / "second", pool=pool)) as second:
            assert second.facts.details["kept_from"] == "first"


@pytest.mark.parametrize("at_work", [False, True], ids=["while it waited", "at work"])
def test_one_that_died_is_replaced(server, tmp_path, at_work):
    with EnginePool() as pool:
        first = open_served(server.url, tmp_path / "first", pool=pool)
        process = psutil.Process(first.host_pid)
        if not at_work:
            first.close()
        process.kill()
        psutil.wait_procs([process], timeout=PATIENCE_S)
        first.close()
        with closing(open_served(server.url, tmp_path / "second", pool=pool)) as second:
            assert second.host_pid != first.host_pid and "kept_from" not in second.facts.details
            assert [row.error_kind for row in second.generate([ASKED])] == [None]


def test_idle_engine_makes_room_for_another_kind(server, tmp_path, monkeypatch):
    def start(*_: Any) -> None:
        raise ChildProcessError

    with EnginePool() as pool:
        with closing(open_served(server.url, tmp_path / "first", pool=pool)) as first:
            pass
        assert psutil.pid_exists(first.host_pid)
        monkeypatch.setattr(client, "HostProcess", start)
        with pytest.raises(ChildProcessError):
            open_engine("model", tmp_path / "log", pool=pool)
        wait_until_gone(first.host_pid)


def test_is_reusable_is_false_for_own_servers_with_a_cache(tmp_path):
    def is_reusable(backend: str = "server", **changes: Any) -> bool:
        engine = object.__new__(HostedEngine)
        engine._order = parts_of(backend, "model", tmp_path / "log", **changes)["order"]
        return engine.is_reusable

    assert is_reusable(server=ServerSpec(url="http://127.0.0.1:9/v1"))
    assert is_reusable("async")
    assert not is_reusable()
    assert is_reusable(args={"enable_prefix_caching": False})


def test_none_is_left_however_the_block_ends(server, tmp_path):
    with pytest.raises(KeyboardInterrupt), EnginePool() as pool:
        engine = open_served(server.url, tmp_path / "first", pool=pool)
        engine.close()
        raise KeyboardInterrupt
    wait_until_gone(engine.host_pid)
    with closing(open_served(server.url, tmp_path / "second")) as alone:
        pass
    wait_until_gone(alone.host_pid)


def test_the_device_of_an_idle_engine_is_taken_until_the_end(tmp_path):
    with EnginePool() as pool:
        held = pool.claim([DEVICE], tmp_path, 0)
        with pytest.raises(DeviceError, match="Every device is taken"):
            claim_device([DEVICE], tmp_path, 0).__enter__()
        again = pool.claim([DEVICE], tmp_path, 0)
        assert (again.name, again.env) == (held.name, held.env)
        other = Device("cpu-0-0", {}, ("cpu-0",))
        small = pool.claim([other], tmp_path, 0)
        assert small.name == "cpu-0-0", "another cut of the machine: what was held is given back first"
    with claim_device([DEVICE], tmp_path, 0):
        pass
