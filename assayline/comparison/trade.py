"""How one side of a comparison differs from the other, in half a sentence: `8 % slower, 23 % cheaper per right answer`.

For the report of a run and for the summary of a benchmark. The figures are cells of `compare_metrics` and of
`compare_repeats`; the second know of chance, and what it would explain is said to be no more than that.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from assayline.words import SPACE

Row = Mapping[str, Any]
LEAST_SHARE = 0.005
"""A smaller change is none, as a person would say it."""

DOUBTS = {"unclear": " (no more than chance)", "too_few": " (too few repeats to tell)"}
"""By the verdict of compare_repeats."""


class Words(NamedTuple):
    """What is said of a metric that is higher, lower, or the same."""

    higher: str
    lower: str
    same: str


SAID = {
    "output_tokens_per_s": Words("faster", "slower", "as fast"),
    "cost_per_right_answer": Words("dearer per right answer", "cheaper per right answer", "as dear per right answer"),
    "cost_per_million_output_tokens": Words(
        "dearer per output token", "cheaper per output token", "as dear per output token"
    ),
    "energy_per_output_token_joules": Words(
        "more energy per output token", "less energy per output token", "the same energy per output token"
    ),
}
"""By metric, most important first."""


def say_trade(rows: Mapping[str, Row], change: str) -> str:
    """The differences in speed, cost and energy; `change` is the column that has them, 0.1 for a tenth more.

    Cost is told per output token only where it cannot be told per right answer. Empty without a cost or an energy: the
    speed alone is in the table.
    """
    told = {metric: row for metric in SAID if (row := rows.get(metric)) and row[change] is not None}
    if "cost_per_right_answer" in told:
        told.pop("cost_per_million_output_tokens", None)
    if not told.keys() - {"output_tokens_per_s"}:
        return ""
    return ", ".join(_say(SAID[metric], row[change], row.get("verdict")) for metric, row in told.items())


def _say(words: Words, change: float, verdict: str | None) -> str:
    if abs(change) < LEAST_SHARE or verdict == "same":
        return words.same
    return (
        f"{100 * abs(change):.0f}{SPACE}% {words.higher if change > 0 else words.lower}{DOUBTS.get(verdict or '', '')}"
    )
