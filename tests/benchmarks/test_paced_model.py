"""benchmarks.paced_model: a forward pass keeps to its time, and vLLM's processes find the architecture themselves."""

import json
import subprocess
import sys

import pytest

from benchmarks.paced_model import ARCHITECTURE, GROUP, NAME, install_paced_model

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
    """Return the output of a separate process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
