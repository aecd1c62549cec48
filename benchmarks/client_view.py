"""What a client of a server saw, in one form for all clients, and the same statistics over it.

Each peer's report has its own words: what it prints is kept beside (`own`), and its records per request become
`Observation`s, from which `summarize` computes everything by our definitions.
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
    """The same requests, sent in the same way, for every client: at a constant rate, or else so many at a time."""

    prompts: tuple[Prompt, ...]
    rate_per_s: float | None = None
    concurrency: int = 1

    @property
    def name(self) -> str:
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:g} requests/s"
        return f"{self.concurrency} at a time"


@dataclass(frozen=True)
class Server:
    """Where the load goes."""

    url: str
    """Without /v1."""
    model_name: str
    folder: Path
    """Of the model: clients that count tokens need its tokenizer."""


@dataclass(frozen=True)
class Observation:
    """One request as its client saw it; seconds, all on one clock."""

    sent_s: float
    first_s: float
    last_s: float
    """When the last token came, not when the response ended."""
    output_tokens: int
    events: int
    """With tokens in them; a server that is behind puts several tokens into one."""
    gaps_s: tuple[float, ...] | None = None
    """Between tokens (of one event: 0), or between events; None where the client keeps none."""
    due_s: float | None = None
    """When it was to be sent; None where the client does not say."""


@dataclass(frozen=True)
class Measurement:
    """One client's run of one load."""

    observations: tuple[Observation, ...]
    failed: int
    """Requests that were not answered whole, or sent again."""
    own: dict[str, float | None] = field(default_factory=dict)
    """The client's own numbers in seconds and tokens/s, by the names that `summarize` uses."""
    zero_s: float = 0.0
    """Unix time at the zero of its clock."""
    reasons: tuple[str, ...] = ()
    """Why requests failed, where the client says."""
    server_means: dict[str, float] = field(default_factory=dict)
    """What the server counted in the same run, by the names that `summarize` uses."""


def make_prompts(count: int, prompt_tokens: int, output_tokens: int) -> tuple[Prompt, ...]:
    """Prompts of equal length in letters, which are tokens of the models used here, and outputs of uneven length.

    Outputs vary by a quarter: with equal ones a closed loop falls into step, and whether its prefills share an engine
    step is then decided by microseconds.
    """
    dice = random.Random(0)
    spread = output_tokens // 4
    return tuple(
        Prompt("".join(dice.choices(LETTERS, k=prompt_tokens)), output_tokens + dice.randint(-spread, spread))
        for _ in range(count)
    )


def write_rows(path: Path, prompts: tuple[Prompt, ...], length_column: str) -> Path:
    """One line of JSON per prompt, with the output's length under the name that a client knows."""
    rows = ({"prompt": prompt.text, length_column: prompt.output_tokens} for prompt in prompts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def summarize(measurement: Measurement) -> dict[str, float | None]:
    """Means and percentiles in seconds, and output tokens per second from the first send to the last token."""
    seen = measurement.observations
    values: dict[str, list[float]] = {
        "ttft": [one.first_s - one.sent_s for one in seen],
        "tpot": [(one.last_s - one.first_s) / (one.output_tokens - 1) for one in seen if one.output_tokens > 1],
        "itl": [gap for one in seen for gap in one.gaps_s or ()],
        "e2e": [one.last_s - one.sent_s for one in seen],
        "send_lag": [one.sent_s - one.due_s for one in seen if one.due_s is not None],
    }
    figures: dict[str, float | None] = {}
    for name, measured in values.items():
        figures[f"{name}_mean_s"] = statistics.fmean(measured) if measured else None
        figures[f"{name}_p50_s"] = find_quantile(measured, 0.5)
        figures[f"{name}_p95_s"] = find_quantile(measured, 0.95)
    seconds = max(one.last_s for one in seen) - min(one.sent_s for one in seen)
    figures["output_tokens_per_s"] = sum(one.output_tokens for one in seen) / seconds
    return figures


def find_gaps(stamps: list[float]) -> tuple[float, ...]:
    """Between the tokens of one answer."""
    return tuple(later - earlier for earlier, later in itertools.pairwise(stamps))


def find_quantile(values: list[float], share: float) -> float | None:
    """Linear between neighbours, as DuckDB's quantile_cont; None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
