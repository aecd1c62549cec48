"""A common record of a client's measurements, and statistics over it.

Each client's records per request become `Observation`s, from which `summarize` computes all statistics by assayline's
definitions.
"""

import itertools
import json
import random
import statistics
from dataclasses import dataclass, field
from pathlib import Path

LETTERS = "abcdefghij klmnop qrstuvwxyz"


@dataclass(frozen=True)
class Prompt:
    """One request of a load."""

    text: str
    output_tokens: int


@dataclass(frozen=True)
class Load:
    """The requests of every client: at a constant rate, or at a constant concurrency."""

    prompts: tuple[Prompt, ...]
    rate_per_s: float | None = None
    concurrency: int = 1

    @property
    def name(self) -> str:
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:g} requests/s"
        return f"concurrency {self.concurrency}"


@dataclass(frozen=True)
class Server:
    """The server under load."""

    url: str
    """Without /v1."""
    model_name: str
    folder: Path
    """Folder of the model: clients that count tokens need its tokenizer."""


@dataclass(frozen=True)
class Observation:
    """One request as its client saw it. Times are seconds on one clock."""

    sent_s: float
    first_s: float
    last_s: float
    """Time of the last token, not of the end of the response."""
    output_tokens: int
    gaps_s: tuple[float, ...] | None = None
    """Gaps between tokens (0 within an event), or between events; None if the client does not record them."""


@dataclass(frozen=True)
class Measurement:
    """One client's run of one load."""

    observations: tuple[Observation, ...]
    failed: int
    """Number of requests without a complete answer, or retried."""
    reasons: tuple[str, ...] = ()
    """Reasons of failures, if the client reports them."""
    server_means: dict[str, float] = field(default_factory=dict)
    """The server's counters of the same run, by the names of `summarize`."""


def make_prompts(count: int, prompt_tokens: int, output_tokens: int) -> tuple[Prompt, ...]:
    """Make prompts of equal length in letters, which are tokens of the models used here, and outputs of varied length.

    Output lengths vary by a quarter: with equal lengths a closed loop synchronizes, and microseconds decide if
    prefills share an engine step.
    """
    dice = random.Random(0)
    spread = output_tokens // 4
    return tuple(
        Prompt("".join(dice.choices(LETTERS, k=prompt_tokens)), output_tokens + dice.randint(-spread, spread))
        for _ in range(count)
    )


def write_rows(path: Path, prompts: tuple[Prompt, ...], length_column: str) -> Path:
    """Write a line of JSON per prompt, with the output length under the client's key."""
    rows = ({"prompt": prompt.text, length_column: prompt.output_tokens} for prompt in prompts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def summarize(measurement: Measurement) -> dict[str, float | None]:
    """Compute means and medians in seconds, and output tokens per second from first send to last token."""
    seen = measurement.observations
    values: dict[str, list[float]] = {
        "ttft": [one.first_s - one.sent_s for one in seen],
        "tpot": [(one.last_s - one.first_s) / (one.output_tokens - 1) for one in seen if one.output_tokens > 1],
        "itl": [gap for one in seen for gap in one.gaps_s or ()],
        "e2e": [one.last_s - one.sent_s for one in seen],
    }
    figures: dict[str, float | None] = {}
    for name, measured in values.items():
        figures[f"{name}_mean_s"] = statistics.fmean(measured) if measured else None
        figures[f"{name}_p50_s"] = statistics.median(measured) if measured else None
    seconds = max(one.last_s for one in seen) - min(one.sent_s for one in seen)
    figures["output_tokens_per_s"] = sum(one.output_tokens for one in seen) / seconds
    return figures


def find_gaps(stamps: list[float]) -> tuple[float, ...]:
    """Gaps between the tokens of one answer."""
    return tuple(later - earlier for earlier, later in itertools.pairwise(stamps))
