"""Makes .venv from the lock files: vLLM's CUDA build where an NVIDIA driver answers, its CPU build elsewhere.

    python3 scripts/setup.py [--dev]

Needs Python 3.11 or newer and nothing else. What is installed is written to .venv/installed; a second call with the
same lock files does nothing.
"""

import hashlib
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, asked only where the configured one has no CPU build of the locked version."""


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells people
        sys.exit(
            f"assayline needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make demo PYTHON=python3.12"
        )
    target = "cuda" if driver_answers() else "cpu"
    locks = [ROOT / "locks" / f"{target}.txt"]
    if "--dev" in sys.argv[1:]:
        locks.append(ROOT / "locks" / "dev.txt")
    for lock in locks:
        install(lock, target)


def driver_answers() -> bool:
    """Whether nvidia-smi is there and lists a GPU."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and b"GPU 0" in subprocess.run([tool, "-L"], capture_output=True, check=False).stdout


def install(lock: Path, target: str) -> None:
    """Installs one lock file, unless it is installed already."""
    stamp = VENV / "installed" / lock.stem
    digest = hashlib.sha256(lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    started = time.monotonic()
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True, clear=VENV.exists())
    print(f"setup: installing {lock.relative_to(ROOT)} into .venv; the first time takes some minutes", flush=True)
    if target == "cpu" and lock.stem == "cpu":
        install_cpu_torch(lock)
    pip("install", "-qq", "--no-deps", "-r", str(lock))
    pip("install", "-qq", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(digest)
    print(f"setup: done after {time.monotonic() - started:.0f} s", flush=True)


def install_cpu_torch(lock: Path) -> None:
    """Installs the CPU build of torch: from where pip looks anyway, or else from PyTorch's own index."""
    version = next(line.partition("==")[2] for line in lock.read_text().splitlines() if line.startswith("torch=="))
    wanted = f"torch=={version}+cpu"
    if not pip("install", "-qq", "--no-deps", wanted, may_fail=True):
        pip("install", "-qq", "--no-deps", "--index-url", CPU_TORCH_INDEX, wanted)


def pip(*arguments: str, may_fail: bool = False) -> bool:
    """Runs pip in .venv. Ends the script with pip's exit code if it fails, unless it may."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    code = subprocess.run(command, check=False, stderr=subprocess.DEVNULL if may_fail else None).returncode
    if code and not may_fail:
        sys.exit(f"setup: `{' '.join(command)}` failed with exit code {code}; pip's message is above.")
    return code == 0


if __name__ == "__main__":
    main()
