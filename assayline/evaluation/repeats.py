"""Repeats of a prompt wait for its first answer, which predicts the length of theirs.

Part of the dispatcher. Without lengths from earlier runs, each prompt is asked once before any prompt is asked again.
Then come prompts whose first answer is still being generated, because those are longer than the finished ones, and then
the others, longest first. No engine waits: if there is nothing new, or enough is held, a held request is asked. Repeats
of one prompt still follow each other, so that a prefix cache is asked for each prompt twice, not once per repeat.

Played through, 200 to 1,000 prompts with two to eight repeats took 1.00 to 1.29 times the fewest steps that there can
be, in the mean of 8, and in the order given 1.02 to 1.54 times (docs/ordering.md). What has an expected length already
is not held.
"""

import heapq
from dataclasses import dataclass, field, replace

from assayline.evaluation.order import HORIZON_SHARDS, expected_tokens
from assayline.records import Completion, Request
from assayline.requests.build import repeats_per_prompt
from assayline.spec.evaluation import EvalSpec

WINDOWS_HELD = 2
"""Most requests held back for one of several workers, in windows."""


@dataclass(slots=True)
class _Group:
    """Repeats of one prompt that are held back."""

    held: list[Request] = field(default_factory=list)
    output_tokens: int | None = None
    """Of the first answer, once it is there."""


class Repeats:
    """Requests of one worker's prompts that are held back: `hold` takes them in, `release` gives the best one."""

    def __init__(self, most_held: int) -> None:
        """With 0 nothing is held back."""
        self._most_held = most_held
        self.held = 0
        self._key: tuple[str, int] | None = None
        self._group = _Group()
        """Of the prompt that came last."""
        self._asked: dict[str, _Group] = {}
        """By the request that was asked first, while it is in flight."""
        self._unknown: dict[int, _Group] = {}
        """Groups that wait for that answer, in the order of their prompts."""
        self._known: list[tuple[int, int, Request]] = []
        """A heap: the longest first, and equals as they came."""
        self._count = 0

    @property
    def has_room(self) -> bool:
        """Whether another request may be held back."""
        return self.held < max(1, self._most_held)

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

    def hold(self, request: Request) -> bool:
        """Holds a request back, unless it is its prompt's first, or has a place of its own."""
        if not self._most_held or request.expected_output_tokens is not None or request.option_index is not None:
            return False
        key = (request.prompt_id, request.occurrence)
        if key != self._key:
            self._key, self._group = key, _Group()
            self._asked[request.request_id] = self._group
            return False
        self.held += 1
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

    def release(self) -> Request | None:
        """The request to ask next; None if none is held."""
        if not self.held:
            return None
        self.held -= 1
        if not self._unknown:
            return heapq.heappop(self._known)[2]
        place, group = next(iter(self._unknown.items()))
        request = group.held.pop(0)
        if not group.held:
            del self._unknown[place]
        return request

    def drain(self) -> list[Request]:
        """Gives up all held requests, for another worker."""
        return list(iter(self.release, None))


def most_held(spec: EvalSpec, workers: int, window_requests: int | None) -> int:
    """How many requests are held back for a worker with such a window; 0 if the order is not by length."""
    if not spec.is_longest_first or repeats_per_prompt(spec) == 1:
        return 0
    most = HORIZON_SHARDS * spec.shard_requests
    return most if workers == 1 else min(most, WINDOWS_HELD * (window_requests or 0))
