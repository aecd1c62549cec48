"""Workers and stores that are hurt at random, on the fake engine: 0 requests lost, 0 twice.

`make test` does it some times, `make test-faults` two hundred times in a folder and two hundred in a store, and prints
a table by kind of fault; the line of JSON at the end is what a person wants to know.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fault_kit import KILL, STOP, Outcome, Round, plan_rounds, print_table
from store_kit import STORE_FAULTS, Proxy, make_bucket, serving, use_store

from assayline.places.home import attach
from assayline.settings import Settings

pytestmark = pytest.mark.slow

LEASE_S = 0.5
STORE_LEASE_S = 1.0
"""Each beat is a request to a server in Python, through a proxy in Python."""


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


def test_whatever_the_store_does_every_request_counts_once(
    tmp_path: Path,
    settings: Settings,
    request: pytest.FixtureRequest,
    record_property: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers 500 and 503, loses answers, closes connections, is late, and is gone for a while; workers die, too."""
    wanted, seed = wanted_of(request, 4)
    dice = random.Random(seed)
    quick = settings.model_copy(update={"flush_interval_s": 0.3})
    outcomes = []
    with serving("localbucket", tmp_path / "server") as port:
        make_bucket(port, "bucket")
        use_store(port, monkeypatch)
        for number, (kinds, faults) in enumerate(plan_rounds(wanted, [*STORE_FAULTS, KILL, STOP])):
            run_dir, proxy = tmp_path / f"round-{number}", Proxy(port, seed)
            attach(run_dir, f"s3://bucket/round-{number}")
            outcomes.append(Round(run_dir, quick, dice, STORE_LEASE_S, proxy).run(kinds, faults))
            proxy.close()
    check(outcomes, seed, record_property)
