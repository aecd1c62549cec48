"""Engines on the tiny model, requests for them, and what is left of their processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from assayline.chat import ChatRenderer, load_tokenizer
from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.environment import engine_environment
from assayline.engines.offline import OfflineConfig, OfflineEngine
from assayline.engines.streaming import AsyncEngine, StreamingConfig
from assayline.load.course import LoadCourse, LoadEnd
from assayline.load_spec import LoadSpec
from assayline.records import Completion, Request, TelemetrySample
from assayline.settings import Settings
from assayline.spec import ChatSpec

ROOT = Path(__file__).resolve().parents[2]
ARGS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**27,
}
GREEDY = {"temperature": 0, "max_tokens": 16}


@dataclass
class Control:
    """What a test sees of an engine, and how it stops it."""

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


def values_of(model: Path | str, log_path: Path, settings: Settings | None = None, **changes: Any) -> dict[str, Any]:
    env = engine_environment(settings or Settings(), {"OMP_NUM_THREADS": "1"}, {})
    known = {"model_id": "tiny", "clock": RunClock.start(), "log_path": log_path, "args": ARGS, "env": env}
    return {"model": str(model), **known, **changes}


def config_of(model: Path | str, log_path: Path, settings: Settings | None = None, **changes: Any) -> OfflineConfig:
    return OfflineConfig(**values_of(model, log_path, settings, **changes))


def open_engine(model: Path | str, log_path: Path, control: Control | None = None, **changes: Any) -> OfflineEngine:
    return OfflineEngine(config_of(model, log_path, **changes), (control or Control()).hooks)


def open_async(model: Path | str, log_path: Path, control: Control | None = None, **changes: Any) -> AsyncEngine:
    """vLLM's async engine, warmed up: its first prefill must not be a short one (docs/decisions.md)."""
    config = StreamingConfig(**values_of(model, log_path, record_token_times=True, **changes))
    engine = AsyncEngine(config, (control or Control()).hooks)
    engine.warm_up(Request("warm-up", "", 0, 0, [1] * 32, {**GREEDY, "max_tokens": 2}))
    return engine


def course_of(arrival: dict[str, Any], **constraints: Any) -> LoadCourse:
    return LoadCourse(LoadSpec.model_validate({"arrival": arrival, **constraints}))


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
        return Request(f"request-{self._count}", "prompt", 0, 0, prompt_token_ids, as_stored)

    def fresh_prompt(self, tokens: int) -> list[int]:
        """Token ids that no request before had as its beginning."""
        self._count += 1
        letters = [self.token(letter) for letter in "abcdefghij"]
        return [letters[int(digit)] for digit in f"{self._count:05d}".rjust(tokens, "0")[::-1]]


class Feed:
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


def stamps_of(answer: Completion) -> list[float]:
    names = ("sent", "arrived", "queued", "scheduled", "first_token", "last_token", "finished")
    return [getattr(answer, f"{name}_at_s") for name in names]


def start_python(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """A Python process whose output is read line by line."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def wait_until_gone(group: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while living_members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not living_members(group)


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
