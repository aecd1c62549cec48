"""Repeats of a prompt wait for its first answer, which says how long theirs will be.

    queue.pull()  ──►  feed: later repeats are held back  ──►  engine.generate()
                              ▲ settle: how long it was           │
                              └───────────────────────────────────┘

A run that nobody has run before knows no lengths, and a prompt that is asked several times tells its own. So each
prompt is asked once before any is asked again. Then come prompts whose first answer is still being written, as those
are longer than what has ended, and then the others, the longest first. The engine never waits: where the queue has
nothing new, or enough is held, it is given what there is. Repeats of one prompt still follow each other, so a prefix
cache is asked for each prompt twice, not once per repeat.

Played through, 200 to 1,000 prompts with two to eight repeats took 1.00 to 1.29 times the fewest steps that there can
be, in the mean of 8, and in the order given 1.02 to 1.54 times (docs/ordering.md). What has an expected length already
is not held.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from assayline.evaluation.order import HORIZON_SHARDS, expected_tokens
from assayline.evaluation.orders import WorkOrder
from assayline.records import Completion, Request
from assayline.requests.build import repeats_per_prompt

WINDOWS_HELD = 2
"""How much a worker that is not alone holds back, in windows: a late one is to find something in the queue."""


@dataclass(slots=True)
class _Group:
    """Repeats of one prompt that are held back."""

    held: list[Request] = field(default_factory=list)
    output_tokens: int | None = None
    """Of the first answer, once it is there."""


class Repeats:
    """Between a worker's queue and its engine: `feed` is what the engine reads, `settle` hears of every answer."""

    def __init__(self, most_held: int) -> None:
        """With 0 nothing is held back."""
        self._most_held = most_held
        self._held = 0
        self._key: tuple[str, int] | None = None
        self._group = _Group()
        """Of the prompt that came last."""
        self._asked: dict[str, _Group] = {}
        """By the request that was asked first, as long as that is under way."""
        self._unknown: dict[int, _Group] = {}
        """Groups that wait for that answer, in the order of their prompts."""
        self._known: list[tuple[int, int, Request]] = []
        """A heap: the longest first, and equals as they came."""
        self._count = 0

    @classmethod
    def of(cls, order: WorkOrder, window_requests: int | None) -> "Repeats":
        """As a worker's run asks for, with an engine of this window."""
        spec = order.spec
        if not spec.is_longest_first or repeats_per_prompt(spec) == 1:
            return cls(0)
        most = HORIZON_SHARDS * spec.shard_requests
        return cls(most if order.is_alone else min(most, WINDOWS_HELD * (window_requests or 0)))

    @property
    def holds(self) -> bool:
        """Whether anything may be held back at all."""
        return self._most_held > 0

    def feed(self, requests: Iterator[Request | None]) -> Iterator[Request | None]:
        """What is to be asked now; None: nothing now."""
        is_open = True
        while is_open or self._held:
            while is_open and (self._held < self._most_held or not self.holds):
                try:
                    request = next(requests)
                except StopIteration:
                    is_open = False
                    break
                if request is None:
                    break
                if not self._hold(request):
                    yield request
            if self._held:
                yield self._release()
            elif is_open:
                yield None

    def settle(self, completion: Completion) -> None:
        """A request is answered: its prompt's other repeats have a length from now on."""
        group = self._asked.pop(completion.request_id, None)
        if group is None:
            return
        group.output_tokens = completion.output_tokens or 0
        self._unknown.pop(id(group), None)
        for request in group.held:
            self._push(request, group.output_tokens)
        group.held = []

    def _hold(self, request: Request) -> bool:
        """Holds a request back, unless it is its prompt's first, or has a place of its own."""
        if not self.holds or request.expected_output_tokens is not None or request.option_index is not None:
            return False
        key = (request.prompt_id, request.occurrence)
        if key != self._key:
            self._key, self._group = key, _Group()
            self._asked[request.request_id] = self._group
            return False
        self._held += 1
        if self._group.output_tokens is not None:
            self._push(request, self._group.output_tokens)
        else:
            self._group.held.append(request)
            self._unknown[id(self._group)] = self._group
        return True

    def _push(self, request: Request, output_tokens: int) -> None:
        self._count += 1
        limited = expected_tokens(replace(request, expected_output_tokens=max(1, output_tokens)))
        heapq.heappush(self._known, (-limited, self._count, request))

    def _release(self) -> Request:
        self._held -= 1
        if not self._unknown:
            return heapq.heappop(self._known)[2]
        place, group = next(iter(self._unknown.items()))
        request = group.held.pop(0)
        if not group.held:
            del self._unknown[place]
        return request
