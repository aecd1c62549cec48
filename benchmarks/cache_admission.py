"""What holding requests back is worth where the KV cache is too small: played through with vLLM's rules.

    python -m benchmarks.cache_admission

vLLM takes a request in when its prompt has room, and preempts the newest when answers grow: what that had is computed
again. `assayline.engines.host.admission` holds back what the cache will not hold to its end, where lengths are known
and a token costs enough beside its step. Each way answers the same requests, at four costs of a token: 1/400 of a step,
as it may be on a GPU, which reads its weights in each, to 0.12, as on a CPU. Steps take 0.8 to 1.2 times their
time by chance, and the costs are measured by that. No engine is needed: each step of the play is one of vLLM's. Ways
are vLLM's own, the best of five fixed windows, and held back; lengths are known, or wrong by e^N(0, 0.5). `over_best`
is the time over that of the best fixed window, vLLM's own among them, in the same order.
"""

import json
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from assayline.engines.host.admission import Admission, Asked
from benchmarks.yardstick import draw_output_tokens

COSTS = (1 / 400, 0.02, 0.06, 0.12)
"""What a token costs beside its step, in steps."""

WINDOW = 80
WINDOW_SHARES = (0.5, 0.75, 1.0, 1.25, 1.6)
"""Fixed windows over the requests of mean length that the cache holds."""


@dataclass(eq=False, slots=True)
class Playing:
    """One request, and how far its answer is."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    expected_tokens: int
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

    def weigh(self, cost: float) -> float:
        """Time, in steps without tokens."""
        return self.steps + cost * self.tokens


class Play:
    """One cache, and the requests that go through it; `cost` None: in vLLM's own way."""

    def __init__(self, blocks: int, block_tokens: int, window: int, cost: float | None = None) -> None:
        self._blocks, self._block_tokens, self._window, self._cost = blocks, block_tokens, window, cost
        self._admission = Admission(blocks, block_tokens, window)
        self._dice = random.Random(0)
        self._held: dict[str, Playing] = {}
        self._waiting: deque[Playing] = deque()
        self._running: list[Playing] = []
        self.played = Played()

    def run(self, sizes: list[tuple[int, int, int]]) -> Played:
        """Answers requests of these prompt, output and expected tokens, in this order."""
        coming = deque(Playing(str(number), *size) for number, size in enumerate(sizes))
        while coming or self._held or self._waiting or self._running:
            while coming and len(self._held) + len(self._waiting) + len(self._running) < self._window:
                self._take(coming.popleft())
            if self._admission.is_due:
                begun = self._admission.begin(self._count_used(), len(self._waiting))
                self._waiting.extend(self._held.pop(asked.request_id) for asked in begun)
            self._step()
        return self.played

    def _take(self, playing: Playing) -> None:
        if self._cost is None:
            self._waiting.append(playing)
            return
        self._held[playing.request_id] = playing
        self._admission.hold(Asked(playing.request_id, playing.prompt_tokens, playing.expected_tokens))

    def _count_used(self) -> int:
        return sum(self._count_blocks(playing, -1) for playing in self._running)

    def _count_blocks(self, playing: Playing, more: int = 0) -> int:
        return -(-(playing.tokens + more) // self._block_tokens)

    def _step(self) -> None:
        before, used = self.played.tokens, sum(map(self._count_blocks, self._running))
        is_full = used > self._blocks
        while used > self._blocks:
            used -= self._count_blocks(self._running[-1])
            self._waiting.appendleft(self._running.pop())
            self.played.preemptions += 1
        self.played.tokens += len(self._running)
        while self._waiting and not is_full and used + self._count_blocks(self._waiting[0]) <= self._blocks:
            used += self._count_blocks(self._waiting[0])
            self._running.append(self._waiting.popleft())
            self.played.tokens += self._running[-1].tokens
        self.played.steps += 1
        computed = self.played.tokens - before
        self._admission.count_step((1 + (self._cost or 0.0) * computed) * self._dice.uniform(0.8, 1.2))
        for playing in self._running:
            playing.done_tokens += 1
            if playing.done_tokens == playing.output_tokens:
                self._admission.end(playing.request_id)
        self._running = [playing for playing in self._running if playing.done_tokens < playing.output_tokens]


def draw_long_tokens(dice: random.Random) -> int:
    """Heavier-tailed, from 8 to 2,048 tokens."""
    return min(max(int(dice.lognormvariate(5.5, 1.0)), 8), 2048)


def draw_reasoning_tokens(dice: random.Random) -> int:
    """As of models that think, from 16 to 4,096 tokens."""
    return min(max(int(dice.lognormvariate(6.3, 1.2)), 16), 4096)


Sets = list[tuple[str, int, int, int, int, Callable[[random.Random], int]]]
SETS: Sets = [  # name, requests, prompt tokens, blocks, tokens of a block, how lengths are drawn
    ("log-normal", 200, 48, 147, 16, draw_output_tokens),
    ("log-normal, large blocks", 200, 48, 17, 128, draw_output_tokens),
    ("heavy tail", 400, 200, 1250, 16, draw_long_tokens),
    ("heavy tail, large blocks", 400, 200, 156, 128, draw_long_tokens),
    ("reasoning-like", 300, 150, 1500, 16, draw_reasoning_tokens),
    ("100 to 700 tokens", 200, 40, 95, 16, lambda dice: dice.randint(100, 700)),
    ("all of 400 tokens", 150, 40, 95, 16, lambda _: 400),
]


def play_set(name: str, requests: int, prompt: int, blocks: int, block_tokens: int, draw: Any) -> list[dict[str, Any]]:
    """The rows of one set: each cost, in the order given and longest first."""
    dice = random.Random(0)
    lengths = [draw(dice) for _ in range(requests)]
    guesses = [max(1, round(length * math.exp(dice.gauss(0, 0.5)))) for length in lengths]
    known = [(prompt, length, length) for length in lengths]
    guessed = [(prompt, length, guess) for length, guess in zip(lengths, guesses, strict=True)]
    fits = blocks * block_tokens / (prompt + sum(lengths) / requests)
    rows = []
    for order in ("given", "longest first"):
        if order != "given":
            known.sort(key=lambda size: -size[2])
            guessed.sort(key=lambda size: -size[2])
        for way, sizes in (("known", known), ("guessed", guessed)):
            own = Play(blocks, block_tokens, WINDOW).run(sizes)
            fixed = [Play(blocks, block_tokens, max(2, round(share * fits))).run(sizes) for share in WINDOW_SHARES]
            for cost in COSTS:
                best = min([own, *fixed], key=lambda played: played.weigh(cost))
                held = Play(blocks, block_tokens, WINDOW, cost).run(sizes)
                for name_of_way, played in {"own": own, "best window": best, "held back": held}.items():
                    over = round(played.weigh(cost) / best.weigh(cost), 3)
                    of = {"set": name, "order": order, "lengths": way, "cost": cost, "way": name_of_way}
                    rows.append({**of, **vars(played), "over_best": over})
                    print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


if __name__ == "__main__":
    print(json.dumps({"benchmark": "cache_admission", "rows": [row for one in SETS for row in play_set(*one)]}))
