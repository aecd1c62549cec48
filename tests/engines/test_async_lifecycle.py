"""The deaths of vLLM's async engine: its core runs in a process of its own, and can be killed alone."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_helpers import Asker, course_of, living_members, open_async, values_of, wait_until_gone

from assayline.engines.adaptive import AdaptiveEngine
from assayline.engines.base import EngineHooks
from assayline.engines.memory import DeviceMemory
from assayline.engines.policy import RecoveryPolicy
from assayline.engines.sizes import Sizes, sizes_of
from assayline.engines.streaming import AsyncEngine, StreamingConfig
from assayline.errors import EngineDiedError
from assayline.records import Request

pytestmark = pytest.mark.vllm


def engine_core(host: int) -> psutil.Process:
    [core] = [child for child in psutil.Process(host).children(recursive=True) if "EngineCore" in child.name()]
    return core


def test_a_killed_engine_core_is_replaced_and_nothing_is_lost_or_doubled(tiny_model: Path, tmp_path: Path) -> None:
    """In an open loop, with a hundred in flight: the pattern goes on, and every request has one answer."""
    asker, opened, events = Asker(tiny_model), [], []
    course = course_of({"kind": "constant", "rate_per_s": 100.0})

    def open_next(sizes: Sizes, changed: dict[str, Any], generation: int) -> AsyncEngine:
        log = tmp_path / f"engine-{generation}.log"
        values = values_of(tiny_model, log, engine_generation=generation, course=course, record_token_times=True)
        values["args"] = {**values["args"], **changed}
        opened.append(AsyncEngine(StreamingConfig(**values), EngineHooks()))
        return opened[-1]

    def record(generation: int, event: str, *_: Any, details: Any = None, **__: Any) -> None:
        events.append((generation, event, details))

    policy = RecoveryPolicy(sizes_of({"max_num_seqs": 8}, None), has_window=False)
    with closing(AdaptiveEngine(open_next, policy, record, DeviceMemory(()))) as engine:
        engine.warm_up(Request("warm-up", "", 0, 0, [1] * 32, {"max_tokens": 2}))
        short = [asker.ask() for _ in range(5)]
        long = [asker.ask(max_tokens=150, ignore_eos=True) for _ in range(60)]
        answers, killed = {}, False
        for answer in engine.generate([*short, *long]):
            assert answer.request_id not in answers
            answers[answer.request_id] = answer
            if not killed:
                killed = True
                engine_core(opened[0].host_pid).kill()
    assert set(answers) == {request.request_id for request in [*short, *long]}
    assert [answer.error_kind for answer in answers.values()] == [None] * 65
    assert [answers[request.request_id].output_tokens for request in long] == [150] * 60
    assert {answer.engine_generation for answer in answers.values()} == {0, 1}
    assert {answer.window_requests for answer in answers.values()} == {None}
    [(_, _, failed)] = [event for event in events if event[1] == "failed"]
    assert failed["is_memory"] is False and failed["phase"] == "run"
    later = sorted((a.due_at_s or 0, a.request_id) for a in answers.values() if a.engine_generation == 1)
    names = [request.request_id for request in [*short, *long]]
    assert [name for _, name in later] == [name for name in names if answers[name].engine_generation == 1]
    assert course.settled == 65
    for one in opened:
        assert living_members(one.host_pid) == []


def test_a_killed_host_is_an_error_and_takes_the_core_with_it(tiny_model: Path, tmp_path: Path) -> None:
    asker = Asker(tiny_model)
    with closing(open_async(tiny_model, tmp_path / "engine.log")) as engine:
        requests = [asker.ask(), *(asker.ask(max_tokens=200, ignore_eos=True) for _ in range(50))]
        answers = engine.generate(requests)
        assert next(answers).text == "7"
        os.kill(engine.host_pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDiedError, match="died of signal SIGKILL"):
            list(answers)
        assert time.monotonic() - killed < 60
    assert wait_until_gone(engine.host_pid, 30)


def test_a_model_that_does_not_load_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(EngineDiedError, match=r"(?s)The engine failed: .*Its whole log: .*engine\.log"):
        open_async(empty, tmp_path / "engine.log")
