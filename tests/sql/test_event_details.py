"""SQL reads the fields of an event's details that are written."""

import re
from pathlib import Path

import pytest

from assayline.engines.base import (
    Change,
    FailedDetails,
    IsolatedDetails,
    LoadEndedDetails,
    OpenedDetails,
    WarmedUpDetails,
)
from assayline.engines.recovery.policy import Sizes

ROOT = Path(__file__).parents[2]
READING = re.compile(r"(opened|failed|details)_json ->> '\$\.([\w.]+)'")
CHANGED = {f"{size}.{end}" for size in Sizes.__dataclass_fields__ for end in Change.__annotations__}
WRITTEN = {"opened": set(OpenedDetails.__annotations__), "failed": set(FailedDetails.__annotations__)}
WRITTEN["details"] = CHANGED.union(
    {"prompts"},  # by earlier versions
    *WRITTEN.values(),
    *(kind.__annotations__ for kind in (IsolatedDetails, LoadEndedDetails, WarmedUpDetails)),
)
READERS = [
    path for path in [*ROOT.glob("sql/**/*.sql"), *ROOT.glob("assayline/**/*.py")] if READING.search(path.read_text())
]


def test_the_readers_are_found() -> None:
    names = {path.name for path in READERS}
    assert {"55_engine_history.sql", "66_saturation.sql", "20_run_conditions.sql", "ingest.py"} <= names


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.name)
def test_every_key_that_is_read_is_one_that_is_written(path: Path) -> None:
    for event, key in READING.findall(path.read_text()):
        assert key in WRITTEN[event], f"{path.name} reads {key} of {event}, and nothing writes it"
