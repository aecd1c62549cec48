"""Engines that wait between runs: who takes them over, who does not, and that none is left."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_helpers import ARGS, Asker, Control, by_id, open_async, wait_until_gone
from fake_server import FakeServer

from assayline.clock import RunClock
from assayline.engines import parking
from assayline.engines.devices import Device, claim_device
from assayline.engines.environment import engine_environment
from assayline.engines.parking import hold_device, park_engines
from assayline.engines.streaming import ServerEngine, StreamingConfig
from assayline.errors import DeviceError
from assayline.records import Request
from assayline.server_spec import ServerSpec
from assayline.settings import Settings

ASKED = Request("r", "p", 0, 0, [5] * 8, {"max_tokens": 4})
DEVICE = Device("cpu-0-1", {}, ("cpu-0", "cpu-1"))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer().running() as running:
        yield running


def open_served(url: str | None, run_dir: Path, control: Control | None = None, **changes: Any) -> ServerEngine:
    """As the worker of a run does whose folder this is."""
    values = {
        "model_id": "none",
        "clock": RunClock.start(),
        "log_path": run_dir / "logs" / "engine.log",
        "run_id": run_dir.name,
        "env": engine_environment(Settings(), {}, {}),
        "server": ServerSpec(url=url),
        "window": 2,
        **changes,
    }
    return ServerEngine(StreamingConfig("fake-model", **values), (control or Control()).hooks)


def test_the_next_run_takes_the_engine_over_with_a_clock_and_names_of_its_own(
    server: FakeServer, tmp_path: Path
) -> None:
    with park_engines():
        with closing(open_served(server.url, tmp_path / "first")) as first:
            list(first.generate([ASKED]))
        assert psutil.pid_exists(first.host_pid)
        clock = RunClock.start()
        with closing(open_served(server.url, tmp_path / "second", clock=clock, engine_generation=3)) as second:
            assert second.host_pid == first.host_pid
            assert second.facts.details["kept_from"] == "first" and "kept_from" not in first.facts.details
            [answer] = second.generate([ASKED])
            assert answer.engine_generation == 3 and answer.error_kind is None
            assert answer.sent_at_s is not None and answer.finished_at_s is not None
            assert 0 <= answer.sent_at_s <= answer.finished_at_s <= clock.now_s(), (
                "seconds of this run, not of the first"
            )
        with closing(open_served(server.url, tmp_path / "third")) as third:
            assert third.facts.details["kept_from"] == "first", "whose folder has the log"
    assert wait_until_gone(first.host_pid, 10)
    told = (tmp_path / "third" / "logs" / "engine.log").read_text()
    assert str(tmp_path / "first" / "logs" / "engine.log") in told


def test_an_engine_that_is_ordered_otherwise_is_a_new_one(server: FakeServer, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"args": {"max_num_seqs": 3}},
        {"env": engine_environment(Settings(), {}, {"VLLM_LOGGING_LEVEL": "ERROR"})},
        {"server": ServerSpec(url=server.url, timeout_s=7)},
        {"sampling": {"temperature": 0.5}},
    ]
    with park_engines():
        open_served(server.url, tmp_path / "first").close()
        before = open_served(server.url, tmp_path / "again")
        for number, change in enumerate(changes):
            before.close()
            other = open_served(server.url, tmp_path / str(number), **change)
            assert other.host_pid != before.host_pid and "kept_from" not in other.facts.details
            assert wait_until_gone(before.host_pid, 10)
            before = other
        before.close()


def test_variables_that_a_library_sets_here_make_no_other_engine(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with park_engines():
        open_served(server.url, tmp_path / "first").close()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        with closing(open_served(server.url, tmp_path / "second")) as second:
            assert second.facts.details["kept_from"] == "first"


def test_one_that_died_while_it_waited_is_replaced(server: FakeServer, tmp_path: Path) -> None:
    with park_engines():
        with closing(open_served(server.url, tmp_path / "first")) as first:
            pass
        psutil.Process(first.host_pid).kill()
        with closing(open_served(server.url, tmp_path / "second")) as second:
            assert second.host_pid != first.host_pid
            assert [row.error_kind for row in second.generate([ASKED])] == [None]


def test_one_that_died_at_work_is_not_parked(server: FakeServer, tmp_path: Path) -> None:
    with park_engines():
        engine = open_served(server.url, tmp_path / "first")
        psutil.Process(engine.host_pid).kill()
        psutil.wait_procs([psutil.Process(engine.host_pid)] if psutil.pid_exists(engine.host_pid) else [], timeout=10)
        engine.close()
        lot = parking.find_lot()
        assert lot is not None and lot._parked is None


def test_an_offline_engine_is_no_successor_and_own_servers_with_a_cache_have_none(tmp_path: Path) -> None:
    values: dict[str, Any] = {"model_id": "m", "clock": RunClock.start(), "log_path": tmp_path / "log", "args": ARGS}

    def may_park(**changes: Any) -> bool:
        engine = object.__new__(ServerEngine)
        engine._config = StreamingConfig("model", **{**values, **changes})
        return engine.may_park

    assert may_park(server=ServerSpec(url="http://127.0.0.1:9/v1"))
    assert may_park(server=None)
    assert not may_park(server=ServerSpec())
    assert may_park(server=ServerSpec(), args={"enable_prefix_caching": False})


def test_none_is_left_however_the_block_ends(server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), park_engines():
        engine = open_served(server.url, tmp_path / "first")
        engine.close()
        raise KeyboardInterrupt
    assert wait_until_gone(engine.host_pid, 10)
    assert parking.find_lot() is None
    with closing(open_served(server.url, tmp_path / "second")) as alone:
        pass
    assert wait_until_gone(alone.host_pid, 10)


def test_the_device_of_a_parked_engine_is_taken_until_the_end(tmp_path: Path) -> None:
    with park_engines():
        with hold_device([DEVICE], tmp_path, 0) as held:
            pass
        with pytest.raises(DeviceError, match="Every device is taken"):
            claim_device([DEVICE], tmp_path, 0).__enter__()
        with hold_device([DEVICE], tmp_path, 0) as again:
            assert (again.name, again.env) == (held.name, held.env)
        other = Device("cpu-0-0", {}, ("cpu-0",))
        with hold_device([other], tmp_path, 0) as small:
            assert small.name == "cpu-0-0", "another cut of the machine: what was held is given back first"
    with claim_device([DEVICE], tmp_path, 0):
        pass
    with hold_device([DEVICE], tmp_path, 0):
        pass
    with claim_device([DEVICE], tmp_path, 0):
        pass


@pytest.mark.vllm
def test_a_model_is_loaded_once_and_nothing_of_the_run_before_is_left(tiny_model: Path, tmp_path: Path) -> None:
    """The prefix cache is on, and emptied: points of a sweep ask the same prompts again."""
    asker = Asker(tiny_model)
    args = {**ARGS, "block_size": 32, "enable_prefix_caching": True}
    prompt = asker.fresh_prompt(128)
    with park_engines():
        with closing(open_async(tiny_model, tmp_path / "1.log", args=args, run_id="one")) as first:
            cold, warm = (by_id(first.generate([asker.send(prompt)])).popitem()[1] for _ in range(2))
        assert not cold.cached_tokens and warm.cached_tokens
        control, clock = Control(), RunClock.start()
        began = time.monotonic()
        with closing(
            open_async(tiny_model, tmp_path / "2.log", control, args=args, run_id="two", clock=clock)
        ) as second:
            assert (second.host_pid, second.facts.details["kept_from"]) == (first.host_pid, "one")
            assert second.facts.load_s <= time.monotonic() - began
            [answer] = second.generate([asker.send(prompt)])
        assert not answer.cached_tokens
        assert answer.output_token_ids == cold.output_token_ids
        stamps = [answer.sent_at_s, answer.queued_at_s, answer.first_token_at_s, answer.finished_at_s]
        assert None not in stamps and min(filter(None, stamps)) >= 0 and max(filter(None, stamps)) <= clock.now_s()
        assert answer.token_at_s is not None and answer.token_at_s[0] >= stamps[0]
        assert control.samples[-1].output_tokens == answer.output_tokens, "counters begin with the run"
    assert wait_until_gone(first.host_pid, 10)
