"""What holding requests back would be worth where the KV cache is too small: played through with vLLM's rules.

    python -m benchmarks.cache_admission

vLLM takes a request in when its prompt has room, and preempts the newest when answers grow: what that had is computed
again. Who knows how long answers will be can hold back those that the cache will not hold: to their ends, or for as
long as it looks ahead (a share of the mean answer; ends known, as in a second run). No engine is needed: each step of
the play is one of vLLM's. `cost_gpu` and `cost_cpu` are steps and tokens in one number, over vLLM's own way. What a
token costs beside its step is assumed: 1/400 of it on a GPU, which reads its weights in each, and 0.12 on a CPU.
"""

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.yardstick import draw_output_tokens

TOKEN_STEPS = {"cost_gpu": 1 / 400, "cost_cpu": 0.12}
"""What a token is assumed to cost beside its step, in steps."""

TRIES = 16
"""Held requests that are looked at after one that does not fit, and steps after which all are looked at again."""


@dataclass(eq=False, slots=True)
class Asked:
    """One request, and how far its answer is."""

    prompt_tokens: int
    output_tokens: int
    done_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.done_tokens


@dataclass
class Played:
    """What it took to answer all."""

    steps: int = 0
    tokens: int = 0
    preemptions: int = 0


class Play:
    """One cache, and the requests that go through it; `ahead_tokens` None: vLLM's own way."""

    def __init__(self, blocks: int, block_tokens: int, window: int, ahead_tokens: int | None) -> None:
        self._blocks, self._block_tokens, self._window, self._ahead = blocks, block_tokens, window, ahead_tokens
        self._held: list[Asked] = []
        self._waiting: deque[Asked] = deque()
        self._running: list[Asked] = []
        self.played = Played()

    def run(self, sizes: list[tuple[int, int]]) -> Played:
        """Answers requests of these prompt and output tokens, in this order."""
        coming = deque(Asked(*size) for size in sizes)
        has_news = True
        while coming or self._held or self._waiting or self._running:
            while coming and len(self._held) + len(self._waiting) + len(self._running) < self._window:
                self._held.append(coming.popleft())
                has_news = True
            if has_news or self.played.steps % TRIES == 0:
                self._begin()
            has_news = self._step()
        return self.played

    def _count_blocks(self, asked: Asked, more: int = 0) -> int:
        return -(-(asked.tokens + more) // self._block_tokens)

    def _begin(self) -> None:
        """Gives the engine what is held back, or that part of it that will fit."""
        if self._ahead is None:
            self._waiting.extend(self._held)
            self._held.clear()
        place = missed = 0
        while not self._waiting and place < len(self._held) and missed < TRIES:
            taken = [*self._running, self._held[place]]
            if len(taken) == 1 or self._find_peak(taken) <= self._blocks:
                self._running.append(self._held.pop(place))
                self.played.tokens += self._running[-1].tokens
            else:
                missed += 1
                place += max(1, len(self._held) // TRIES)

    def _find_peak(self, taken: list[Asked]) -> int:
        """The most blocks in use until the last of these ends, or as far as is looked ahead."""
        tokens = np.array([asked.tokens for asked in taken])
        left = np.array([asked.output_tokens - asked.done_tokens for asked in taken])
        times = np.unique(np.minimum(left, self._ahead))[:, None]
        blocks = -(-(tokens[None, :] + times) // self._block_tokens)
        return int((blocks * (left[None, :] >= times)).sum(axis=1).max())

    def _step(self) -> bool:
        """One step; whether an answer ended."""
        used = sum(self._count_blocks(asked, 1) for asked in self._running)
        is_full = used > self._blocks
        while used > self._blocks:
            used -= self._count_blocks(self._running[-1], 1)
            self._waiting.appendleft(self._running.pop())
            self.played.preemptions += 1
        self.played.tokens += len(self._running)
        while self._waiting and not is_full and used + self._count_blocks(self._waiting[0]) <= self._blocks:
            used += self._count_blocks(self._waiting[0])
            self._running.append(self._waiting.popleft())
            self.played.tokens += self._running[-1].tokens
        self.played.steps += 1
        for asked in self._running:
            asked.done_tokens += 1
        running = len(self._running)
        self._running = [asked for asked in self._running if asked.done_tokens < asked.output_tokens]
        return len(self._running) < running


def draw_long_tokens(dice: random.Random) -> int:
    """Heavier-tailed, from 8 to 2,048 tokens."""
    return min(max(int(dice.lognormvariate(5.5, 1.0)), 8), 2048)


Sets = list[tuple[str, int, int, int, int, Callable[[random.Random], int]]]
SETS: Sets = [  # name, requests, prompt tokens, blocks, tokens of a block, how lengths are drawn
    ("log-normal", 200, 48, 147, 16, draw_output_tokens),
    ("log-normal, large blocks", 200, 48, 18, 128, draw_output_tokens),
    ("heavy tail", 400, 200, 1250, 16, draw_long_tokens),
    ("all of 400 tokens", 150, 40, 95, 16, lambda _: 400),
]


def play_set(name: str, requests: int, prompt: int, blocks: int, block_tokens: int, draw: Any) -> list[dict[str, Any]]:
    """The rows of one set: each way, in the order given and longest first."""
    dice = random.Random(0)
    given = [(prompt, draw(dice)) for _ in range(requests)]
    mean = sum(length for _, length in given) / requests
    rows = []
    for order, sizes in (("given", given), ("longest first", sorted(given, key=lambda size: -size[1]))):
        own = Play(blocks, block_tokens, 80, None).run(sizes)
        fits = max(2, round(blocks * block_tokens / (prompt + mean)))
        ways = {"vllm": own}
        ways |= {
            f"window {share:.2f} of what fits": Play(blocks, block_tokens, round(share * fits), None).run(sizes)
            for share in (0.5, 0.75, 1.0, 1.25)
        }
        ways |= {
            f"{share} of the mean ahead": Play(blocks, block_tokens, 80, round(share * mean)).run(sizes)
            for share in (0.15, 0.3)
        }
        ways["to the end"] = Play(blocks, block_tokens, 80, 10**9).run(sizes)
        for way, played in ways.items():
            costs = {key: weigh(played, key) / weigh(own, key) for key in TOKEN_STEPS}
            row = {"set": name, "order": order, "way": way, **vars(played)}
            rows.append(row | {key: round(cost, 3) for key, cost in costs.items()})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def weigh(played: Played, key: str) -> float:
    """Steps and tokens in one number."""
    return played.steps + TOKEN_STEPS[key] * played.tokens


if __name__ == "__main__":
    print(json.dumps({"benchmark": "cache_admission", "rows": [row for one in SETS for row in play_set(*one)]}))
