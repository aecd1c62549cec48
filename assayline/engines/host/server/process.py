"""Our own `vllm serve`: started, waited for, watched and stopped.

It is forked from the engine host, which was forked from a process that had imported vLLM, and is in its process group,
so it ends with it, however that ends. Its output goes where the host's goes: into the log of the engine's generation.
It listens on the loopback interface alone and wants a key, as others may use this machine too: one that is made up at
each start, unless VLLM_API_KEY has one.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import runpy
import secrets
import socket
import sys
import urllib.request
from collections.abc import Mapping
from typing import Literal

from assayline.engines.host.core import EngineGoneError
from assayline.engines.host.vllm.internals import adapting
from assayline.engines.messages import Open
from assayline.records import Json

HEALTH_INTERVAL_S = 0.2
HEALTH_TIMEOUT_S = 5.0
DYING_S = 10.0
"""How long a server whose engine is dead may take to end by itself: it looks every few seconds."""

STOP_TIMEOUT_S = 10.0
HOST = "127.0.0.1"
MODULE = "vllm.entrypoints.openai.api_server"
"""vLLM's console script is broken in its CPU build; the module is the same server."""

KEY = "VLLM_API_KEY"
NAME = "server"
"""Of the process; those that an engine cannot live without have other names."""


class ServeProcess:
    """One server process. `start` before anything else."""

    def __init__(self, order: Open) -> None:
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port = int(free.getsockname()[1])
        self.key = os.environ.get(KEY) or secrets.token_urlsafe(24)
        variables = {KEY: self.key, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(self._list_arguments(order), variables), name=NAME)
        self._process.start()
        self._dying: asyncio.Task[bool] | None = None

    @property
    def url(self) -> str:
        """Base URL of its interface."""
        return f"http://{HOST}:{self._port}/v1"

    async def start(self) -> None:
        """Waits until it answers; the worker limits how long. Raises EngineGoneError if it ends before."""
        while await asyncio.to_thread(self._look) != "up":
            if self._process.exitcode is not None:
                raise EngineGoneError(self._describe_end())
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def check_alive(self) -> None:
        """Raises EngineGoneError if this server will not answer again. Called after a failure; waits until it is clear.

        However many requests fail at once, one look is enough.
        """
        if self._dying is None or self._dying.done():
            self._dying = asyncio.create_task(self._is_dying())
        if await asyncio.shield(self._dying):
            raise EngineGoneError(self._describe_end())

    async def stop(self) -> None:
        """Asks it to end. What is left of it after `STOP_TIMEOUT_S` ends with the process group."""
        if self._process.exitcode is not None:
            return
        self._process.terminate()
        await asyncio.to_thread(self._process.join, STOP_TIMEOUT_S)

    def _list_arguments(self, order: Open) -> list[str]:
        assert order.server is not None
        return list_flags(
            {
                "model": order.model,
                "served_model_name": [order.server.model or order.model],
                "host": HOST,
                "port": self._port,
                "enable_prompt_tokens_details": True,
                "disable_uvicorn_access_log": True,
                **order.args,
            }
        )

    async def _is_dying(self) -> bool:
        """False as soon as it is up, or merely slow; True when it has ended, or stays down."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DYING_S
        while loop.time() < deadline:
            if self._process.exitcode is not None:
                return True
            if await asyncio.to_thread(self._look) != "down":
                return False
            await asyncio.sleep(HEALTH_INTERVAL_S)
        return True

    def _look(self) -> Literal["up", "slow", "down"]:
        """Its health: a dead engine makes it down, and so does a port that refuses. Takes seconds: not in the loop."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is between us and us
        try:
            opener.open(f"http://{HOST}:{self._port}/health", timeout=HEALTH_TIMEOUT_S).close()
        except TimeoutError:
            return "slow"
        except (OSError, ValueError):  # HTTP errors are OSErrors too
            return "down"
        return "up"

    def _describe_end(self) -> str:
        code = self._process.exitcode
        words = "holds a dead engine" if code is None else f"ended (exit code: {code})"
        print(f"vLLM's server {words}", file=sys.stderr, flush=True)
        return f"vLLM's server {words}. See its log for why."


def _serve(arguments: list[str], variables: Mapping[str, str]) -> None:
    """The forked process: what `python -m` would do."""
    os.environ.update(variables)
    sys.argv = [MODULE, *arguments]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # which the server will say itself
            stack.enter_context(adapting())
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def list_flags(args: Mapping[str, Json]) -> list[str]:
    """`max_num_seqs: 8` becomes `--max-num-seqs=8`; what is None is left out.

    Values are put behind an equals sign, so that a negative number is not taken for a flag; lists, which vLLM's parser
    takes as several words, cannot be.
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
