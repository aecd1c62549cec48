"""What a command does not need is not imported: seconds of every `--help`, dry run and start."""

import re
import sys
from pathlib import Path
from typing import Any

import flow_kit
import pytest

from flows.cli.options import COMMANDS

HEAVY = {
    "prefect", "pydantic", "pydantic_settings", "duckdb", "pyarrow", "transformers", "torch", "vllm", "altair", "yaml"
}  # fmt: skip


def imported(command_env: dict[str, str], *command: str | Path) -> set[str]:
    """Top-level modules that a command imports."""
    run = flow_kit.run_command([sys.executable, "-X", "importtime", *map(str, command)], command_env)
    assert run.code == 0, run.err
    return {name.partition(".")[0] for name in re.findall(r"^import time:.*\| +([\w.]+)$", run.err, re.MULTILINE)}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_next_to_nothing(command_env: dict[str, str], command: str) -> None:
    modules = imported(command_env, "-m", "flows", command, "--help")
    assert "argparse" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["score", "--help"], ["evaluate", "--help"]])
def test_the_front_door_needs_next_to_nothing(command_env: dict[str, str], arguments: list[str]) -> None:
    assert not imported(command_env, Path(sys.executable).parent / "assayline", *arguments) & HEAVY


def test_a_dry_run_needs_neither_prefect_nor_torch(
    command_env: dict[str, str], fake_spec: dict[str, Any], tmp_path: Path
) -> None:
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    modules = imported(command_env, "-m", "flows", "evaluate", spec, "--dry-run")
    assert "transformers" in modules
    assert not modules & {"prefect", "torch", "vllm", "altair"}


@pytest.mark.prefect
def test_a_runs_own_process_needs_no_torch(
    command_env: dict[str, str], fake_spec: dict[str, Any], tmp_path: Path
) -> None:
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    modules = imported(command_env, "-m", "flows", "evaluate", spec)
    assert "uvicorn" in modules, "Prefect's server is in that process"
    assert not modules & {"torch", "vllm", "prefect_dask"}
