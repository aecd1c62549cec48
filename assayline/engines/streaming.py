"""StreamingEngine: an engine that answers token by token, fed by an arrival pattern.

In an open loop every request has a moment at which it is due. It is handed to the host up to `LOOKAHEAD_S` before that,
and the host sends it on time; no window holds it back. In a closed loop the host keeps the window full, and a surplus
waits there so that it never waits for this process.
"""

import contextlib
from collections.abc import Generator, Iterable, Iterator

from assayline.engines.base import EngineHooks, Feed
from assayline.engines.client import HostedEngine
from assayline.engines.messages import Generate, Open, Opened, StopSending, unsent
from assayline.engines.parking import ParkingLot
from assayline.engines.process import HostSetup
from assayline.errors import EngineError
from assayline.load.course import LoadCourse, LoadEnd
from assayline.load.saturation import SaturationWatch
from assayline.load.schedule import Schedule
from assayline.records import NOT_SENT, Completion, Request, TelemetrySample

LOOKAHEAD_S = 3.0
"""How long before it is due a request is handed to the host: longer than this process ever stops to store results."""
MIN_SURPLUS_REQUESTS = 16
"""In a closed loop at least so many wait in the host, or as many as its window."""
REQUESTS_PER_TURN = 64
"""Handed over in one go before results are taken in."""
TURN_INTERVAL_S = 0.02
"""How soon the input and the clock are looked at again, results or not."""


class StreamingEngine(HostedEngine):
    """vLLM's async engine, every token with its stamp, or an OpenAI-compatible endpoint: what the order says."""

    def __init__(
        self,
        order: Open,
        setup: HostSetup,
        hooks: EngineHooks = EngineHooks(),  # noqa: B008 - frozen
        *,
        window: int | None = None,
        course: LoadCourse | None = None,
        lot: ParkingLot | None = None,
    ) -> None:
        """`course` is the load and how far it is; None: a closed loop without end."""
        self._course = course or LoadCourse()
        self._watch: SaturationWatch | None = None
        self._finished = 0
        self._is_stopping = self._is_late = False
        super().__init__(order, setup, hooks, window, lot)

    def generate(self, requests: Iterable[Request | None]) -> Iterator[Completion]:
        """Answers every request once, in completion order; those that a load leaves unsent are `not_sent` rows."""
        feed, schedule = Feed(requests), Schedule(self._course)
        self._watch = SaturationWatch() if self._course.watches_saturation else None
        self._is_stopping = False
        self._finished = 0
        with self._generating():
            while True:
                has_more = yield from self._take_turn(feed, schedule)
                if feed.exhausted and not self._in_flight:
                    return
                for completion in self._receive_finished(0.0 if has_more else TURN_INTERVAL_S):
                    yield self._settle(completion)
                self._check_stop()

    @property
    def may_park(self) -> bool:
        """Whether another run can use this engine: what our own server has cached cannot be told to go."""
        is_own = self._order.server is not None and self._order.server.url is None
        return not is_own or self._order.args.get("enable_prefix_caching") is False

    def _first_window(self, opened: Opened) -> int | None:
        return None if self._course.is_open_loop else super()._first_window(opened)

    def _take_turn(self, feed: Feed, schedule: Schedule) -> Generator[Completion, None, bool]:
        """Hands over what may go to the host now; of a load that has ended, yields the input's rows.

        Returns whether there is more to do at once.
        """
        for _ in range(REQUESTS_PER_TURN):
            now_s = self._order.clock.now_s()
            self._course.check_time(now_s)
            if self._course.end is not None:
                self._take_back(self._course.end)
            elif not self._has_room(feed, schedule, now_s):
                return False
            request = feed.next()
            if request is None:
                self._note_lateness(feed, schedule, now_s)
                return False
            due_s = schedule.place(now_s, request)
            if self._course.end is not None:
                order, message = self._order, self._course.end.message
                yield self._settle(unsent(request.request_id, order.worker, order.engine_generation, message))
            elif not self._hand_over(Generate(request, now_s, self._window_requests, due_s)):
                return False
        return True

    def _has_room(self, feed: Feed, schedule: Schedule, now_s: float) -> bool:
        """Whether the host may have another request now."""
        if self._window_requests is None:
            due_s = schedule.next_due_s(feed.peek() if schedule.reads_requests else None)
            return due_s is None or due_s <= now_s + LOOKAHEAD_S
        surplus = max(self._window_requests, MIN_SURPLUS_REQUESTS)
        return self._in_flight < self._window_requests + surplus

    def _hand_over(self, message: Generate) -> bool:
        """False if the host is gone: what it sent before is read first, and after that reading says so."""
        self._in_flight += 1
        if self._watch is not None and message.due_at_s is not None:
            self._watch.expect(message.due_at_s)
        try:
            self._host.send(message)
        except EngineError:
            return False
        return True

    def _take_back(self, end: LoadEnd) -> None:
        """Takes back what waits in the host, if the end came suddenly."""
        if end.is_sudden and not self._is_stopping:
            self._is_stopping = True
            with contextlib.suppress(EngineError):  # it died: reading says so
                self._host.send(StopSending(end.message))

    def _settle(self, completion: Completion) -> Completion:
        """Counts what is over; the first row that was not sent is when the load's end is told."""
        course = self._course
        course.settle(completion)
        if completion.error_kind != NOT_SENT:
            self._finished += 1
            if self._watch is not None and completion.due_at_s is not None:
                self._watch.finish(completion.due_at_s, self._order.clock.now_s())
        elif course.end is not None and not course.is_announced:
            course.is_announced = True
            self._hooks.on_load_ended(course.end)
        return completion

    def _note_lateness(self, feed: Feed, schedule: Schedule, now_s: float) -> None:
        """Says, once, that there was nothing to send although something was due."""
        due_s = schedule.next_due_s()
        if not feed.exhausted and not self._is_late and due_s is not None and due_s <= now_s:
            self._is_late = True
            self._hooks.on_note(
                "Prompts are prepared more slowly than they are due: requests are sent late (send lag says how much). "
                "Ask for a lower rate, or for smaller shards (shard_requests)"
            )

    def _observe(self, sample: TelemetrySample) -> None:
        if self._watch is None or self._course.end is not None:
            return
        if why := self._watch.observe(sample.at_s, sample.in_flight_requests, self._finished):
            self._course.stop("saturated", why)
