"""Our own `vllm serve`, before any engine is in it: which port it has, and what proves that it is well."""

import asyncio
import errno
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from run_kit import PATIENCE_S

from assayline.clock import RunClock
from assayline.engines.host.core import EngineGoneError
from assayline.engines.host.server import process as serving
from assayline.engines.host.server.process import ServeProcess
from assayline.engines.messages import Open
from assayline.spec.engine import EngineSpec

ORDER = Open(engine=EngineSpec(backend="server"), model="m", clock=RunClock.start())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEALTH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(serving, "HEALTH_INTERVAL_S", 0.02)


HANGS, DIES = 0, -1
WELL, DEAD = 200, 503


class Health:
    """The state of the server, shared with its process: the status of its answers, or HANGS, or DIES."""

    def __init__(self) -> None:
        self.status, self.hung = multiprocessing.Value("i", WELL), multiprocessing.Value("i", 0)

    async def turn(self, status: int) -> None:
        """Change the state; if the server hangs from now on, wait until a question has met that."""
        self.status.value = status
        while status == HANGS and not self.hung.value:
            await asyncio.sleep(0.01)

    def answer(self) -> int:
        while self.status.value == HANGS:
            self.hung.value = 1
            time.sleep(0.01)
        if self.status.value == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.status.value


def play(act: Callable[[ServeProcess, Health], Any]) -> None:
    """Run `act` with a server that is well at first."""
    health = Health()

    def serve(arguments: list[str], variables: Mapping[str, str], tell: Any) -> None:
        [port] = [argument.partition("=")[2] for argument in arguments if argument.startswith("--port=")]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(health.answer())
                self.end_headers()

            def log_message(self, format: str, *values: Any) -> None: ...

        ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()

    async def run() -> None:
        process = ServeProcess(ORDER, serve)
        try:
            await process.start()
            await act(process, health)
        finally:
            await process.stop()
            assert process._process.exitcode is not None, "it runs no more"

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_serve_process_holds_its_port_until_the_server_listens():
    process = ServeProcess(ORDER, lambda *_: time.sleep(1))
    port = int(process.url.rpartition(":")[2].removesuffix("/v1"))
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", port))
    assert caught.value.errno == errno.EADDRINUSE
    asyncio.run(process.stop())
    play(lambda process, health: asyncio.sleep(0))  # one that asks to reuse it gets it, as vLLM's does


def test_check_alive_takes_a_slow_answer_for_no_proof():
    """vLLM's server is busy with tracebacks when its engine has died, and ends afterwards."""

    async def act(process: ServeProcess, health: Health) -> None:
        checks = await hang(process, health, 20)
        await health.turn(DIES)
        for task in checks:
            with pytest.raises(EngineGoneError, match=r"ended \(exit code: -9\)"):
                await task

    play(act)


async def hang(process: ServeProcess, health: Health, count: int) -> list[asyncio.Task[None]]:
    """Check so often while the server hangs; return the checks, none of which has an end yet."""
    health.status.value = HANGS
    checks = [asyncio.create_task(process.check_alive()) for _ in range(count)]
    await health.turn(HANGS)
    assert not any(task.done() for task in checks)
    return checks


def test_check_alive_waits_for_a_server_that_is_merely_slow():
    async def act(process: ServeProcess, health: Health) -> None:
        checks = await hang(process, health, 500)
        await health.turn(WELL)
        await asyncio.gather(*checks)

    play(act)


@pytest.mark.parametrize("status", [DEAD, HANGS], ids=["dead", "without proof"])
def test_check_alive_needs_a_look_that_began_after_the_failure(monkeypatch, status):
    """vLLM's health is 503 for a dead engine alone (entrypoints/serve/instrumentator/health.py)."""

    async def act(process: ServeProcess, health: Health) -> None:
        await process.check_alive()
        monkeypatch.setattr(serving, "PROOF_S", 0.5)
        health.status.value = status
        with pytest.raises(EngineGoneError, match="holds a dead engine"):
            await process.check_alive()

    play(act)


def test_print_dead_engine_once_keeps_one_traceback(capfd):
    import logging

    class EngineDeadError(Exception):
        """vLLM's own is told apart by its name, too."""

    before = logging.getLogRecordFactory()
    logger = logging.getLogger("vllm.entrypoints.openai.completion.serving")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    error = EngineDeadError("EngineCore encountered an issue.")
    try:
        serving.print_dead_engine_once()
        for _ in range(100):
            try:
                raise error
            except EngineDeadError:
                logger.exception("Error in completion stream generator.")
        try:
            raise ValueError("another")
        except ValueError:
            logger.exception("Something else.")
    finally:
        logging.setLogRecordFactory(before)
        logger.removeHandler(handler)
    printed = capfd.readouterr().err
    assert printed.count("Error in completion stream generator.") == 100
    assert printed.count("EngineDeadError: EngineCore") == 1 and printed.count("ValueError: another") == 1
