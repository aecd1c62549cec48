"""What would fail after minutes of loading fails before: device, nested arguments, sampling."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import living_members, open_engine

from assayline.engines import hosted
from assayline.engines.hosting import HostProcess
from assayline.errors import DeviceError, SpecError

CHECK = """
import json, sys
from assayline.clock import RunClock
from assayline.engines.vllm_checks import check_before_load
from assayline.engines.wire import Open
for args, sampling, device in json.load(sys.stdin):
    try:
        check_before_load(Open("no/model", args, sampling, device, RunClock.start(), "w", 0, False))
        print(json.dumps(None))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""
GOOD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "auto"),
    ({}, {}, "cpu"),
    ({"compilation_config": {"mode": 0}, "structured_outputs_config": {"backend": "xgrammar"}}, {}, "auto"),
    ({"compilation_config": 3}, {"max_tokens": None, "structured_outputs": {"json": {"type": "object"}}}, "auto"),
]
BAD: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {}, "cuda", "DeviceError: The spec asks for device 'cuda', but vLLM here runs on cpu. Set engine.device to"),
    *(
        ({name: {"no_such": 0}}, {}, "auto", f"SpecError: engine.args.{name} has unknown keys ['no_such']. Known: ")
        for name in ("compilation_config", "structured_outputs_config", "attention_config", "profiler_config")
    ),
    *(
        ({}, sampling, "auto", f"SpecError: Sampling parameters {sampling} are not usable: ")
        for sampling in (
            {"temperature": 5},
            {"top_p": 0},
            {"max_tokens": "many"},
            {"structured_outputs": {"regx": "a"}},
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        )
    ),
]


@pytest.mark.vllm
def test_impossible_orders_are_refused_and_good_ones_pass() -> None:
    """Peers, row 15: what is given reaches vLLM, or is an error; vLLM itself drops unknown nested keys silently."""
    orders = [*GOOD, *(order[:3] for order in BAD)]
    output = subprocess.run(
        [sys.executable, "-c", CHECK], input=json.dumps(orders), capture_output=True, text=True, check=True
    ).stdout
    found = [json.loads(line) for line in output.splitlines()[-len(orders) :]]
    assert found[: len(GOOD)] == [None] * len(GOOD)
    for message, (*_, expected) in zip(found[len(GOOD) :], BAD, strict=True):
        assert str(message).startswith(expected)


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"device": "cuda"}, DeviceError, "asks for device 'cuda', but vLLM here runs on cpu"),
        ({"args": {"compilation_config": {"lvel": 0}}}, SpecError, "unknown keys .*lvel"),
    ],
)
def test_an_engine_refuses_before_it_looks_at_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], kind: type[Exception], expected: str
) -> None:
    hosts: list[HostProcess] = []

    class Watched(HostProcess):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            hosts.append(self)

    monkeypatch.setattr(hosted, "HostProcess", Watched)
    with pytest.raises(kind, match=expected):
        open_engine(tmp_path / "no-such-model", tmp_path / "engine.log", **changes)
    assert living_members(hosts[0].pid) == []
