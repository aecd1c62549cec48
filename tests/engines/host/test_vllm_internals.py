"""What is used of vLLM and no documentation promises: found in the source of any version, and named where missing."""

import ast
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from assayline.engines.host.vllm import internals
from assayline.engines.host.vllm.internals import NEEDS, check_installed, find_missing, find_version
from assayline.errors import DeviceError
from scripts import check_vllm

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def package() -> Path:
    vllm = importlib.util.find_spec("vllm")
    if vllm is None:
        pytest.skip("vLLM is not installed here")
    return Path(vllm.submodule_search_locations[0])


@pytest.fixture
def copied(package: Path, tmp_path: Path) -> Path:
    """The files that are looked at, to be changed."""
    for file in {place.partition(":")[0] for place in NEEDS}:
        (tmp_path / "vllm" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / file, tmp_path / "vllm" / file)
    return tmp_path / "vllm"


def test_the_installed_version_has_everything(package: Path) -> None:
    assert find_missing(package) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "missing"),
    [
        ("v1/engine/llm_engine.py", "def abort_request(", "def cancel_request(", "LLMEngine.abort_request"),
        (
            "v1/engine/llm_engine.py",
            "        params: SamplingParams",
            "        options: SamplingParams",
            "add_request(params)",
        ),
        ("v1/metrics/stats.py", "    scheduled_ts: float", "    planned_ts: float", "RequestStateStats.scheduled_ts"),
        ("v1/engine/output_processor.py", "class RequestOutputCollector", "class Collector", "RequestOutputCollector"),
        ("entrypoints/llm.py", "self.llm_engine =", "self.core =", "LLM.llm_engine"),
    ],
)
def test_what_another_version_would_lack_is_named(
    copied: Path, file: str, before: str, after: str, missing: str
) -> None:
    text = (copied / file).read_text()
    assert before in text
    (copied / file).write_text(text.replace(before, after))
    [found] = find_missing(copied)
    assert found.endswith(missing) and found.startswith(f"vllm/{file} ")


def test_a_file_that_is_gone_is_named_too(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "outputs.py").unlink()
    assert find_missing(copied) == ["vllm/outputs.py RequestOutput", "vllm/outputs.py CompletionOutput"]
    assert check_vllm.main([str(copied.parent)]) == 1
    assert "lacks vllm/outputs.py RequestOutput" in capsys.readouterr().out


def test_a_strange_version_is_refused_before_a_model_loads(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(copied.parent)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)  # another test may have imported it
    (copied / "__init__.py").touch()
    monkeypatch.setattr(internals, "find_version", lambda: "0.99.0")
    check_installed()
    text = (copied / "v1/engine/async_llm.py").read_text()
    (copied / "v1/engine/async_llm.py").write_text(text.replace("def reset_prefix_cache", "def forget"))
    internals._parse.cache_clear()
    with pytest.raises(DeviceError, match=r"vLLM 0\.99\.0 lacks .* AsyncLLM\.reset_prefix_cache\. Known to work: 0\."):
        check_installed()
    monkeypatch.setattr(internals, "find_version", lambda: internals.KNOWN_VERSIONS[0])
    check_installed()


def test_the_locked_version_is_one_that_is_known_to_work() -> None:
    version = find_version()
    assert version is None or version in internals.KNOWN_VERSIONS


def test_nothing_else_reaches_into_vllm() -> None:
    """Modules of vLLM that are no part of its documented interface are imported in one module alone."""
    public = {"vllm", "vllm.platforms", "vllm.engine.arg_utils"}
    for path in (ROOT / "assayline").rglob("*.py"):
        if path.name == "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                assert node.module in public, f"{path} imports {node.module}"
