"""benchmarks.paced_model: a forward pass keeps to its time, and vLLM's processes find the architecture themselves."""

import json
import subprocess
import sys
import time

import pytest

from benchmarks.paced_model import ARCHITECTURE, GROUP, NAME, install_paced_model, last_at_least

FIND = f"""
import importlib.metadata, json
print(json.dumps({{point.name: point.value for point in importlib.metadata.entry_points(group={GROUP!r})}}))
"""
KNOW = f"""
from vllm import ModelRegistry
from vllm.plugins import load_general_plugins

load_general_plugins()
print({ARCHITECTURE!r} in ModelRegistry.get_supported_archs())
"""


def test_what_a_forward_pass_leaves_of_its_time_is_slept_and_a_long_one_sleeps_nothing(monkeypatch):
    slept: list[float] = []
    moments = iter([10.0, 10.015, 20.0, 20.03])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(2):
        with last_at_least(0.025):
            pass
    assert slept == pytest.approx([0.01, 0.0])


def test_processes_find_the_entry_point_while_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    with install_paced_model(tmp_path / "paced"):
        inside = ask(FIND)
    assert json.loads(inside)[NAME] == "benchmarks.paced_model:register"
    assert NAME not in json.loads(ask(FIND))


@pytest.mark.vllm
@pytest.mark.rare
def test_vllm_knows_the_architecture_wherever_a_process_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with install_paced_model(tmp_path / "paced"):
        assert ask(KNOW).splitlines()[-1] == "True"


def ask(code: str) -> str:
    """What a process of its own prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
