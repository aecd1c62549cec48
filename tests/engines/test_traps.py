"""Three traps of today's vLLM, each of which has cost somebody a night, and that none of them is ours.

1. Its synchronous client waits for ever when the engine core, a process of its own by default, is killed.
2. Whoever kills the parent leaves engine core and workers behind, and they keep the device's memory.
3. A retry on an engine whose forward pass failed, without resetting the prefix cache, gives wrong text without a word:
   cache blocks are registered when a step is scheduled, before anything is computed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_helpers import (
    ARGS,
    ROOT,
    Asker,
    by_id,
    config_of,
    living_members,
    open_engine,
    start_python,
    wait_until_gone,
)

from assayline.engines.adaptive import AdaptiveEngine
from assayline.engines.deaths import classify
from assayline.engines.devices import claim_device, list_devices
from assayline.engines.environment import engine_environment
from assayline.engines.memory import DeviceMemory
from assayline.engines.offline import OfflineEngine
from assayline.engines.orphans import end_orphans, locks_variable
from assayline.engines.policy import RecoveryPolicy
from assayline.engines.sizes import Sizes
from assayline.errors import EngineDiedError
from assayline.settings import Settings

OWN_PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"}
"""vLLM's default, in which the engine core is a child of our host."""


def engine_cores(host: int) -> list[psutil.Process]:
    """The host's children that vLLM started."""
    found = psutil.Process(host).children(recursive=True)
    return [process for process in found if "VLLM" in process.name() or "VLLM" in " ".join(process.cmdline())]


@pytest.mark.vllm
def test_a_killed_engine_core_is_a_death_and_no_wait(tiny_model: Path, tmp_path: Path) -> None:
    """Trap 1."""
    asker = Asker(tiny_model)
    env = engine_environment(Settings(), {}, OWN_PROCESSES)
    with closing(open_engine(tiny_model, tmp_path / "engine.log", env=env)) as engine:
        engine.warm_up(asker.ask())
        cores = engine_cores(engine.host_pid)
        assert cores, "vLLM has processes of its own"
        endless = [asker.ask(max_tokens=None, ignore_eos=True) for _ in range(60)]
        answers = engine.generate([asker.ask(), *endless])
        assert next(answers).text == "7"
        cores[0].kill()
        killed = time.monotonic()
        with pytest.raises(EngineDiedError) as caught:
            list(answers)
        assert time.monotonic() - killed < 30
        assert not classify(caught.value.death).is_memory
        host = engine.host_pid
    assert living_members(host) == []


PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from engine_helpers import config_of
from assayline.engines.devices import claim_device, list_devices
from assayline.engines.environment import engine_environment
from assayline.engines.offline import OfflineEngine
from assayline.settings import Settings
with claim_device(list_devices("cpu", 1), Path(sys.argv[3]), 0) as device:
    own_processes = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    env = engine_environment(Settings(), device.env, own_processes)
    engine = OfflineEngine(config_of(sys.argv[1], Path(sys.argv[2]), env=env))
    print(engine.host_pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.vllm
def test_what_a_killed_worker_and_a_killed_host_leave_behind_is_ended_by_the_next_claim(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Trap 2, at its worst: nobody is left who could clean up."""
    locks = tmp_path / "locks"
    with start_python(PARENT, tiny_model, tmp_path / "engine.log", locks, Path(__file__).parent) as parent:
        assert parent.stdout is not None
        host = int(parent.stdout.readline())
        cores = engine_cores(host)
        assert cores
        parent.send_signal(signal.SIGSTOP)  # so that neither can act on the other's end
        os.kill(host, signal.SIGSTOP)
        os.kill(host, signal.SIGKILL)
        parent.kill()
    time.sleep(2)
    orphans = [core.pid for core in cores if core.is_running() and core.status() != psutil.STATUS_ZOMBIE]
    with claim_device(list_devices("cpu", 1), locks, 0) as device:
        assert not [core for core in cores if core.is_running() and core.status() != psutil.STATUS_ZOMBIE]
        for pid in orphans:
            assert any(f"process {pid} " in words for words in device.orphans), device.orphans
    assert wait_until_gone(host, 10)


SLEEPER = """
import os, time
from assayline.engines.orphans import note_engine
note_engine(os.environ)
if os.fork() == 0:
    time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def sleeper(*locks: Path) -> Iterator[int]:
    """A process with a child, in a session of its own that is noted beside these locks; gives its number."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        env={**os.environ, **locks_variable(locks)},
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def test_only_what_was_noted_beside_the_own_locks_is_ended(tmp_path: Path) -> None:
    locks = [tmp_path / f"cuda-{number}.lock" for number in range(3)]
    with sleeper(*locks[:2]) as ours, sleeper(locks[2]) as other:
        os.kill(ours, signal.SIGKILL)
        os.waitpid(ours, 0)
        assert living_members(ours), "its child lives on"
        killed = end_orphans([locks[1]])
        assert len(killed) == 1 and not living_members(ours)
        assert len(living_members(other)) == 2
        assert end_orphans([locks[1], tmp_path / "never.lock"]) == []


@pytest.mark.parametrize(
    "wrong",
    [{"started_s": 0.0}, {"numbered_by": "another start of the machine"}, {"session": "x"}, None],
    ids=["a number given again", "another machine", "no number", "no note"],
)
def test_a_session_that_may_be_somebody_elses_is_left_alone(tmp_path: Path, wrong: dict[str, Any] | None) -> None:
    lock, note = tmp_path / "cpu-0.lock", tmp_path / "cpu-0.engine"
    with sleeper(lock) as process:
        note.write_text("not JSON" if wrong is None else json.dumps({**json.loads(note.read_text()), **wrong}))
        assert end_orphans([lock]) == []
        assert len(living_members(process)) == 2


def test_a_session_begun_outside_of_this_container_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such processes see 0 for their session: a note of it once ended everything in the container."""
    lock, note = tmp_path / "cpu-0.lock", tmp_path / "cpu-0.engine"
    killed: list[int] = []
    monkeypatch.setattr(psutil.Process, "kill", lambda process: killed.append(process.pid))
    with sleeper(lock):
        written = json.loads(note.read_text())
        for session in (0, 1, os.getsid(0)):
            note.write_text(json.dumps({**written, "session": session, "started_s": time.time()}))
            monkeypatch.setattr(psutil.Process, "create_time", lambda _: time.time())
            assert end_orphans([lock]) == []
    assert killed == []


FAIL_ONCE = """
import importlib.abc, importlib.util, os, sys
class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "vllm.v1.worker.gpu_model_runner":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            runner = module.GPUModelRunner
            forward = runner._model_forward
            def fail_once(self, *given, **named):
                flag = os.environ["FAIL_FORWARD_FLAG"]
                if os.path.exists(flag):
                    os.unlink(flag)
                    raise MemoryError("out of memory inside the forward pass")
                return forward(self, *given, **named)
            runner._model_forward = fail_once
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Hook())
"""
"""A module that Python imports at start: the next forward pass fails while the flag's file exists."""

RETRY = """
import json, sys
from pathlib import Path
from assayline.clock import RunClock
from assayline.engines.vllm_core import VllmCore
from assayline.engines.wire import Generate, Open
from assayline.records import Request
order = json.loads(Path(sys.argv[1]).read_text())
flag, prompts = Path(order["flag"]), order["prompts"]
core = VllmCore(Open(order["model"], order["args"], {}, "cpu", RunClock.start(), "w", 0, False))
def ask(name):
    for i, ids in enumerate(prompts):
        core.add(Generate(Request(f"{name}-{i}", "", 0, 0, ids, order["sampling"]), 0.0, 8))
def answers():
    found = {}
    while core.in_flight:
        found.update({c.request_id: c.text for c in core.step()})
    return [found[key] for key in sorted(found)]
flag.touch()
ask("a")
try:
    core.step()
    raise SystemExit("the forward pass did not fail")
except MemoryError:
    pass
core._engine.abort_request(list(core._live)); core._live.clear()
ask("b"); naive = answers()
core._llm.reset_prefix_cache()
ask("c"); reset = answers()
Path(sys.argv[2]).write_text(json.dumps({"naive": naive, "reset": reset}))
"""


@pytest.fixture
def failing_forward(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of an engine whose forward pass fails once for each time that the flag's file is made."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(FAIL_ONCE)
    paths = [str(tmp_path / "patch"), *filter(None, [os.environ.get("PYTHONPATH")])]
    yield {"PYTHONPATH": ":".join(paths), "FAIL_FORWARD_FLAG": str(tmp_path / "flag"), "OMP_NUM_THREADS": "1"}


@pytest.mark.vllm
def test_an_engine_that_failed_inside_its_forward_pass_is_not_asked_again(
    tiny_model: Path, tmp_path: Path, failing_forward: dict[str, str]
) -> None:
    """Trap 3: retrying on it gives wrong text; the next engine gives the right one."""
    asker = Asker(tiny_model)
    args = {**ARGS, "block_size": 32, "enable_prefix_caching": True}
    questions = ["What is 3 + 4?", "What is 2 + 2?", "What is 9 + 8?", "What is 1 + 5?"]
    prefix = asker.fresh_prompt(160)
    prompts = [[*prefix, *asker.ids_of(question)] for question in questions]

    def requests() -> list[Any]:
        return [asker.send(ids) for ids in prompts]

    def texts(engine: Any) -> list[str]:
        asked = requests()
        answers = by_id(engine.generate(asked))
        return [answers[request.request_id].text for request in asked]

    env = engine_environment(Settings(), {}, failing_forward)
    flag = Path(failing_forward["FAIL_FORWARD_FLAG"])
    events: list[str] = []

    def open_next(sizes: Sizes, changed: dict[str, Any], generation: int) -> OfflineEngine:
        log = tmp_path / f"engine-{generation}.log"
        window = sizes.window_requests
        return OfflineEngine(config_of(tiny_model, log, args={**args, **changed}, window=window, env=env))

    adaptive = AdaptiveEngine(
        open_next, RecoveryPolicy(Sizes()), lambda _, event, *__, **___: events.append(event), DeviceMemory(())
    )
    with closing(adaptive) as engine:
        expected = texts(engine)
        flag.touch()
        assert texts(engine) == expected
    assert events == ["opened", "failed", "reduced", "opened", "closed"]
    assert not flag.exists()

    order = {
        "model": str(tiny_model),
        "args": args,
        "prompts": prompts,
        "flag": str(flag),
        "sampling": {"temperature": 0, "max_tokens": 16},
    }
    given, found_in = tmp_path / "order", tmp_path / "answers"
    given.write_text(json.dumps(order))
    command = [sys.executable, "-c", RETRY, str(given), str(found_in)]
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=200)
    found = json.loads(found_in.read_text())
    assert found["reset"] == expected
    if found["naive"] == expected:
        pytest.skip("this vLLM gives right text after a naive retry: the trap is gone, ours was right all the same")
