"""Private vLLM APIs in use: found in the source of any version, and named if missing."""

import ast
import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assayline.engines.base import OpenedDetails
from assayline.engines.host.vllm import internals
from assayline.engines.host.vllm.internals import SUPPORTED, check_version, find_version
from assayline.errors import DeviceError
from scripts import check_vllm
from scripts.check_vllm import NEEDS, find_missing

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


def test_the_installed_version_has_everything(package):
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
def test_missing_internals_of_another_version_are_named(copied, file, before, after, missing):
    text = (copied / file).read_text()
    assert before in text
    (copied / file).write_text(text.replace(before, after))
    [found] = find_missing(copied)
    assert found.endswith(missing) and found.startswith(f"vllm/{file} ")


def test_a_file_that_is_gone_is_named_too(copied, capsys):
    (copied / "outputs.py").unlink()
    assert find_missing(copied) == ["vllm/outputs.py RequestOutput", "vllm/outputs.py CompletionOutput"]
    assert check_vllm.main([str(copied.parent)]) == 1
    assert "missing: vllm/outputs.py RequestOutput" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0"])
def test_check_version_refuses_one_outside_the_supported_range(version):
    with pytest.raises(DeviceError, match=rf"vLLM {version} is not supported: .* 0\.26 to 0\.33\. hint: `make setup`"):
        check_version(version)


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0rc1.dev7", None])
def test_check_version_takes_one_of_the_supported_range(version):
    check_version(version)


def test_supported_versions_are_those_that_the_package_admits():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (_, first), (_, last) = SUPPORTED
    assert f"vllm>=0.{first},<0.{last + 1}" in extras["cuda"]


def test_the_locked_version_is_one_that_is_known_to_work():
    version = find_version()
    assert version is None or version in internals.KNOWN_VERSIONS


def test_nothing_else_reaches_into_vllm():
    public = {"vllm", "vllm.platforms", "vllm.engine.arg_utils"}
    for path in (ROOT / "assayline").rglob("*.py"):
        if path.name in ("internals.py", "cpu_worker.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                assert node.module in public, f"{path} imports {node.module}"


GIB = 2**30
TOKEN_BYTES = 2 * 3 * 64 * 30 * 2
"""SmolLM2-135M: keys and values of 3 heads of 64 in 30 layers, two bytes each."""


def config_of(
    *, max_model_len: int = 2048, max_num_seqs: int = 256, folder: Path = Path("/nowhere"), **cache: Any
) -> Any:
    model = SimpleNamespace(
        max_model_len=max_model_len,
        model=str(folder),
        use_mla=False,
        dtype=SimpleNamespace(itemsize=2),
        get_num_kv_heads=lambda parallel: 3,
        get_head_size=lambda: 64,
        get_num_layers=lambda parallel: 30,
    )
    return SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(world_size=1, worker_cls="auto"),
        cache_config=SimpleNamespace(
            **{
                "block_size": 128,
                "cache_dtype": "auto",
                "kv_cache_memory_bytes": None,
                "gpu_memory_utilization": 0.92,
                **cache,
            }
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=4096, enable_chunked_prefill=True
        ),
        device_config=SimpleNamespace(device_type="cpu"),
        use_v2_model_runner=False,
    )


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "read_free_main_memory", lambda: 4 * GIB)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)


def test_choose_cache_bytes_takes_a_share_of_memory_left_by_the_weights(tmp_path, capsys):
    with open(tmp_path / "model.safetensors", "wb") as weights:
        weights.truncate(GIB)
    assert internals.choose_cache_bytes(config_of(folder=tmp_path)) == 1.5 * GIB
    assert capsys.readouterr().out == "KV cache: 1.50 GiB of 4.00 GiB free\n"


def test_choose_cache_bytes_takes_no_more_than_all_sequences_fill():
    assert internals.choose_cache_bytes(config_of(max_num_seqs=4)) == 4 * (2048 + 128) * TOKEN_BYTES


def test_choose_cache_bytes_holds_one_request_of_the_full_context_if_that_is_free():
    room = config_of(max_model_len=2**17)
    assert internals.choose_cache_bytes(room) == (2**17 + 128) * TOKEN_BYTES > 2 * GIB
    assert internals.choose_cache_bytes(config_of(max_model_len=2**18)) == int(0.9 * 4 * GIB)


@pytest.mark.parametrize("cores", ["0|1", "0,1", "2-3"])
def test_choose_cache_bytes_shares_the_memory_like_the_cores(monkeypatch, cores):
    monkeypatch.setattr(internals.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", cores)
    config = config_of()
    config.parallel_config.world_size = 2
    assert internals.choose_cache_bytes(config) == 0.5 * GIB, "half of the machine, for two processes"


@pytest.mark.parametrize(
    ("given", "space", "expected"), [(None, None, 2 * GIB), (None, GIB, GIB), (GIB // 2, GIB, GIB // 2)]
)
def test_adapting_gives_the_cache_a_size_if_nothing_else_does(monkeypatch, given, space, expected):
    """The spec's own bytes go before VLLM_CPU_KVCACHE_SPACE, which vLLM's platform puts in."""

    class Platform:
        @staticmethod
        def check_and_update_config(config: Any) -> None:
            config.cache_config.kv_cache_memory_bytes = space or config.cache_config.kv_cache_memory_bytes

    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=Platform()))
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "Generator", torch.Generator)  # which is replaced
    told: list[OpenedDetails] = []
    config = config_of(kv_cache_memory_bytes=given)
    with internals.adapting(told.append):
        Platform.check_and_update_config(config)
        monkeypatch.setattr(internals.os, "getpid", lambda: 0)  # as in a forked engine core
        Platform.check_and_update_config(config)
    assert config.cache_config.kv_cache_memory_bytes == expected
    [sizes] = told
    assert (sizes["max_num_seqs"], sizes["max_num_batched_tokens"]) == (256, 4096)
    assert (sizes["kv_cache_memory_bytes"], sizes["min_kv_cache_bytes"]) == (expected, (2048 + 128) * TOKEN_BYTES)
