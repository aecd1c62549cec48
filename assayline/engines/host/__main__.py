"""The engine host: the process that holds vLLM, so that a worker survives its crashes.

`engines/process.py` starts it as `python -m assayline.engines.host FD`: in a session of its own, with its environment
complete before the first import. It builds the engine that the first message orders: `vllm.LLM`, which it drives here,
step by step, taking in new requests between steps, or a streaming core, which `pacing.py` drives in an event loop. When
the worker is gone, however it died, `channel.py` kills the whole process group: no orphan keeps a GPU.
"""

import asyncio
import multiprocessing
import multiprocessing.process
import os
import pickle
import resource
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from assayline.engines.devices.watch import note_engine
from assayline.engines.host.channel import HostChannel
from assayline.engines.host.core import EngineGoneError, StreamCore
from assayline.engines.host.pacing import StreamHost
from assayline.engines.host.server import process as serving
from assayline.engines.host.vllm import preparers
from assayline.engines.host.vllm.internals import is_engine_dead
from assayline.engines.host.vllm.offline_core import Ready, VllmCore
from assayline.engines.host.vllm.rows import check_before_load, explain_refusal, try_order
from assayline.engines.messages import (
    AbortAll,
    Aborted,
    Beat,
    Close,
    Failed,
    Finished,
    Generate,
    Open,
    Refused,
    Resolved,
    Warm,
    WarmUp,
)
from assayline.engines.process import MEMORY_LIMIT
from assayline.errors import DeviceError, ServerError, SpecError, Witness

BEAT_INTERVAL_S = 1.0
DEAD_CHILD_GRACE_S = 5.0
"""Time for vLLM to notice by itself that one of its processes is dead."""

SEND_TIMEOUT_S = 5.0


class Host:
    """One engine and the channel to its worker."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._core: VllmCore | StreamHost | None = None
        self._closing = False
        self._children: list[multiprocessing.process.BaseProcess] = []

    def run(self) -> int:
        """Serve until `Close`. Returns the exit code."""
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        code = self._run()
        self._channel.drain(SEND_TIMEOUT_S)
        return code

    def _run(self) -> int:
        order, *early = self._channel.take(wait=True)
        try:
            if order.engine.is_streaming:
                # Not asyncio.run: it would wait for tasks that a dead engine leaves behind.
                asyncio.new_event_loop().run_until_complete(self._stream(order, early))
            else:
                self._serve(self._open(order), deque(early))
        except (SpecError, DeviceError, ServerError) as error:
            self._channel.send(Refused(error))
            return 1
        except Exception as error:
            traceback.print_exc()  # first: the worker kills this process once it gets the message
            if isinstance(error, ValidationError) and not (self._core or order.engine_generation):
                self._channel.send(Refused(explain_refusal(error, order.engine.args)))
            else:
                self._channel.send(tell_failure(error))
            return 1
        return 0

    def _open(self, order: Open) -> VllmCore:
        check_before_load(order)
        core = VllmCore(order, self._channel.send)
        core.put_ready = self._channel.put_own
        self._watch(core)
        self._channel.send(core.describe())
        return core

    async def _stream(self, order: Open, early: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        core = make_core(order, self._channel.send)
        host = StreamHost(core, order, self._channel.send)

        def take(messages: list[Any]) -> None:
            for message in messages:
                if isinstance(message, Close):
                    self._closing = True
                host.take(message)

        loop.call_soon(take, early)
        loop.add_reader(self._channel.fileno(), lambda: take(self._channel.take(wait=False)))
        await host.open()
        self._watch(host)
        await host.serve()

    def _watch(self, core: VllmCore | StreamHost) -> None:
        """Send the core's beats from now on, and watch the processes that it started."""
        others = (preparers.NAME, serving.NAME)
        self._children = [child for child in multiprocessing.active_children() if child.name not in others]
        self._core = core

    def _serve(self, core: VllmCore, messages: deque[Any]) -> None:
        while True:
            messages.extend(self._channel.take(wait=not messages and not core.can_step))
            while messages:
                refused = None
                match messages.popleft():
                    case Generate() as message:
                        refused = core.add(message)
                    case Ready() as ready:
                        refused = core.add_ready(ready)
                    case WarmUp(request):
                        self._channel.send(Warm(core.warm_up(request)))
                    case Open() as order:
                        self._channel.send(core.rejoin(order))
                    case AbortAll():
                        core.abort_all()
                        self._channel.send(Aborted())
                    case Close():
                        self._closing = True
                        core.close()
                        return
                if refused is not None:
                    self._channel.send(Finished([refused]))
            if core.can_step:
                self._step(core)

    def _step(self, core: VllmCore) -> None:
        finished = core.step()
        if core.in_flight == 0:
            self._put_beat(core)  # before the last completion, after which the worker may stop listening
        if finished:
            self._channel.send(Finished(finished))

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_INTERVAL_S)
            if self._core is not None:
                self._put_beat(self._core)
                self._check_children()

    def _check_children(self) -> None:
        """End the host if one of vLLM's processes is dead: vLLM's synchronous client would wait for it forever."""
        dead = [child for child in self._children if not child.is_alive()]
        if not dead or self._closing:
            return
        time.sleep(DEAD_CHILD_GRACE_S)
        exits = ", ".join(f"{child.name} (exit code: {child.exitcode})" for child in dead)
        print(f"vLLM's process died: {exits}", file=sys.stderr, flush=True)
        self._channel.send(tell_failure(EngineGoneError(f"vLLM's process died: {exits}")))
        time.sleep(BEAT_INTERVAL_S)
        os._exit(1)

    def _put_beat(self, core: VllmCore | StreamHost) -> None:
        self._channel.send(Beat(core.sample()))


def tell_failure(error: Exception) -> Failed:
    """Return the message that reports a failed engine to the worker."""
    is_gone = isinstance(error, EngineGoneError) or is_engine_dead(error)
    return Failed(type(error).__name__, str(error), Witness.LOG if is_gone else Witness.EXCEPTION)


def make_core(order: Open, tell: Callable[[Resolved], object]) -> StreamCore:
    """Return the streaming core that an order asks for. Its libraries are imported when it opens."""
    if order.engine.is_served:
        from assayline.engines.host.server.core import ServerCore

        return ServerCore(order)
    from assayline.engines.host.vllm.async_core import AsyncCore

    return AsyncCore(order, tell)


def try_orders() -> None:
    """Write why each order on standard input would be refused, without loading its model; None if it would not be."""
    answer = os.dup(1)
    os.dup2(2, 1)  # vLLM prints
    orders: list[Open] = pickle.load(sys.stdin.buffer)
    found = []
    for order in orders:
        before = dict(os.environ)
        os.environ.update(order.engine.env)
        found.append(try_order(order))
        os.environ.clear()
        os.environ.update(before)
    with open(answer, "wb") as out:
        pickle.dump(found, out)
    os._exit(0)


def main(descriptor: int) -> None:
    """Serve the worker at the other end of a socket, then exit."""
    note_engine(os.environ)
    if limit := os.environ.get(MEMORY_LIMIT):
        resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))
    code = Host(HostChannel(descriptor)).run()
    sys.stdout.flush()
    os._exit(code)  # vLLM's interpreter-exit handlers have nothing left to do and can hang


if __name__ == "__main__":
    main(int(sys.argv[1])) if len(sys.argv) > 1 else try_orders()
