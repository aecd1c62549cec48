"""Set-up without any network, for real: `make test-airgap`. Not among the tests that `make test` runs.

ASSAYLINE_WHEELS names a folder that `make wheels` has filled; without it one is filled first.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from pip_settings import read_pip_settings, uv_variables  # noqa: E402
from setup import NEWEST_GLIBC  # noqa: E402

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
IMPORTS = (
    "import assayline.flows, pytest, ray, torch, vllm; print('vllm', vllm.__version__, 'torch', torch.__version__)"
)


@pytest.fixture(scope="session", autouse=True)
def namespace() -> None:
    """Skips where this machine lets nobody have a network namespace."""
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace here (unshare -rn)")


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the files that git knows, as they are now; gone afterwards, being large."""
    folder = tmp_path_factory.mktemp("clone")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def filled(clone: Path) -> Path:
    """A folder of wheels."""
    folder = Path(os.environ.get("ASSAYLINE_WHEELS") or clone / "wheels").resolve()
    show("with network", make(clone, "wheels", f"WHEELS={folder}", "TARGET=cpu"))
    return folder


def make(clone: Path, *arguments: str, offline: bool = False) -> subprocess.CompletedProcess:
    """`make` in the copy; offline in a network namespace with nothing in it, and with an empty cache."""
    environ = {**os.environ, "UV_CACHE_DIR": str(clone / "empty-cache")}
    command = [*(["unshare", "-rn"] if offline else []), "make", *arguments, f"PYTHON={sys.executable}"]
    return subprocess.run(command, cwd=clone, env=environ, capture_output=True, text=True, check=False)


def show(title: str, done: subprocess.CompletedProcess) -> None:
    """For the reader of the log; fails unless the command did well."""
    print(f"\n--- {title}: {' '.join(done.args)}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0


def test_without_network_and_without_wheels_a_sentence_says_what_to_do(clone):
    done = make(clone, "setup", offline=True)
    print(done.stderr)
    assert done.returncode
    assert "the index cannot be reached" in done.stderr and "make setup WHEELS=folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_whole_cpu_lock_is_installed_without_network(clone, filled):
    started = time.monotonic()
    show("first", make(clone, "setup-dev", f"WHEELS={filled}", offline=True))
    print(f"first: {time.monotonic() - started:.1f} s")
    python = clone / ".venv" / "bin" / "python"
    everything = {**os.environ, "PYTHONPATH": ""}  # tests hide what users do not have; here it was installed
    done = subprocess.run(
        ["unshare", "-rn", python, "-c", IMPORTS],
        cwd=clone,
        env=everything,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    started = time.monotonic()
    show("second", make(clone, "setup-dev", offline=True))
    print(f"second: {time.monotonic() - started:.1f} s")


def test_a_missing_wheel_is_named(clone, filled, tmp_path):
    for wheel in filled.glob("*.whl"):
        if not wheel.name.startswith("duckdb-"):
            (tmp_path / wheel.name).symlink_to(wheel)
    shutil.rmtree(clone / ".venv", ignore_errors=True)
    done = make(clone, "setup", f"WHEELS={tmp_path}", offline=True)
    print(done.stdout, done.stderr)
    assert done.returncode and "duckdb" in done.stdout and "`make wheels PYTHON_VERSION=" in done.stderr


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("lock", ["cpu", "cuda", "ray", "dev", "uv"])
def test_each_lock_resolves_for_each_python(lock, python, tmp_path):
    """Every package has a wheel with a locked hash for Linux on x86-64. Needs the network; installs nothing."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert uv, "`make setup-dev` brings uv"
    platform = f"x86_64-manylinux_2_{NEWEST_GLIBC}"
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-platform", platform]
    wanted = ["--python-version", python, "--target", str(tmp_path), "-r", str(ROOT / "locks" / f"{lock}.txt")]
    done = subprocess.run(
        [uv, "pip", "install", "--dry-run", *options, *wanted],
        env={**os.environ, **uv_variables(read_pip_settings(Path(sys.executable)), os.environ)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"{lock} for Python {python}: {next(line for line in done.stderr.splitlines() if 'Resolved' in line)}")
