"""Dispatcher: assigns requests to workers and collects their rows.

It lives in the flow's process. For each worker, `drive.py` calls `exchange` repeatedly: it hands over new rows and gets
the worker's next requests. The dispatcher alone decides the order: shards by name or the longest first, each turn
of a conversation after the answer to the previous turn, and after a resume only the requests without an answer.

Each worker reads its own shard, so that prompts with a common prefix stay on one engine; when no shard is left, it
reads shards of other workers. A request has one owner at a time. If the owner is lost, its requests go to other
workers. A request that was in flight when two workers were lost is sent alone; at the third loss it becomes an error
row.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from assayline.engines.messages import unsent
from assayline.errors import EngineError
from assayline.load.arrivals import count_most
from assayline.records import Completion, Request
from assayline.requests.chat import Renderer
from assayline.run.order import Conversations, read_shard, shard_priority
from assayline.run.progress import Progress, RunStatus
from assayline.spec.evaluation import EvalSpec
from assayline.store.parts import read_texts

KILLED_WORKER = "killed_worker"
"""error_kind of a request that was in flight at the loss of each of several workers."""

LOSSES_UNTIL_ALONE, MOST_LOSSES = 2, 3
SURPLUS_REQUESTS = 16
"""Minimum requests that a worker holds beyond its window, ready when others finish."""

WAIT_POLL_S = 0.1

OPEN_LOOP_REQUESTS = 1024
"""Requests that wait in a worker without a window: in an open loop, any number may be in flight."""

AHEAD_BYTES = 2**31
"""Part files of requests that are ready before an open loop begins, unless all that it can send are."""


@dataclass(slots=True)
class _ShardReader:
    """A shard that is being read."""

    rows: Iterator[Request] = field(default_factory=lambda: iter(()))
    is_read: bool = True

    def next(self) -> Request | None:
        """Return the next unanswered request; None at the end."""
        request = next(self.rows, None)
        self.is_read = request is None
        return request


@dataclass(slots=True)
class _WorkerQueue:
    """One worker's requests: those that it holds, and those that it gets next."""

    held: dict[str, Request] = field(default_factory=dict)
    """Requests handed out and not answered, in the order of handing out."""
    ready: deque[Request] = field(default_factory=deque)
    """Next turns of conversations whose previous turn this worker answered."""
    shard: _ShardReader = field(default_factory=_ShardReader)
    window_requests: int | None = None
    generation: int = 0
    """Generation of its newest engine that answered."""
    is_isolating: bool = False
    """Whether it holds a request that must be sent alone."""


class Dispatcher:
    """One run's requests in one attempt. Thread-safe."""

    def __init__(
        self,
        spec: EvalSpec,
        run_dir: Path,
        keep: Callable[[Completion], None],
        open_renderer: Callable[[], Renderer],
    ) -> None:
        """Create a dispatcher without shards; `keep` receives each row that counts, once."""
        self._spec = spec
        self._run_dir = run_dir
        self._keep = keep
        self.workers = 1
        """Number of workers planned."""
        self._lock = threading.RLock()
        self._queues: dict[str, _WorkerQueue] = {}
        self._conversations = Conversations(open_renderer, spec.chat.prefill, self._fail_turn)
        self._sender = ("", 0)
        """Worker and generation for the row of a turn that is not sent."""
        self._pending: list[tuple[Path, frozenset[str]]] = []
        """Shards that no worker reads yet, with their answered requests; the last one is next."""
        self._abandoned: list[_ShardReader] = []
        """Partly read shards of workers that are gone."""
        self._requeued: deque[Request] = deque()
        self._isolated: deque[Request] = deque()
        self._losses: Counter[str] = Counter()
        self._failed: set[str] = set()
        """Workers that ended with an error."""
        self._rows: list[Completion] = []
        """Rows that count and are not yet passed to `keep`."""
        self._killers = 0
        self._prepared = self._unread = self._prepared_bytes = 0
        self._needed = count_most(spec.load) if spec.load is not None and spec.load.is_open_loop else 0
        """Requests to prepare before the first is sent."""
        self._is_closed = False
        self._stopped = threading.Event()
        self.progress = Progress()

    def add_shard(self, path: Path, requests: int, answered: frozenset[str] = frozenset(), errors: int = 0) -> None:
        """Add a shard of `requests` requests; those in `answered` are not sent again.

        `errors` is the number of error rows among these that are not counted yet.
        """
        with self._lock:
            self._prepared += requests
            self._prepared_bytes += path.stat().st_size
            self.progress.answered += len(answered)
            self.progress.errors += errors
            if requests > len(answered):
                self._unread += requests - len(answered)
                self._pending.append((path, answered))
                self._pending.sort(key=lambda pending: shard_priority(pending[0]), reverse=True)

    def add_answered(self, requests: int) -> None:
        """Count the requests of a shard whose requests are all answered."""
        with self._lock:
            self._prepared += requests
            self.progress.answered += requests

    def close(self) -> None:
        """Declare that no more shards will be added."""
        with self._lock:
            self._is_closed = True

    def stop(self) -> None:
        """Stop handing out requests, so that workers end now."""
        self._stopped.set()

    def wait_for_end(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for the last row or for `stop`. Return whether either came."""
        deadline = time.monotonic() + wait_s
        while not (has_ended := self.is_over or self.is_stopped) and time.monotonic() < deadline:
            self._stopped.wait(WAIT_POLL_S)
        return has_ended

    @property
    def is_stopped(self) -> bool:
        """Return True if `stop` was called."""
        return self._stopped.is_set()

    @property
    def is_over(self) -> bool:
        """Return True if every request has its row."""
        with self._lock:
            waiting = (self._pending, self._abandoned, self._requeued, self._isolated, self._conversations.held)
            if not self._is_closed or any(waiting):
                return False
            return not any(queue.held or queue.ready or not queue.shard.is_read for queue in self._queues.values())

    def exchange(
        self, worker: str, finished: Iterable[Completion], window: int | None, waiting: int = 0
    ) -> list[Request]:
        """Take a worker's rows and return its next requests.

        `window` is the maximum of requests in flight in its engine; None in an open loop, 0 if it wants none. `waiting`
        is the number of requests that its engine has not taken. A row of
        a request that the worker does not hold is dropped: another worker has the request, or has answered it.
        Raises StoreError, and EngineError if too many requests lose their workers.
        """
        with self._lock:
            if window == 0 and worker not in self._queues:
                return []
            queue = self._find_queue(worker, window)
            self._sender = (worker, queue.generation)
            for completion in finished:
                if queue.held.pop(completion.request_id, None) is not None:
                    self._settle(queue, completion)
            queue.is_isolating = queue.is_isolating and bool(queue.held)
            has_none = self.is_stopped or window == 0 or not self._is_ready()
            given = [] if has_none else self._hand_out(queue, waiting)
        self._keep_rows()
        return given

    def lose(self, worker: str) -> None:
        """Record the loss of a worker and requeue its requests. Raises EngineError as `note_killer` does."""
        with self._lock:
            self.progress.lose(worker)
            queue = self._queues.get(worker)
            held = list(queue.held.values()) if queue else []
            window = len(held) if queue is None or queue.window_requests is None else queue.window_requests
            for request in held[:window]:
                self._losses[request.request_id] += 1
            self._give_back(worker)
            for request in held:
                if self._losses[request.request_id] >= MOST_LOSSES:
                    self._give_up(worker, request, self._losses.pop(request.request_id))
        self._keep_rows()

    def fail(self, worker: str) -> bool:
        """Record that a worker, already lost, is not replaced. Return True if the run goes on without it."""
        with self._lock:
            self._failed.add(worker)
            return not self.is_stopped and (self.is_over or len(self._failed) < self.workers)

    def leave(self, worker: str) -> None:
        """Record that the worker ended normally."""
        with self._lock:
            self._give_back(worker)
            self.progress.leave(worker)

    def join(self, worker: str, device: str) -> None:
        """Record that the worker opened its engine on a device."""
        with self._lock:
            self.progress.join(worker, device)

    def set_phase(self, worker: str, phase: str) -> None:
        """Record the phase of an engine's start; empty when the engine is ready."""
        with self._lock:
            self.progress.set_phase(worker, phase)

    def snapshot(self) -> RunStatus:
        """Return the progress of the run."""
        with self._lock:
            return self.progress.snapshot()

    def note_killer(self, why: str) -> None:
        """Count a request that killed engines or workers and became an error row.

        Too many stop the run: raises EngineError.
        """
        with self._lock:
            self._killers += 1
            if self._killers > max(1.0, self._spec.max_error_share * self._prepared):
                self.stop()
                raise EngineError(
                    f"{self._killers} requests killed their engines or workers, more than max_error_share allows. "
                    f"The last one: {why}. hint: fix the cause, then run the same command again to resume the run; "
                    "stored answers are kept."
                )

    def _find_queue(self, worker: str, window: int | None) -> _WorkerQueue:
        queue = self._queues.setdefault(worker, _WorkerQueue())
        if window != 0:  # 0 after the engine's end: requests that were in flight still count if the worker is lost
            queue.window_requests = window
        self.progress.set_window(worker, window)
        return queue

    def _give_back(self, worker: str) -> None:
        """Return a worker's requests, held or next, to the queues for other workers."""
        queue = self._queues.pop(worker, None)
        if queue is None:
            return
        if not queue.shard.is_read:
            self._abandoned.append(queue.shard)
        losses = [self._losses[request.request_id] for request in queue.held.values()]
        held = list(zip(queue.held.values(), losses, strict=True))
        again = [request for request, lost in held if lost < LOSSES_UNTIL_ALONE]
        self._requeued.extendleft(reversed([*again, *queue.ready]))
        self._isolated.extend(request for request, lost in held if LOSSES_UNTIL_ALONE <= lost < MOST_LOSSES)

    def _settle(self, queue: _WorkerQueue, completion: Completion) -> None:
        self._losses.pop(completion.request_id, None)
        queue.generation = completion.engine_generation
        self._count(completion)
        if (turn := self._conversations.settle(completion)) is not None:
            queue.ready.append(turn)

    def _count(self, completion: Completion) -> None:
        self.progress.add(completion)
        self._rows.append(completion)

    def _keep_rows(self) -> None:
        """Pass new rows to `keep`, outside the lock, because writing is slow."""
        with self._lock:
            rows, self._rows = self._rows, []
        for row in rows:
            self._keep(row)

    def _is_ready(self) -> bool:
        """Return whether sending may begin: an open loop would be held up by the preparation of its requests."""
        return self._is_closed or self._prepared_bytes >= AHEAD_BYTES or self._prepared >= self._needed

    def _hand_out(self, queue: _WorkerQueue, waiting: int) -> list[Request]:
        if queue.is_isolating:
            return []
        given: list[Request] = []
        room, batch = self._find_room(queue, waiting), self._find_batch(queue)
        room -= room % batch
        while len(given) < room and (request := self._next(queue)) is not None:
            given.append(request)
        while len(given) % batch and (queue.held or not self._is_closed):
            queue.ready.appendleft(given.pop())  # the rest of the batch is still to come
        if not given and not queue.held and self._isolated:
            given.append(self._isolated.popleft())
            queue.is_isolating = True
        queue.held.update((request.request_id, request) for request in given)
        return given

    def _find_room(self, queue: _WorkerQueue, waiting: int) -> int:
        """Return how many requests to hand out: at least the free window, beyond it a share of those left."""
        if queue.window_requests is None:
            return OPEN_LOOP_REQUESTS - waiting
        free = queue.window_requests - len(queue.held)
        surplus = max(queue.window_requests, SURPLUS_REQUESTS)
        workers = max(self.workers, len(self._queues))
        if workers == 1:
            return free + surplus
        return max(free, min(free + surplus, math.ceil(self._unread / (2 * workers))))

    def _find_batch(self, queue: _WorkerQueue) -> int:
        """Return the requests that are handed out together: in mode barrier, a batch of the engine."""
        return (queue.window_requests or 1) if self._spec.engine.mode == "barrier" else 1

    def _next(self, queue: _WorkerQueue) -> Request | None:
        """Return the next request for this worker; None if there is none now."""
        if queue.ready:
            return queue.ready.popleft()
        if self._requeued:
            return self._requeued.popleft()
        while (request := self._read(queue)) is not None:
            if request.turn_index is None:
                return request
            if (turn := self._conversations.add(request)) is not None:
                return turn
        return None

    def _read(self, queue: _WorkerQueue) -> Request | None:
        """Read the next request: from the worker's own shard, else an unread one, else another worker's."""
        request = queue.shard.next()
        while request is None and (self._abandoned or self._pending):
            queue.shard = self._abandoned.pop() if self._abandoned else self._begin_shard()
            request = queue.shard.next()
        others = iter(self._queues.values())
        while request is None and (other := next(others, None)) is not None:
            request = other.shard.next()
        self._unread -= request is not None
        return request

    def _begin_shard(self) -> _ShardReader:
        path, answered = self._pending.pop()
        return _ShardReader(read_shard(path, answered, partial(read_texts, self._run_dir)), is_read=False)

    def _fail_turn(self, request: Request, error_kind: str, why: str, prompt_tokens: int | None) -> None:
        self._count(unsent(request.request_id, *self._sender, why, error_kind, prompt_tokens))

    def _give_up(self, worker: str, request: Request, losses: int) -> None:
        words = f"Request {request.request_id} was in flight at the loss of {losses} workers"
        row = unsent(request.request_id, worker, 0, words, KILLED_WORKER, len(request.prompt_token_ids) or None)
        self._sender = (worker, 0)
        self._count(row)
        if (turn := self._conversations.settle(row)) is not None:
            self._requeued.append(turn)
        self.note_killer(words)
