"""What tests share: nothing of the person's own machine is touched, and the tiny model is built once."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # examples/ is no installed package

# A shell's background jobs ignore SIGINT and pass that on; the commands under test are to heed it.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

from assayline.settings import Settings  # noqa: E402
from assayline.spec import EvalSpec  # noqa: E402
from assayline.spec_file import parse_spec  # noqa: E402

ENGINE_ARGS = {
    "max_model_len": 256,
    "max_num_seqs": 32,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**27,
}
"""vLLM on a CPU, small and quick to start."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", default=3, help="how often tests/flows/test_kills.py kills something")
    parser.addoption("--kill-seed", default=1, help="its dice")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Data, locks and Prefect's own files of a test are its own."""
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ASSAYLINE_LOCK_DIR", str(tmp_path / "locks"))
    yield


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Folder of the trained tiny model."""
    from examples.tiny_model import ensure_tiny_model

    return ensure_tiny_model()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose folders are the test's own."""
    return Settings(data_dir=tmp_path / "data", lock_dir=tmp_path / "locks", flush_interval_s=0.2, load_interval_s=0.5)


@pytest.fixture
def make_spec(tiny_model: Path) -> Any:
    """Builds a spec on the tiny model; keyword arguments are laid over, one level deep."""

    def make(**changes: Any) -> EvalSpec:
        data: dict[str, Any] = {
            "name": "test",
            "model": str(tiny_model),
            "prompts": {
                "source": {"kind": "file", "path": str(ROOT / "examples" / "arithmetic.jsonl")},
                "columns": {"target": "answer"},
                "template": "{{ question }}",
            },
            "sampling": {"temperature": 0, "max_tokens": 16},
            "engine": {"args": dict(ENGINE_ARGS)},
        }
        for key, value in changes.items():
            data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
        return parse_spec(data)

    return make
