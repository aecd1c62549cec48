"""Which requests the engine gets now, and which are held back, as the KV cache would not hold their answers.

vLLM takes a request in as soon as its prompt has room. When answers outgrow the cache, it preempts the newest, and all
tokens of that are computed again. Where answers' lengths are known, a request can begin when it will not be preempted.
That saves tokens and costs steps, so it is worth it where a token costs much beside its step: on a GPU, which reads its
weights for each step, one may cost 1/400 of a step; on a CPU it is 1/50 to 1/10. `StepCost` measures it. Where that is
too little (`LEAST_COSTS`), or answers are alike or unknown, nothing is held back. `benchmarks/cache_admission.py` plays
both ways through; these numbers were chosen by it.
"""

import math
from dataclasses import dataclass

import numpy as np

GROUP_STEPS = 8
"""Steps that are timed together: one alone is noisy, and an engine that works ahead answers for the step before."""

FIRST_GROUPS, LAST_GROUPS = 16, 64
"""Groups before the cost is known at all, and after which it is known for good."""

LEAST_COSTS = ((0.45, 0.015), (0.3, 0.04))
"""Spread of lengths (standard deviation over mean), and the least cost of a token, in steps, from which holding back is
worth it. What costs less is cheaper computed again than seats are that stay empty. The less lengths differ, the more
answers that begin together end together and leave the cache empty; preemptions bring them out of step."""

LATE_SHARE = 0.25
"""An answer that is longer than expected is taken to go on for this share of what it has."""

TRIES = 16
"""Held requests that are looked at after one that does not fit, and steps after which all are looked at again."""

PATIENCE_REQUESTS = 1000
"""That may begin before the first that is held back; then all others wait for it."""


class StepCost:
    """What a token costs beside its step, by the steps' own times: seconds of a step = fixed + tokens × each.

    The slope is the median of those between any two groups of steps (Theil–Sen), so that a stall does not bend it.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[float, float]] = []  # tokens and seconds of a step, means of a group
        self._steps = self._tokens = 0
        self._seconds = 0.0
        self.token_steps: float | None = None
        """A token's cost in steps; None as long as it is not known."""

    def add(self, tokens: int, seconds: float) -> None:
        """One step, and the tokens that it computed."""
        if len(self._groups) == LAST_GROUPS:
            return
        self._steps, self._tokens, self._seconds = self._steps + 1, self._tokens + tokens, self._seconds + seconds
        if self._steps == GROUP_STEPS:
            self._groups.append((self._tokens / GROUP_STEPS, self._seconds / GROUP_STEPS))
            self.forget_group()
            if len(self._groups) >= FIRST_GROUPS:
                self.token_steps = self._fit()

    def forget_group(self) -> None:
        """Steps since the last group computed more tokens than was said."""
        self._steps, self._tokens, self._seconds = 0, 0, 0.0

    def _fit(self) -> float | None:
        tokens, seconds = np.array(self._groups).T
        first, second = np.triu_indices(len(tokens), 1)
        apart = np.abs(tokens[first] - tokens[second]) > 1.0
        if not apart.any():
            return None
        slopes = (seconds[second] - seconds[first])[apart] / (tokens[second] - tokens[first])[apart]
        each = max(float(np.median(slopes)), 0.0)
        fixed = float(np.median(seconds - each * tokens))
        return each / fixed if fixed > 0 else math.inf


@dataclass(slots=True, eq=False)
class Asked:
    """One request, held back or begun."""

    request_id: str
    prompt_tokens: int
    expected_tokens: int | None
    """How long its answer was in earlier runs."""
    begun_step: int = 0
    passed_requests: int = 0
    """Those that came later and began before."""
    end_blocks: int = 0
    """What it will take of the cache at its end."""


class Admission:
    """What is held back and what has begun, of one engine."""

    def __init__(self, blocks: int, block_tokens: int, seats: int) -> None:
        """The cache has `blocks` of `block_tokens`; `seats` is the most sequences that run at once."""
        self.blocks, self._block_tokens, self._seats = blocks, block_tokens, seats
        self._held: list[Asked] = []
        self._begun: dict[str, Asked] = {}
        self._known = 0  # requests whose length was expected, and the sums of these
        self._sum = self._squares = 0.0
        self._step = self._begun_tokens = 0
        self._end_blocks = 0  # of all that are held or have begun
        self._has_news = False
        self.is_on = False
        """Whether requests are held back."""
        self.cost = StepCost()

    @property
    def is_due(self) -> bool:
        """Whether some may begin: requests came or ended, or it is time to look again."""
        return bool(self._held) and (self._has_news or self._step % TRIES == 0)

    def hold(self, asked: Asked) -> None:
        """Takes a request, which `begin` gives back when its turn has come."""
        if asked.expected_tokens is not None:
            self._known += 1
            self._sum += asked.expected_tokens
            self._squares += asked.expected_tokens**2
        if self._known:
            asked.end_blocks = -(-(asked.prompt_tokens + self._count_left(asked, 0)) // self._block_tokens)
            self._end_blocks += asked.end_blocks
        self._held.append(asked)
        self._has_news = True

    def begin(self, used_blocks: int | None = None, waiting_requests: int | None = None) -> list[Asked]:
        """The requests that begin now. Both arguments are what the engine says of itself, where it does."""
        self._has_news = False
        self.is_on = self._is_worth_it()
        if not self.is_on or self._end_blocks <= self.blocks:
            chosen = list(self._held)
        elif waiting_requests and self._begun:
            chosen = []  # preempted after all: what room there is, is theirs
            self.cost.forget_group()
        else:
            chosen = self._choose(used_blocks)
        for asked in chosen:
            asked.begun_step = self._step
            self._begun[asked.request_id] = asked
            self._begun_tokens += asked.prompt_tokens
        self._held = [asked for asked in self._held if asked.request_id not in self._begun]
        return chosen

    def end(self, request_id: str) -> None:
        """A request is answered, or was refused."""
        ended = self._begun.pop(request_id, None)
        self._end_blocks -= ended.end_blocks if ended else 0
        self._has_news = True

    def count_step(self, seconds: float) -> None:
        """The engine made a step."""
        self._step += 1
        if self.is_on:
            self.cost.add(len(self._begun) + self._begun_tokens, seconds)
        self._begun_tokens = 0

    def clear(self) -> None:
        """Forgets all requests."""
        self._held.clear()
        self._begun.clear()
        self._end_blocks = 0

    def _is_worth_it(self) -> bool:
        if not self._sum:
            return False
        mean = self._sum / self._known
        spread = math.sqrt(max(self._squares / self._known - mean**2, 0.0)) / mean
        cost = math.inf if self.cost.token_steps is None else self.cost.token_steps
        return any(spread >= least_spread and cost >= least_cost for least_spread, least_cost in LEAST_COSTS)

    def _choose(self, used_blocks: int | None) -> list[Asked]:
        running = Running(self._block_tokens)
        for asked in self._begun.values():
            done = self._step - asked.begun_step
            running.add(asked.prompt_tokens + done - 1, self._count_left(asked, done))  # the newest is not stored yet
        # Prefixes that are shared, pictures and layers with windows take other room than their prompts say.
        room = self.blocks + (running.blocks_now - used_blocks if used_blocks is not None else 0)
        chosen: list[Asked] = []
        place = missed = 0
        while place < len(self._held) and missed < TRIES and len(running) < self._seats:
            asked = self._held[place]
            tokens, left = asked.prompt_tokens - 1, self._count_left(asked, 0)
            if not len(running) or running.find_peak(tokens, left) <= room:
                running.add(tokens, left)
                chosen.append(asked)
                place += 1
            elif self._held[0].passed_requests >= PATIENCE_REQUESTS:
                break
            else:
                missed += 1
                place += max(1, len(self._held) // TRIES)
        if chosen and chosen[0] is not self._held[0]:
            self._held[0].passed_requests += len(chosen)
        return chosen

    def _count_left(self, asked: Asked, done: int) -> int:
        """Tokens that its answer will still have, as far as is known."""
        expected = asked.expected_tokens or round(self._sum / self._known)
        return max(1, expected - done if expected > done else round(LATE_SHARE * done))


class Running:
    """What runs, as the cache will have to hold it from step to step."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._tokens: list[int] = []
        self._left: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tokens: int, left_tokens: int) -> None:
        """One with so many tokens in the cache now, and so many to come."""
        self._tokens.append(tokens)
        self._left.append(left_tokens)

    @property
    def blocks_now(self) -> int:
        """In use now."""
        return sum(-(-tokens // self._block_tokens) for tokens in self._tokens)

    def find_peak(self, tokens: int, left_tokens: int) -> int:
        """The most blocks in use until all have ended, with one more."""
        now = np.array([*self._tokens, tokens])
        left = np.array([*self._left, left_tokens])
        ends = np.unique(left)[:, None]  # the use grows until one ends
        blocks = -(-(now + ends) // self._block_tokens)
        return int((blocks * (left >= ends)).sum(axis=1).max())
