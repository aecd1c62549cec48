"""The kinds of engine, told apart by what they are and not by their names."""

import re
from pathlib import Path

from assayline.spec.engine import BACKENDS

ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(rf"""(==|!=|\bin\b|\bcase\b)\s*\(?["']({"|".join(BACKENDS)})["']""")


def test_nobody_else_asks_for_a_backends_name():
    askers = [
        path.name
        for folder in ("assayline", "flows", "tasks")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "spec" and BY_NAME.search(path.read_text())
    ]
    assert askers == []
