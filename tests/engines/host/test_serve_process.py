"""Our own `vllm serve`, before any engine is in it: which port it has, and what proves that it is well."""

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from assayline.clock import RunClock
from assayline.engines.host.core import EngineGoneError
from assayline.engines.host.server import process as serving
from assayline.engines.host.server.process import ServeProcess
from assayline.engines.messages import Open
from assayline.spec.engine import ServerSpec

ORDER = Open(backend="server", model="m", server=ServerSpec(), clock=RunClock.start())
Health = Callable[[float], int | None]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEALTH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(serving, "HEALTH_INTERVAL_S", 0.02)


def play(health: Health, act: Callable[[ServeProcess], Any]) -> None:
    """Run `act` with a server whose health depends on its age: a status, or None to hang for a second."""

    def serve(arguments: list[str], variables: Mapping[str, str], tell: Any) -> None:
        [port] = [argument.partition("=")[2] for argument in arguments if argument.startswith("--port=")]
        began = time.monotonic()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = health(time.monotonic() - began)
                if status is None:
                    time.sleep(1)
                    return
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *values: Any) -> None: ...

        HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()

    async def run() -> None:
        process = ServeProcess(ORDER, serve)
        try:
            await process.start()
            await act(process)
        finally:
            await process.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_serve_process_holds_its_port_until_the_server_listens():
    process = ServeProcess(ORDER, lambda *_: time.sleep(1))
    port = int(process.url.rpartition(":")[2].removesuffix("/v1"))
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", port))
    assert caught.value.errno == errno.EADDRINUSE
    asyncio.run(process.stop())
    play(lambda age: 200, lambda process: asyncio.sleep(0))  # one that asks to reuse it gets it, as vLLM's does


def test_check_alive_takes_a_slow_answer_for_no_proof():
    """vLLM's server is busy with tracebacks when its engine has died, and ends afterwards."""

    def slow_then_killed(age: float) -> int | None:
        if age > 1.5:
            os.kill(os.getpid(), signal.SIGKILL)
        return 200 if age < 1 else None

    async def act(process: ServeProcess) -> None:
        await asyncio.sleep(1)
        checks = [asyncio.create_task(process.check_alive()) for _ in range(20)]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in checks)
        for task in checks:
            with pytest.raises(EngineGoneError, match=r"ended \(exit code: -9\)"):
                await task

    play(slow_then_killed, act)


def test_check_alive_waits_for_a_server_that_is_merely_slow():
    async def act(process: ServeProcess) -> None:
        await asyncio.sleep(0.6)
        began = time.monotonic()
        await asyncio.gather(*(process.check_alive() for _ in range(500)))
        assert time.monotonic() - began > 0.5

    play(lambda age: None if 0.5 < age < 1.5 else 200, act)


@pytest.mark.parametrize("status", [503, None], ids=["dead", "without proof"])
def test_check_alive_needs_a_look_that_began_after_the_failure(monkeypatch, status):
    """vLLM's health is 503 for a dead engine alone (entrypoints/serve/instrumentator/health.py)."""
    monkeypatch.setattr(serving, "PROOF_S", 1.0)

    async def act(process: ServeProcess) -> None:
        await process.check_alive()
        await asyncio.sleep(0.5)
        with pytest.raises(EngineGoneError, match="holds a dead engine"):
            await process.check_alive()

    play(lambda age: 200 if age < 0.5 else status, act)


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
