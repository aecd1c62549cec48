"""Half a sentence on speed and cost, by what is known of them."""

from typing import Any

import pytest

from assayline.comparison.queries import say_trade


def say(**changes: tuple[float | None, str]) -> str:
    rows: dict[str, dict[str, Any]] = {
        metric: {"relative_shift": change, "verdict": verdict} for metric, (change, verdict) in changes.items()
    }
    return say_trade(rows, "relative_shift").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"output_tokens_per_s": (-0.08, "worse"), "cost_per_right_answer": (-0.23, "better")},
            "8% slower, 23% cheaper per correct answer",
        ),
        (
            {"output_tokens_per_s": (0.5, "better"), "cost_per_million_output_tokens": (0.1, "unclear")},
            "50% faster, 10% more expensive per output token (unclear)",
        ),
        (
            {"output_tokens_per_s": (0.012, "same"), "cost_per_right_answer": (-0.2, "too_few")},
            "as fast, 20% cheaper per correct answer (too few repeats to tell)",
        ),
        (
            {"cost_per_right_answer": (0.004, "unclear"), "cost_per_million_output_tokens": (0.3, "worse")},
            "as expensive per correct answer",
        ),
        ({"energy_per_output_token_joules": (-0.3, "better")}, "30% less energy per output token"),
        ({"output_tokens_per_s": (0.5, "better")}, ""),
        ({"output_tokens_per_s": (0.5, "better"), "cost_per_right_answer": (None, "unclear")}, ""),
        ({}, ""),
    ],
)
def test_the_most_important_is_first_and_chance_is_said(changes, said):
    assert say(**changes) == said
