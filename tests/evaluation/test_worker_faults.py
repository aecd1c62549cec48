"""Workers that are hurt at random, on the fake engine: 0 requests lost, 0 twice.

`make test` does it some times, `make test-faults` two hundred times, and prints a table by kind of fault; the line of
JSON at the end is what a person wants to know.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fault_kit import KILL, STOP, Outcome, Round, plan_rounds, print_table

from assayline.settings import Settings

pytestmark = pytest.mark.slow

LEASE_S = 0.5


def wanted_of(request: pytest.FixtureRequest, usual: int) -> tuple[int, int]:
    """How many faults, and the seed of the dice."""
    faults = request.config.getoption("--faults")
    return usual if faults is None else int(faults), int(request.config.getoption("--kill-seed"))


def check(outcomes: Sequence[Outcome], seed: int, record_property: Any) -> None:
    totals = print_table(outcomes, seed)
    for name, value in totals.items():
        record_property(name, value)
    assert (totals["lost"], totals["doubled"], totals["failed"]) == (0, 0, 0)


def test_whoever_is_killed_or_stopped_every_request_counts_once(
    tmp_path: Path, settings: Settings, request: pytest.FixtureRequest, record_property: Any
) -> None:
    wanted, seed = wanted_of(request, 20)
    dice = random.Random(seed)
    quick = settings.model_copy(update={"flush_interval_s": 0.05, "flush_rows": 16})
    outcomes = [
        Round(tmp_path / f"round-{number}", quick, dice, LEASE_S).run(kinds, faults)
        for number, (kinds, faults) in enumerate(plan_rounds(wanted, [KILL, STOP]))
    ]
    check(outcomes, seed, record_property)
    assert sum(outcome.taken_over for outcome in outcomes) > 0
