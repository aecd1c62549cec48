"""The environment of an engine's process is complete before it starts."""

import os
import shutil
import sys
from pathlib import Path

from pydantic import SecretStr

from assayline.engines.process import DEFAULTS, engine_environment
from assayline.settings import Settings


def test_the_spec_wins_over_the_device_over_this_process_over_defaults(monkeypatch):
    for name in DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    device = {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "2"}
    env = engine_environment(Settings(), device, {"OMP_NUM_THREADS": "3"})
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert (env["VLLM_NO_USAGE_STATS"], env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"]) == ("0", "1", "3")


def test_the_path_begins_with_the_tools_of_the_engines_python(monkeypatch, tmp_path):
    """vLLM switches FlashInfer off with one warning if `ninja`, which its environment brings, is not on the path."""
    for name in ("python", "ninja"):
        (tmp_path / name).touch(0o755)
    for given in ({}, {"PATH": "/usr/local/cuda/bin"}):
        path = engine_environment(Settings(), {}, given, str(tmp_path / "python"))["PATH"]
        assert shutil.which("ninja", path=path) == str(tmp_path / "ninja")
        assert path.endswith(given.get("PATH") or os.environ["PATH"])
    own = engine_environment(Settings(), {}, {})["PATH"].split(os.pathsep)[0]
    assert own == str(Path(sys.executable).parent)
    monkeypatch.delenv("PATH")
    assert engine_environment(Settings(), {}, {})["PATH"] == own


def test_engine_environment_numbers_gpus_as_the_driver_does_unless_told_otherwise(monkeypatch):
    """NVML and nvidia-smi go by the PCI bus, CUDA's own default is the fastest first."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert engine_environment(Settings(), {}, {})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert engine_environment(Settings(), {}, {})["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_engine_environment_has_a_home_that_can_be_written(monkeypatch, tmp_path):
    """Models that the closed home has are still found."""
    for name in ("XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc")
    env = engine_environment(Settings(data_dir=tmp_path), {}, {})
    assert (env["HOME"], env["HF_HOME"]) == (str(tmp_path / "home"), "/proc/.cache/huggingface")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert engine_environment(Settings(), {}, {})["HOME"] == str(tmp_path)


def test_the_settings_token_reaches_the_hub_client(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "from the shell")
    assert engine_environment(Settings(hf_token=None), {}, {})["HF_TOKEN"] == "from the shell"
    assert engine_environment(Settings(hf_token=SecretStr("ours")), {}, {})["HF_TOKEN"] == "ours"
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN" not in engine_environment(Settings(hf_token=None), {}, {})
