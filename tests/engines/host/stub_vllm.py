"""vLLM with nothing in it, for tests of the core around it: requests end after as many steps as they ask for."""

import contextlib
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from assayline.engines.host.metrics import EngineStats
from assayline.engines.host.vllm import offline_core
from assayline.engines.messages import Open, Opened
from assayline.records import Completion, Request


class StubEngine:
    """vLLM's engine."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        """Steps that requests still run for."""
        self.ran: list[list[str]] = []
        """The requests of every step."""
        self.refused: set[str] = set()
        """Those that it does not take."""

    @property
    def steps(self) -> list[int]:
        """How many ran in every step."""
        return [len(ran) for ran in self.ran]

    def add_request(self, request_id: str, prompt: Any, steps: int) -> None:
        if request_id in self.refused:
            raise ValueError(f"{request_id} is too long")
        self.left[request_id] = steps

    def abort_request(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.left.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.left)

    def step(self) -> list[Any]:
        self.ran.append(list(self.left))
        self.left = {request_id: left - 1 for request_id, left in self.left.items()}
        ended = [request_id for request_id, left in self.left.items() if not left]
        self.abort_request(ended)
        return [SimpleNamespace(request_id=request_id, finished=True) for request_id in ended]


class StubRows:
    """As short as can be; a request runs for `max_tokens` steps, or two."""

    def __init__(self, order: Open) -> None: ...

    def build_params(self, request: Request, live: Any) -> int:
        return int(request.sampling.get("max_tokens", 2))

    def finish(self, live: Any, output: Any, now: float) -> Completion:
        return Completion(live.message.request.request_id, "w", 0, 1)

    def refuse(self, live: Any, error: Exception) -> Completion:
        return Completion(live.message.request.request_id, "w", 0, 1, error_message=str(error))


def install(monkeypatch: pytest.MonkeyPatch, opened: Opened, device: str = "cpu") -> StubEngine:
    """Puts it in vLLM's place: the next core is one over the engine that is returned."""
    engine = StubEngine()
    methods = ("add_request", "abort_request", "has_unfinished_requests", "step")
    llm_engine = SimpleNamespace(vllm_config=None, **{name: getattr(engine, name) for name in methods})
    llm = SimpleNamespace(llm_engine=llm_engine)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=lambda **_: llm))
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type=device))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(offline_core, "adapting", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(offline_core, "describe_engine", lambda _: opened)
    monkeypatch.setattr(offline_core, "read_own_stats", lambda: EngineStats(waiting_requests=0))
    monkeypatch.setattr(offline_core, "VllmRows", StubRows)
    monkeypatch.setattr(offline_core, "fork_preparers", lambda _: None)
    monkeypatch.setattr(offline_core, "shut_down", lambda _: None)
    monkeypatch.setattr(offline_core.Live, "take", lambda *_: None)
    return engine
