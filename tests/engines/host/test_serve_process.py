"""Our own `vllm serve`, before any engine is in it: which port it has, and what proves that it is well."""

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from assayline.engines.host.core import EngineGoneError
from assayline.engines.host.server import process as serving
from assayline.engines.host.server.process import ServeProcess
from assayline.engines.messages import Open
from assayline.spec.engine import ServerSpec

Started = Callable[[Callable[[float], int | None]], ServeProcess]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Starts a server that gives its health as a function of its age: a status, or None to hang for a second."""
    processes: list[ServeProcess] = []
    monkeypatch.setattr(serving, "HEALTH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(serving, "HEALTH_INTERVAL_S", 0.02)

    def begin(health: Callable[[float], int | None]) -> ServeProcess:
        def serve(arguments: list[str], variables: Mapping[str, str]) -> None:
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

        monkeypatch.setattr(serving, "_serve", serve)
        process = ServeProcess(Open(backend="server", model="m", server=ServerSpec(), clock=None))  # type: ignore[arg-type]
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process._process.kill()
        process._process.join(10)


def port_of(process: ServeProcess) -> int:
    return int(process.url.rpartition(":")[2].removesuffix("/v1"))


def test_serve_process_holds_its_port_until_the_server_listens(start, monkeypatch):
    monkeypatch.setattr(serving, "_serve", lambda *_: time.sleep(600))
    process = ServeProcess(Open(backend="server", model="m", server=ServerSpec(), clock=None))  # type: ignore[arg-type]
    try:
        with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
            other.bind(("127.0.0.1", port_of(process)))
        assert caught.value.errno == errno.EADDRINUSE
    finally:
        process._process.kill()
        process._process.join(10)
    asyncio.run(start(lambda age: 200).start())  # a server that asks to reuse it gets it, as vLLM's does


def test_check_alive_returns_when_the_server_is_well(start):
    async def run() -> None:
        process = start(lambda age: 200)
        await process.start()
        await asyncio.gather(*(process.check_alive() for _ in range(500)))

    asyncio.run(asyncio.wait_for(run(), 20))


def test_check_alive_takes_a_slow_answer_for_no_proof(start):
    """vLLM's server is busy with tracebacks when its engine has died, and ends afterwards."""

    async def run() -> None:
        process = start(lambda age: 200 if age < 1 else None)
        await process.start()
        await asyncio.sleep(1)
        threads = [asyncio.create_task(process.check_alive()) for _ in range(20)]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in threads)
        assert process._process.pid is not None
        os.kill(process._process.pid, signal.SIGKILL)
        for task in threads:
            with pytest.raises(EngineGoneError, match=r"ended \(exit code: -9\)"):
                await task

    asyncio.run(asyncio.wait_for(run(), 20))


def test_check_alive_waits_for_a_server_that_is_merely_slow(start):
    async def run() -> None:
        process = start(lambda age: None if 0.5 < age < 1.5 else 200)
        await process.start()
        await asyncio.sleep(0.6)
        began = time.monotonic()
        await process.check_alive()
        assert time.monotonic() - began > 0.5

    asyncio.run(asyncio.wait_for(run(), 20))


def test_check_alive_raises_when_the_engine_is_dead(start):
    """vLLM's health is 503 for a dead engine alone (entrypoints/serve/instrumentator/health.py)."""

    async def run() -> None:
        process = start(lambda age: 200 if age < 0.5 else 503)
        await process.start()
        await asyncio.sleep(0.5)
        with pytest.raises(EngineGoneError, match="holds a dead engine"):
            await process.check_alive()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_check_alive_gives_up_on_a_server_without_proof(start, monkeypatch):
    monkeypatch.setattr(serving, "PROOF_S", 1.0)

    async def run() -> None:
        process = start(lambda age: 200 if age < 0.5 else None)
        await process.start()
        await asyncio.sleep(0.5)
        with pytest.raises(EngineGoneError):
            await process.check_alive()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_check_alive_needs_a_look_that_began_after_the_failure(start):
    async def run() -> None:
        process = start(lambda age: 200 if age < 0.5 else 503)
        await process.start()
        await process.check_alive()
        await asyncio.sleep(0.5)
        with pytest.raises(EngineGoneError):
            await process.check_alive()

    asyncio.run(asyncio.wait_for(run(), 20))


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
