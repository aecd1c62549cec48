"""Set-up: what it asks of a machine, what it says when something is missing, how an interrupted one is repaired."""

import ast
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from installing import installers, machine, progress, wheels  # noqa: E402
from installing import main as command  # noqa: E402
from installing.environment import Environment, hold  # noqa: E402
from installing.failures import SetupFailure, explain, name_kind, redact  # noqa: E402
from installing.lock_files import parse_pins, read_pins  # noqa: E402
from installing.pip_settings import parse_pip_settings, uv_variables, without_settings  # noqa: E402
from installing.torchvision_build import MARK, declare_operators  # noqa: E402

GB = 10**9
UV = """#!/bin/sh
case "$1" in --version) echo "uv 0.13.9"; exit;; esac
echo "$@" >> "$0.calls"
if [ -e "$0.fails" ]; then cat "$0.fails"; exit 1; fi
"""


# What a machine must have


def test_a_processor_without_avx2_is_named() -> None:
    text = "processor : 0\nmodel name\t: Old i5\nflags\t\t: fpu sse4_2 avx\n"
    problem = machine.check_processor(text, "cpu")
    assert problem and "Old i5 has no AVX2" in problem
    assert machine.check_processor(text.replace("avx", "avx avx2"), "cpu") is None
    assert machine.check_processor(text, "cuda") is None, "the CUDA build does without"
    assert machine.check_processor("", "cpu") is None, "unknown is not missing"


def test_other_platforms_are_told_what_they_can_have() -> None:
    assert machine.check_platform("linux", "x86_64", "cpu") is None
    for system, kind in (("darwin", "arm64"), ("linux", "aarch64")):
        problem = machine.check_platform(system, kind, "cpu")
        assert problem and kind in problem and "docs/serving.md" in problem


def test_a_disk_that_will_not_hold_it_is_told_before() -> None:
    problem = machine.check_disk(int(1.5 * GB), 4 * GB, Path("/x"))
    assert problem and "1.5 GB are free for /x" in problem and "4 GB" in problem
    assert machine.check_disk(4 * GB, 4 * GB, Path("/x")) is None


def test_folders_on_one_file_system_are_counted_once(tmp_path: Path) -> None:
    assert len(machine.measure_free(tmp_path / "a" / "b", tmp_path / "c")) == 1


def test_old_pythons_can_read_the_first_file() -> None:
    ast.parse((ROOT / "scripts" / "setup.py").read_text(encoding="utf-8"), feature_version=(3, 7))


def test_an_old_python_gets_a_sentence() -> None:
    homes = (Path.home() / ".pyenv" / "versions").glob("*/bin/python3")
    found = [str(path) for path in homes if path.parts[-3].startswith(("3.6.", "3.8.", "3.10."))]
    found += [path for name in ("python3.8", "python3.9", "python3.10") if (path := shutil.which(name))]
    for python in found:
        done = subprocess.run([python, "scripts/setup.py"], cwd=ROOT, capture_output=True, text=True, check=False)
        if "Expected: 3.11 or newer" in done.stderr:
            assert done.returncode == 1 and "Traceback" not in done.stderr
            return
    pytest.skip("no older Python here")


# What uv is told of pip's configuration


def test_pip_settings_are_passed_on_to_uv(tmp_path: Path) -> None:
    settings = parse_pip_settings(
        "WARNING: something\nglobal.index-url='https://one.example/simple'\nglobal.timeout='15'\n"
        f"global.extra-index-url='https://two.example/simple file://{tmp_path}'\n"
        f"install.find-links='{tmp_path}\\n{tmp_path}/gone\\nhttps://three.example/files'\n"
        ":env:.timeout='60'\nglobal.trusted-host='one.example'\nglobal.proxy='http://proxy.example:1'\n"
    )
    variables = uv_variables(settings, {})
    assert variables["UV_DEFAULT_INDEX"] == "https://one.example/simple"
    assert variables["UV_INDEX"] == f"https://two.example/simple file://{tmp_path}"
    assert variables["UV_FIND_LINKS"] == f"{tmp_path},https://three.example/files", "uv stops at a folder that is gone"
    assert variables["UV_HTTP_TIMEOUT"] == "60", "pip's variables win over its files"
    assert variables["UV_INSECURE_HOST"] == "one.example"
    assert variables["HTTPS_PROXY"] == "http://proxy.example:1"
    assert variables["UV_INDEX_STRATEGY"] == "unsafe-best-match", "as with pip, all indexes count alike"


def test_what_is_set_for_uv_itself_is_left_alone() -> None:
    environ = {"UV_INDEX_URL": "https://own.example", "UV_HTTP_TIMEOUT": "5", "https_proxy": "x"}
    variables = uv_variables({"index-url": "https://pip.example", "timeout": "9", "proxy": "y"}, environ)
    assert not {"UV_DEFAULT_INDEX", "UV_HTTP_TIMEOUT", "HTTPS_PROXY"} & variables.keys()


def test_from_a_folder_no_index_is_known() -> None:
    bare = without_settings({"PIP_INDEX_URL": "x", "UV_INDEX": "y", "UV_FIND_LINKS": "z", "HOME": "/h"})
    assert bare["HOME"] == "/h" and bare["UV_OFFLINE"] == "1" and bare["PIP_NO_INDEX"] == "1"
    assert not {"PIP_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS"} & bare.keys()


# What is said when it fails


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
        ("error: something new", "other"),
    ],
)
def test_failures_are_told_apart(output: str, kind: str) -> None:
    assert name_kind(output) == kind
    sentence = explain(output, "installing", 2)
    assert sentence.startswith("installing failed: ")
    assert ("make wheels" in sentence) == (kind == "network")


def test_no_address_is_shown() -> None:
    shown = redact(
        "cause: Failed to fetch: `https://user:secret@host.example/simple/numpy/` (https://host.example/a.whl)"
    )
    assert "example" not in shown and "secret" not in shown
    assert "numpy" in shown and "a.whl" in shown
    assert "pool" in redact("pool(host='host.example', port=443)") and "example" not in redact("(host='host.example')")


# How far it is


def test_progress_of_uv_counts_files_and_sizes() -> None:
    output = "Resolved 208 packages in 1s\nDownloading torch (1.0GiB)\nDownloading ray (76MiB)\n Downloaded ray\n"
    assert progress.describe_uv("", 208) == "looking up 208 packages"
    assert progress.describe_uv(output, 208) == "fetched 1 of 2 large files, 76 of 1100 MiB; fetching torch"
    assert progress.is_fetching(output)
    assert not progress.is_fetching(output + "Prepared 208 packages in 9s\n")
    assert not progress.is_fetching("Resolved 208 packages in 1s\n"), "all cached: it may be installing already"


def test_progress_of_pip_counts_packages() -> None:
    output = "Collecting numpy==2.0\n  Downloading numpy.whl (16 MB)\nCollecting ray==2\n"
    assert progress.describe_pip(output, 9) == "2 of 9 packages: ray"
    assert progress.is_fetching(output)
    assert not progress.is_fetching(output + "Installing collected packages: numpy, ray\n")


# Locks and wheels


def test_every_package_of_the_locks_has_hashes_but_torchs_cpu_build() -> None:
    assert [pin.name for pin in read_pins("cpu", "cuda", "dev", "uv") if not pin.hashes] == ["torch"]
    for target in ("cpu", "cuda"):
        names = {pin.name for pin in read_pins(target)}
        assert "setuptools" in names, "a Python of 3.12 or newer makes environments without it"
        assert "torch" in names


def test_torchvision_is_mended_once_and_not_in_the_cache(tmp_path: Path) -> None:
    python, cached = tmp_path / "python", tmp_path / "cached.py"
    python.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    python.chmod(0o755)
    declare_operators(python)  # an environment without torchvision is none to mend
    cached.write_text("import torch\n\ndef _has_ops():\n    return False\n")
    installed = tmp_path / "torchvision" / "extension.py"
    installed.parent.mkdir()
    installed.hardlink_to(cached)
    for _ in range(2):
        declare_operators(python)
    ast.parse(installed.read_text())
    assert installed.read_text().count(MARK) == 1
    assert MARK not in cached.read_text()


def test_torchvision_can_be_imported_where_it_is_installed() -> None:
    pytest.importorskip("torch")
    code = "import torch, torchvision.transforms.v2.functional as f; f.resize(torch.zeros(3, 8, 8), [4, 4])"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pin_is_written_as_it_was_read() -> None:
    (pin,) = parse_pins("# head\na-b==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n")
    assert str(pin) == "a-b==1.0 --hash=sha256:00 --hash=sha256:11"


@pytest.mark.parametrize(
    ("tags", "pythons"),
    [
        ("py3-none-any", ["3.11", "3.12", "3.13"]),
        ("py2.py3-none-any", ["3.11", "3.12", "3.13"]),
        ("cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", ["3.12"]),
        ("cp39-abi3-manylinux_2_28_x86_64", ["3.11", "3.12", "3.13"]),
        ("cp312-abi3-linux_x86_64", ["3.12", "3.13"]),
        ("cp313-cp313t-manylinux_2_28_x86_64", []),
        ("cp312-cp312-musllinux_1_2_x86_64", []),
        ("cp312-cp312-manylinux_2_28_aarch64", []),
        ("py3-none-macosx_11_0_arm64", []),
    ],
)
def test_wheels_that_a_python_can_use(tags: str, pythons: list[str]) -> None:
    assert [python for python in ("3.11", "3.12", "3.13") if wheels.fits(tags, python)] == pythons


def test_a_folder_says_what_it_lacks(tmp_path: Path) -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for pin in read_pins("dev"):
        (tmp_path / f"{pin.name.replace('-', '_')}-{pin.version}-py3-none-any.whl").touch()
    wheels.check_folder(tmp_path, ["dev"])
    (tmp_path / f"execnet-{next(p.version for p in read_pins('dev') if p.name == 'execnet')}-py3-none-any.whl").unlink()
    with pytest.raises(SetupFailure, match=rf"lacks 1 of \d+ wheels for Python {python}: execnet .*make wheels"):
        wheels.check_folder(tmp_path, ["dev"])
    with pytest.raises(SetupFailure, match="no folder"):
        wheels.check_folder(tmp_path / "nowhere", ["dev"])


def test_a_python_that_no_lock_is_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupFailure, match=r"PYTHON_VERSION is 3\.9\. Expected"):
        wheels.fetch(tmp_path, "cpu", "3.9")


# .venv


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command on an empty folder, with a uv that only writes down how it was called."""
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)

    def make(environment: Environment, _: object) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment.folder)], check=True)

    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "find_uv", lambda: uv)
    monkeypatch.setattr(command, "make_environment", make)
    monkeypatch.setattr(command, "guess_target", lambda: "cpu")
    monkeypatch.setattr(command, "find_problems", lambda *_: [])
    monkeypatch.setattr(installers, "read_pip_settings", lambda _: {})
    return lambda *arguments: command.main(arguments)


def read_calls(folder: Path) -> list[str]:
    """How uv was called since the last look."""
    path = folder / "uv.calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_the_second_call_does_nothing(setup: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert setup("--dev") == 0
    first = read_calls(tmp_path)
    assert [line.split()[-1].rpartition("/")[2] for line in first if " -r " in line] == [
        "torch-cpu.txt",
        "cpu.txt",
        "dev.txt",
    ]
    assert all("--require-hashes" in line for line in first if line.endswith(("/cpu.txt", "/dev.txt")))
    assert "half a minute" in capsys.readouterr().out
    assert setup("--dev") == setup() == 0
    assert read_calls(tmp_path) == [] and capsys.readouterr().out == ""


@pytest.mark.parametrize("damage", ["killed", "no python", "vanished python", "moved", "other target"])
def test_a_damaged_environment_is_made_anew(
    setup: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture, damage: str
) -> None:
    assert setup() == 0
    venv = tmp_path / ".venv"
    left_over = venv / "lib" / "left-over"
    left_over.touch()
    read_calls(tmp_path)
    if damage == "killed":
        Environment(venv).begin()
    elif damage == "no python":
        (venv / "bin" / "python").unlink()
    elif damage == "vanished python":
        for name in ("python", "python3"):
            (venv / "bin" / name).unlink()
        (venv / "bin" / "python").symlink_to(tmp_path / "gone")
    elif damage == "moved":
        (venv / "installed" / "folder").write_text("/elsewhere/.venv")
    else:
        (venv / "installed" / "cpu").rename(venv / "installed" / "cuda")
    assert setup() == 0
    assert "making .venv anew" in capsys.readouterr().out
    assert read_calls(tmp_path) and not left_over.exists()
    assert setup() == 0 and not read_calls(tmp_path)


def test_what_works_is_kept_when_the_network_is_gone(
    setup: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert setup() == 0
    (tmp_path / "uv.fails").write_text("error: Request failed\n  cause: dns error\n")
    assert setup("--dev") == 1
    assert "make wheels" in capsys.readouterr().err
    read_calls(tmp_path)
    assert setup() == 0 and not read_calls(tmp_path), "nothing had been changed"
    (tmp_path / "uv.fails").write_text("error: No space left on device (os error 28)")
    assert setup("--dev") == 1
    assert "no space is left" in capsys.readouterr().err
    (tmp_path / "uv.fails").unlink()
    assert setup("--dev") == 0
    assert "making .venv anew" in capsys.readouterr().out, "a full disk may have left half of a package"


def test_an_interruption_is_a_sentence(
    setup: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "make_environment", interrupt)
    assert setup() == 130
    assert "interrupted; the same command resumes" in capsys.readouterr().err


def test_the_second_of_two_waits_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    order: list[str] = []

    def second() -> None:
        with hold(tmp_path / "lock", "setup"):
            order.append("second")

    with hold(tmp_path / "lock", "setup"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert f"process {os.getpid()}) is at work" in capsys.readouterr().out


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    """A file system of 12 MiB: told before, or, if the check is off, when it is full."""
    if subprocess.run(["unshare", "-rmn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of its own here (unshare -rmn)")
    script = (
        "mkdir disk && mount -t tmpfs -o size=12m none disk && cd disk && "
        'cp -r "$1"/scripts "$1"/locks "$1"/pyproject.toml . && '
        '"$2" scripts/setup.py; ASSAYLINE_SETUP_CHECKS=off "$2" scripts/setup.py'
    )
    done = subprocess.run(
        ["unshare", "-rmn", "sh", "-c", script, "sh", str(ROOT), sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert done.returncode == 1
    before, after = (line for line in done.stderr.splitlines() if line.startswith("setup: "))
    assert "0.0 GB are free" in before and "4 GB" in before
    assert "no space is left on the disk" in after
    assert "Traceback" not in done.stderr
