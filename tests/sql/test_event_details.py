"""SQL reads the fields of an event's details that are written."""

import re
from pathlib import Path

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


def test_every_key_that_is_read_is_one_that_is_written() -> None:
    files = [*ROOT.glob("sql/**/*.sql"), *ROOT.glob("assayline/**/*.py")]
    read = {(path.name, *found) for path in files for found in READING.findall(path.read_text())}
    assert len({name for name, *_ in read}) > 5
    assert [(name, event, key) for name, event, key in read if key not in WRITTEN[event]] == []
