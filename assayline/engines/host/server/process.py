"""Our own `vllm serve`: start it, wait for it, watch it and stop it.

It is forked from the engine host, which has not imported vLLM, and belongs to its process group, so it ends with the
host. Its output goes to the host's log, that of the engine's generation.
It listens on the loopback interface only and requires a key, as others may use this machine too: VLLM_API_KEY, or a
random one per start.
"""

import asyncio
import contextlib
import importlib.util
import json
import logging
import multiprocessing
import os
import runpy
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Literal

from assayline import adapter
from assayline.engines.base import OpenedDetails
from assayline.engines.host.core import EngineGoneError
from assayline.engines.host.vllm.internals import adapting, complete_args, is_engine_dead
from assayline.engines.messages import Open
from assayline.records import Json

HEALTH_INTERVAL_S = 0.2
HEALTH_TIMEOUT_S = 5.0
PROOF_S = 60.0
"""Time for a server to prove healthy after a failure; after that it is declared dead."""

ENGINE_DEAD_CODE = 503
STOP_TIMEOUT_S = 10.0
HOST = "127.0.0.1"
MODULES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")
"""The server, newest place first. vLLM's console script, which is broken in its CPU build, runs the same module."""

KEY = "VLLM_API_KEY"
NAME = "server"
"""Name of the process; processes that an engine cannot live without have other names."""


Serve = Callable[[list[str], Mapping[str, str], Callable[[OpenedDetails], object]], None]
"""Runs a server with these arguments and variables, and passes on the sizes that vLLM chooses."""


def _serve(arguments: list[str], variables: Mapping[str, str], tell: Callable[[OpenedDetails], object]) -> None:
    """Run the server in the forked process, as `python -m` would."""
    os.environ.update(variables)
    module = find_module()
    sys.argv = [module, *arguments]
    print_dead_engine_once()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # the server reports it itself
            stack.enter_context(adapting(tell))
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def find_module() -> str:
    """Return the module of the installed vLLM's server."""
    for name in MODULES[:-1]:
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(name):
                return name
    return MODULES[-1]  # it fails with the reason if vLLM is not installed


class ServeProcess:
    """One server process. Call `start` first."""

    def __init__(self, order: Open, serve: Serve = _serve) -> None:
        """Fork the process, which calls `serve`."""
        self._held = socket.socket()
        """Reserves the port, as other processes cannot bind it; vLLM can, since both sockets allow reuse."""
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind((HOST, 0))
        self._port = int(self._held.getsockname()[1])
        self.key = os.environ.get(KEY) or secrets.token_urlsafe(24)
        variables = {KEY: self.key, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        context = multiprocessing.get_context("fork")
        self._told, tell = context.Pipe(duplex=False)
        arguments = (self._list_arguments(order), variables, tell.send)
        self._process = context.Process(target=serve, args=arguments, name=NAME)
        self._process.start()
        self._checking = asyncio.Lock()
        self._well_s = 0.0
        """Start of the last check that found it healthy."""

    @property
    def url(self) -> str:
        """Base URL of its interface."""
        return f"http://{HOST}:{self._port}/v1"

    def read_sizes(self) -> OpenedDetails:
        """Return the sizes that vLLM has chosen since the last call; empty if it has told none."""
        sizes = OpenedDetails()
        while self._told.poll():
            sizes = self._told.recv()
        return sizes

    async def start(self) -> None:
        """Wait until it answers; the worker sets the time limit. Raises EngineGoneError if it ends before that."""
        while (seen := await self._check_once()) != "well":
            if seen == "dead":
                raise self.describe_death()

    async def check_alive(self) -> None:
        """Wait, after a failure, until this server proves healthy. Raises EngineGoneError if it is dead or does not.

        The proof is a check that began after the failure. One is enough for all requests that failed before it.
        """
        failed_s = time.monotonic()
        while self._well_s < failed_s:
            async with self._checking:
                if self._well_s < failed_s and await self._check_once() == "dead":
                    raise self.describe_death()
            if time.monotonic() > failed_s + PROOF_S:
                raise self.describe_death()

    async def _check_once(self) -> Literal["well", "dead", "unclear"]:
        began_s = time.monotonic()
        seen = "dead" if self._process.exitcode is not None else await asyncio.to_thread(self._check)
        if seen == "well":
            self._well_s = began_s
        elif seen == "unclear":
            await asyncio.sleep(HEALTH_INTERVAL_S)
        return seen

    async def stop(self) -> None:
        """Ask it to end. If it still runs after `STOP_TIMEOUT_S`, it ends with the process group."""
        self._held.close()
        if self._process.exitcode is not None:
            return
        self._process.terminate()
        await asyncio.to_thread(self._process.join, STOP_TIMEOUT_S)

    def _list_arguments(self, order: Open) -> list[str]:
        return list_flags(
            {
                "model": order.model,
                "served_model_name": [order.engine.server.model or order.model],
                "host": HOST,
                "port": self._port,
                "enable_prompt_tokens_details": True,
                "disable_uvicorn_access_log": True,
                "lora_modules": [f"{adapter.NAME}={order.adapter}"] if order.adapter else None,
                **complete_args(order.engine.args),
            }
        )

    def _check(self) -> Literal["well", "dead", "unclear"]:
        """Check its health, which vLLM denies if its engine is dead. Takes seconds: call it outside the loop."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is between us and us
        try:
            opener.open(f"http://{HOST}:{self._port}/health", timeout=HEALTH_TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            return "dead" if error.code == ENGINE_DEAD_CODE else "unclear"
        except (OSError, ValueError):  # it is busy, starting or ending
            return "unclear"
        return "well"

    def describe_death(self) -> EngineGoneError:
        """Log the death, and return the error for the requests in flight."""
        code = self._process.exitcode
        words = "holds a dead engine" if code is None else f"ended (exit code: {code})"
        print(f"vLLM's server {words}", file=sys.stderr, flush=True)
        return EngineGoneError(f"vLLM's server {words}. See its log for why.")


def print_dead_engine_once() -> None:
    """Print only one traceback of a dead engine into the log.

    One exception object ends every stream. Each raises it again, which makes its traceback longer, and prints it: 512
    streams would print 160 MB before the server does anything else.
    """
    make = logging.getLogRecordFactory()
    printed = False

    def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        nonlocal printed
        record = make(*args, **kwargs)
        if record.exc_info and record.exc_info[1] is not None and is_engine_dead(record.exc_info[1]):
            if printed:
                record.exc_info = None
            printed = True
        return record

    logging.setLogRecordFactory(make_record)


def list_flags(args: Mapping[str, Json]) -> list[str]:
    """Return arguments as flags: `max_num_seqs: 8` becomes `--max-num-seqs=8`. None values are left out.

    Values follow an equals sign, so that a negative number is not parsed as a flag; lists cannot, since vLLM's parser
    takes them as several words.
    """
    flags: list[str] = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        match value:
            case None:
                pass
            case bool():
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            case dict():
                flags.append(f"--{flag}={json.dumps(value)}")
            case list() | tuple():
                flags += [f"--{flag}", *(item if isinstance(item, str) else json.dumps(item) for item in value)]
            case _:
                flags.append(f"--{flag}={value}")
    return flags
