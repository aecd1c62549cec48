"""The kinds of engine, told apart by what they are and not by their names."""

import re
from pathlib import Path
from typing import get_args

import pytest

from assayline.spec.engine import BACKENDS, EngineSpec

ROOT = Path(__file__).parents[2]
REMOTE = {"backend": "server", "server": {"url": "http://127.0.0.1:8000/v1"}}
BY_NAME = re.compile(rf"""(==|!=|\bin\b|\bcase\b)\s*\(?["']({"|".join(BACKENDS)})["']""")


def test_every_backend_of_a_spec_has_a_row():
    assert set(BACKENDS) == set(get_args(EngineSpec.model_fields["backend"].annotation))


@pytest.mark.parametrize(
    ("engine", "needs_device", "is_streaming", "is_remote"),
    [
        ({"backend": "offline"}, True, False, False),
        ({"backend": "async"}, True, True, False),
        ({"backend": "server"}, True, True, False),
        (REMOTE, False, True, True),
        ({"backend": "fake"}, False, False, False),
    ],
)
def test_backend_requirements_follow_from_its_row(engine, needs_device, is_streaming, is_remote):
    spec = EngineSpec.model_validate(engine)
    assert (spec.needs_device, spec.is_streaming, spec.is_remote) == (needs_device, is_streaming, is_remote)


def test_nobody_else_asks_for_a_backends_name():
    askers = [
        path.name
        for folder in ("assayline", "flows", "tasks")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "spec" and BY_NAME.search(path.read_text())
    ]
    assert askers == []
