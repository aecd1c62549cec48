"""Engines on the tiny model, requests for them, and what is left of their processes."""

import asyncio
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from host_kit import HOSTS
from run_kit import ENGINE_ARGS, ROOT, plain_request, prepare, wait_for

from assayline.clock import RunClock
from assayline.engines import client
from assayline.engines.base import EngineHooks
from assayline.engines.client import HostedEngine
from assayline.engines.host.server.core import ServerCore
from assayline.engines.host.vllm.internals import find_version
from assayline.engines.messages import Open
from assayline.engines.process import HostProcess, HostSetup, engine_environment
from assayline.errors import Death, Witness
from assayline.load.progress import LoadEnd, LoadProgress
from assayline.records import Completion, Request, TelemetrySample
from assayline.requests.build import PreparedPrompt
from assayline.requests.chat import ChatRenderer
from assayline.requests.tokenizer import load_tokenizer
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.load import LoadSpec
from assayline.spec.prompts import ChatSpec

VLLM = tuple(int(part) for part in (find_version() or "0.32.0").split(".")[:2])
"""Version of the installed vLLM: `make test-vllm` runs these tests with others."""

NO_PREEMPTIONS = 0 if VLLM >= (0, 30) else None
"""Older versions do not count them."""

ARGS: dict[str, Any] = {**ENGINE_ARGS, "max_num_seqs": 8}
ONE_CORE = {**ARGS, "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor"}
"""Where an engine's core is a process of its own, it computes by itself, as it does on a GPU. On a CPU vLLM would
start a worker beside it, one more process that imports everything. `uni`, the executor's short name, is not heeded."""

GREEDY = {"temperature": 0, "max_tokens": 16}
SCHEMA = {
    "type": "object",
    "properties": {
        "sum": {"type": "integer", "minimum": 0, "maximum": 99},
        "parity": {"enum": ["even", "odd"]},
        "digits": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 9},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["sum", "parity", "digits"],
    "additionalProperties": False,
}


@dataclass
class Control:
    """A test's view of an engine, and its way to stop it."""

    samples: list[TelemetrySample] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends: list[LoadEnd] = field(default_factory=list)
    stop: bool = False

    @property
    def hooks(self) -> EngineHooks:
        return EngineHooks(
            self.samples.append, self.lines.append, lambda: self.stop, self.notes.append, self.ends.append
        )


def parts_of(backend: str, model: Path | str, log_path: Path, **changes: Any) -> dict[str, Any]:
    """Arguments to open an engine with. Each change goes where its name belongs: spec, order, setup or engine."""
    env = engine_environment(changes.pop("settings", None) or Settings(), {"OMP_NUM_THREADS": "1"}, {})
    known = {"backend": backend, "model": str(model), "model_id": "tiny", "clock": RunClock.start(), "args": ARGS}
    values = {**known, "log_path": log_path, "env": env, **changes}
    engine = {name: values.pop(name) for name in EngineSpec.model_fields.keys() - {"env"} if name in values}
    order = {name: values.pop(name) for name in Open.__dataclass_fields__ if name in values}
    setup = {name: values.pop(name) for name in HostSetup.__dataclass_fields__ if name in values}
    order["engine"] = EngineSpec(**engine)
    return {"order": Open(**order), "setup": HostSetup(**{"launch": HOSTS.launch, **setup}), **values}


def open_engine(
    model: Path | str, log_path: Path, control: Control | None = None, *, backend: str = "offline", **changes: Any
) -> HostedEngine:
    return HostedEngine(hooks=(control or Control()).hooks, **parts_of(backend, model, log_path, **changes))


def open_async(model: Path | str, log_path: Path, control: Control | None = None, **changes: Any) -> HostedEngine:
    """vLLM's async engine, warmed up: its first prefill must not be a short one."""
    engine = open_engine(model, log_path, control, backend="async", record_token_times=True, **changes)
    engine.warm_up(plain_request("warm-up", prompt_token_ids=[1] * 32, sampling={**GREEDY, "max_tokens": 2}))
    return engine


def import_into_core(path: Path, source: str) -> dict[str, Any]:
    """Arguments with which vLLM's engine core imports this module as it opens a model."""
    path.write_text(source)
    return {"structured_outputs_config": {"reasoning_parser_plugin": str(path)}}


def with_core(order: Open, act: Callable[[ServerCore], Any], *serve: Any) -> Any:
    """Return the result of `act`, awaited, with a core that is open and is closed in the end."""

    async def run() -> Any:
        core = ServerCore(order, *serve)
        try:
            await core.open()
        except BaseException:
            if core._process is not None:  # it would end with its host's process group
                await core._process.stop()
            raise
        try:
            return await act(core)
        finally:
            await core.close()

    return asyncio.run(run())


class PlayedProcess:
    """A host's process that a test plays, on a clock of its own, which passes while somebody waits for it."""

    pid = exit_code = None
    phase = "start"
    log_path = Path("engine.log")
    end = HostProcess.end

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.on_log: Callable[[str], None] = lambda line: None
        self._inbox: deque[Any] = deque()
        self._log = SimpleNamespace(on_line=None)

    def begin_run(self) -> None:
        self.phase = "run"

    def describe_death(self) -> str:
        return "dead"

    def evidence(self, exception: str = "", message: str = "", witness: Witness = Witness.EXCEPTION) -> Death:
        return Death(self.phase, self.exit_code, exception, message, witness=witness)

    def kill(self) -> None:
        self.exit_code = -9

    def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on engines start this process, and go by its clock."""

        def start(env: Any, log_path: Any, on_log: Callable[[str], None], launch: Any) -> PlayedProcess:
            self.on_log = on_log
            return self

        monkeypatch.setattr(client, "HostProcess", start)
        monkeypatch.setattr(client.time, "monotonic", lambda: self.now_s)


class Kept:
    """An engine that tests of a file share. A test that ends it takes it out first, and the next test gets another."""

    def __init__(self, open_new: Callable[[], HostedEngine]) -> None:
        self._open_new = open_new
        self._engine: HostedEngine | None = None

    @property
    def engine(self) -> HostedEngine:
        """The engine, which is opened when it is first asked for."""
        if self._engine is None:
            self._engine = self._open_new()
        return self._engine

    def take(self) -> HostedEngine:
        """The engine, from now on the caller's to end, or to keep again."""
        engine, self._engine = self.engine, None
        return engine

    def keep(self, engine: HostedEngine) -> None:
        """From now on this is the engine."""
        self.close()
        self._engine = engine

    def close(self) -> None:
        """Ends the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def load_of(arrival: dict[str, Any], **constraints: Any) -> LoadProgress:
    return LoadProgress(LoadSpec.model_validate({"arrival": arrival, **constraints}))


class Asker:
    """Renders questions as the pipeline does, and numbers the requests."""

    def __init__(self, model: Path) -> None:
        self.tokenizer = load_tokenizer(model)
        self._renderer = ChatRenderer(ChatSpec(), self.tokenizer)
        self._count = 0
        lines = (ROOT / "examples" / "arithmetic.jsonl").read_text().splitlines()
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def ids_of(self, question: str) -> list[int]:
        return list(self._renderer.render([{"role": "user", "content": question}]).token_ids)

    def token(self, text: str) -> int:
        [token] = self.tokenizer.encode(text, add_special_tokens=False)
        return int(token)

    def ask(self, question: str = "What is 3 + 4?", **sampling: Any) -> Request:
        return self.send(self.ids_of(question), **sampling)

    def send(self, prompt_token_ids: list[int], **sampling: Any) -> Request:
        self._count += 1
        as_stored = json.loads(json.dumps({**GREEDY, **sampling}))  # a shard holds it as JSON, whose keys are text
        return plain_request(f"request-{self._count}", prompt_token_ids=prompt_token_ids, sampling=as_stored)

    def fresh_prompt(self, tokens: int) -> list[int]:
        """Token ids that no request before had as its beginning."""
        self._count += 1
        letters = [self.token(letter) for letter in "abcdefghij"]
        return [letters[int(digit)] for digit in f"{self._count:05d}".rjust(tokens, "0")[::-1]]


def answer_to(engine: HostedEngine, asker: Asker, question: str = "What is 3 + 4?", **sampling: Any) -> Completion:
    [answer] = engine.generate([asker.ask(question, **sampling)])
    assert answer.error_kind is None, answer.error_message
    return answer


def answers_in(engine: HostedEngine, asker: Asker, form: dict[str, Any], **sampling: Any) -> list[Completion]:
    """Answers of a form and of many kinds: random ones, which would be anything without it."""
    free = {"temperature": 1.0, "max_tokens": 100, "structured_outputs": form, **sampling}
    requests = [asker.ask(row["question"], **{"seed": seed, **free}) for seed, row in enumerate(asker.rows[:12])]
    answers = by_id(engine.generate(requests))
    assert all(answer.error_kind is None for answer in answers.values()), next(iter(answers.values())).error_message
    return [answers[request.request_id] for request in requests]


def answer_seeded(engine: HostedEngine, *seeds: int) -> dict[int, list[int]]:
    """Tokens by seed, of requests whose prompt an engine with small steps reads in several: vLLM's CPU build cannot
    sample such requests by itself."""
    prompt, sampling = [1 + number % 9 for number in range(100)], {"temperature": 1.0, "max_tokens": 8}
    requests = [
        plain_request(f"{seed}", prompt_token_ids=prompt, sampling={**sampling, "ignore_eos": True, "seed": seed})
        for seed in seeds
    ]
    answers = by_id(engine.generate(requests))
    return {seed: list(answers[f"{seed}"].output_token_ids or []) for seed in seeds}


def prepare_options(asker: Asker, rows: list[dict[str, Any]], **chat: Any) -> list[PreparedPrompt]:
    """Requests for the likelihood of each row's choices."""
    spec = EvalSpec.model_validate(
        {
            "model": "m",
            "chat": chat,
            "scorers": [{"kind": "loglikelihood"}],
            "prompts": {"source": {"kind": "inline", "rows": rows}, "columns": {"options": "choices"}},
        }
    )
    return prepare(spec, asker.tokenizer)


class Reference:
    """The tiny model in plain torch, whose logits `tests/test_tiny_model.py` holds against transformers'."""

    def __init__(self, model: Path) -> None:
        import torch
        from safetensors.torch import load_file

        torch.set_num_threads(1)  # for so small a model a second thread costs many times what it computes
        self._weights = load_file(model / "model.safetensors")

    def option_logprob(self, request: Request) -> float:
        """The log-probability of a request's option after its prompt."""
        import torch

        from examples.tiny_llama import compute_logits

        ids = torch.tensor([request.prompt_token_ids])
        with torch.no_grad():
            logits = compute_logits(self._weights, ids, torch.ones_like(ids, dtype=torch.bool)).view(ids.shape[1], -1)
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        first = len(request.prompt_token_ids) - (request.option_tokens or 0)
        return float(sum(logprobs[at - 1, request.prompt_token_ids[at]] for at in range(first, ids.shape[1])))


class CountedRequests:
    """Input that counts what the engine has taken and not yet answered."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self.given = self.answered = self.most = 0
        self._requests = requests

    def __iter__(self) -> Iterator[Request | None]:
        for request in self._requests:
            if request is not None:
                self.given += 1
                self.most = max(self.most, self.given - self.answered)
            yield request

    def answers(self, engine: Any) -> Iterator[Completion]:
        for completion in engine.generate(self):
            self.answered += 1
            yield completion


def by_id(answers: Iterable[Completion]) -> dict[str, Completion]:
    """Answers by request; an answer that comes twice is an error."""
    found: dict[str, Completion] = {}
    for answer in answers:
        assert answer.request_id not in found
        found[answer.request_id] = answer
    return found


def check_same(one: HostedEngine, other: HostedEngine, requests: list[Request]) -> None:
    """Two engines give these requests the same answers: texts, ids, reasons and log-probabilities."""
    ours, theirs = by_id(one.generate(requests)), by_id(other.generate(requests))
    names = ("text", "output_token_ids", "finish_reason", "stop_reason", "prompt_tokens", "output_tokens", "error_kind")
    assert ours.keys() == theirs.keys() == {request.request_id for request in requests}
    for answer, known in ((ours[request.request_id], theirs[request.request_id]) for request in requests):
        for name in names:
            assert getattr(answer, name) == getattr(known, name), (name, answer, known)
        for name in ("cumulative_logprob", "option_logprob"):
            assert getattr(answer, name) == pytest.approx(getattr(known, name), abs=1e-4), name
        for name in ("logprobs", "prompt_logprobs"):
            found, expected = getattr(answer, name), getattr(known, name)
            assert (found is None) == (expected is None), name
            for position, likely in zip(found or [], expected or [], strict=True):
                assert position == (likely and pytest.approx(likely, abs=1e-3))


def stamps_of(answer: Completion) -> list[float]:
    names = ("sent", "arrived", "queued", "scheduled", "first_token", "last_token", "finished")
    return [getattr(answer, f"{name}_at_s") for name in names]


def is_rising(stamps: Iterable[float | None]) -> bool:
    """Return True if no stamp that there is lies before an earlier one."""
    return all(before <= after for before, after in pairwise(stamp for stamp in stamps if stamp is not None))


STUBBORN = """
import os, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
{work}
print("ready", flush=True)
time.sleep(600)
"""


def start_other(log_path: Path, work: str) -> HostProcess:
    """A host that does something else."""

    def launch(env: Mapping[str, str], channel: int, log: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", STUBBORN.format(work=work)]
        return subprocess.Popen(command, pass_fds=[channel], stdout=log, stderr=log, start_new_session=True)

    lines: list[str] = []
    host = HostProcess({}, log_path, lines.append, launch)
    while "ready" not in lines:
        host.receive(0.05)
    return host


def wait_until_gone(group: int) -> None:
    """No process of a host's group runs, a moment later."""
    wait_for(lambda: not living_members(group), "the host's processes are gone")


def words_of(process: psutil.Process) -> list[str]:
    """Its name and its command line; nothing of one that has just ended, as helpers of vLLM's processes may."""
    try:
        return [process.name(), *process.cmdline()]
    except psutil.Error:
        return []


def find_core(parent: psutil.Process | int) -> psutil.Process:
    """The process of vLLM's engine core, below another one."""
    children = psutil.Process(parent if isinstance(parent, int) else parent.pid).children(recursive=True)
    [core] = [child for child in children if "EngineCore" in "".join(words_of(child))]
    return core


def living_members(group: int) -> list[psutil.Process]:
    """Processes of a host's group that still run."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except ProcessLookupError:
            pass
    return found
