"""StreamHost: the schedule inside an engine host. It sends each request when it is due, or when there is room.

Time is kept here, next to the engine, because the worker's process serves a database and Prefect, and may be late. A
request with `due_at_s` is sent at that moment, regardless of other requests in flight; one without is sent as soon as
fewer than its `window_requests` are in flight. Requests are sent in the order of their arrival, later turns of
conversations first. Each is a task of the one event loop, and nothing here waits for anything else.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import Any

from assayline.engines.host.core import StreamCore
from assayline.engines.messages import (
    AbortAll,
    Aborted,
    Beat,
    Close,
    Finished,
    Generate,
    Open,
    StopSending,
    Warm,
    WarmUp,
    unsent,
)
from assayline.records import Completion, TelemetrySample

TICK_S = 0.01
"""Interval at which the loop's lag, the time that events wait to be read, is measured while requests are in flight."""


class StreamHost:
    """One core and its waiting requests. Everything but the constructor and `sample` runs in the event loop."""

    def __init__(self, core: StreamCore, order: Open, put: Callable[[Any], None]) -> None:
        """Keep `put`, which sends messages to the worker."""
        self._core = core
        self._order = order
        self._put = put
        self._waiting: deque[Generate] = deque()
        self._live: set[asyncio.Task[Completion]] = set()
        self._finished: list[Completion] = []
        self._timer: asyncio.TimerHandle | None = None
        self._first_tick: float | None = None
        self._ticks = 0
        self._lags_s: list[float] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Open the core and report it to the worker. Raises what the core raises."""
        self._over = asyncio.get_running_loop().create_future()
        opened = await self._core.open()
        gc.collect()
        gc.freeze()  # an engine's objects stay: scanning them again would delay the loop for nothing
        self._put(opened)

    async def serve(self) -> None:
        """Serve until `Close`. Raises the error that ends the core."""
        assert self._over is not None, "open comes first"
        await self._over
        await self._core.close()

    def sample(self) -> TelemetrySample:
        """Return the core's counters, and the loop's lags since the last sample. Also called in another thread."""
        lags_s, self._lags_s = self._lags_s, []
        return replace(self._core.sample(), loop_lags_s=[round(lag_s, 6) for lag_s in lags_s])

    def take(self, message: Any) -> None:
        """Carry out one message of the worker."""
        match message:
            case Generate():
                self._waiting.insert(self._find_place(message), message)
                self._send_due()
            case WarmUp(request):
                self._run(self._warm_up(request))
            case Open() as order:
                self._run(self._rejoin(order))
            case StopSending(reason):
                self._give_back(reason)
            case AbortAll():
                self._run(self._abort())
            case Close():
                self._finish()

    def _find_place(self, message: Generate) -> int:
        """Return the queue position: the end, or for a later turn of a conversation, behind other later turns."""
        if not message.request.turn_index:
            return len(self._waiting)
        return sum(1 for _ in takewhile(lambda waiting: waiting.request.turn_index, self._waiting))

    def _send_due(self) -> None:
        """Send all requests that may be sent now, and set the alarm for the next one."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            message = self._waiting[0]
            if message.due_at_s is not None:
                due = self._order.clock.started_monotonic_s + message.due_at_s
                if due > loop.time():
                    self._set_alarm(due)
                    return
            elif message.window_requests is not None and len(self._live) >= message.window_requests:
                return
            self._waiting.popleft()
            task = loop.create_task(self._answer(message))
            self._live.add(task)
            task.add_done_callback(self._end)
            if self._first_tick is None:
                self._first_tick, self._ticks = loop.time(), 0
                loop.call_at(self._first_tick, self._tick)

    def _tick(self) -> None:
        """Note the loop's lag. A loop that is blocked for 200 ms is late for all 20 ticks in that time."""
        assert self._first_tick is not None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while (due := self._first_tick + self._ticks * TICK_S) <= now:
            self._lags_s.append(now - due)
            self._ticks += 1
        if self._live:
            loop.call_at(due, self._tick)
        else:
            self._first_tick = None

    def _set_alarm(self, due: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._send_due()

    async def _answer(self, message: Generate) -> Completion:
        completion = await self._core.answer(message)
        return replace(completion, due_at_s=message.due_at_s) if message.due_at_s is not None else completion

    def _end(self, task: asyncio.Task[Completion]) -> None:
        self._live.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fail(error)
        else:
            self._send_due()
            self._report(task.result())

    def _report(self, completion: Completion) -> None:
        """Report a completion to the worker, together with all that finish in the same turn of the loop."""
        self._finished.append(completion)
        if len(self._finished) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if not self._live and not self._waiting:
            self._put(Beat(self.sample()))  # before the last completion, after which the worker may stop listening
        if self._finished:
            self._put(Finished(self._finished))
            self._finished = []

    def _give_back(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._cancel_alarm()
        for message in waiting:
            self._report(unsent(message.request.request_id, self._order.worker, self._order.engine_generation, reason))

    async def _abort(self) -> None:
        self._waiting.clear()
        self._cancel_alarm()
        live = list(self._live)
        for task in live:
            task.cancel()
        await asyncio.gather(*live, return_exceptions=True)
        self._finished.clear()
        self._put(Aborted())

    async def _warm_up(self, request: Any) -> None:
        self._put(Warm(await self._core.warm_up(request)))

    async def _rejoin(self, order: Open) -> None:
        opened = await self._core.rejoin(order)
        self._order = order
        self._put(opened)

    def _run(self, errand: Any) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._end_errand)

    def _end_errand(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End with the core's error. Everything in flight is lost; earlier completions are reported first."""
        self._flush()
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    def _finish(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _cancel_alarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
