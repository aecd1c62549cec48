"""Whether this machine can have what is to be installed. Each check gives the sentence to show, or nothing."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

GB = 10**9
NEEDED = {"cpu": 4 * GB, "cuda": 12 * GB}
"""Free space for a first set-up: .venv, and downloads while they are unpacked."""
SKIP = "ASSAYLINE_SETUP_CHECKS"


def driver_answers() -> bool:
    """Whether nvidia-smi is there and lists a GPU."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and b"GPU 0" in subprocess.run([tool, "-L"], capture_output=True, check=False).stdout


def find_problems(target: str, venv: Path, cache: Path) -> Iterator[str]:
    """Why a first set-up cannot end well here. ASSAYLINE_SETUP_CHECKS=off finds none."""
    if os.environ.get(SKIP) == "off":
        return
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    checks = [
        check_platform(sys.platform, platform.machine(), target),
        check_processor(flags, target),
        *(check_disk(free, NEEDED[target], folder) for folder, free in measure_free(venv, cache)),
    ]
    yield from (f"{problem} {SKIP}=off skips this check." for problem in checks if problem)


def check_platform(system: str, machine: str, target: str) -> str | None:
    """vLLM's builds are for Linux; those that the locks name are for x86-64."""
    if system == "linux" and machine in ("x86_64", "AMD64"):
        return None
    return (
        f"this is {system} on {machine}; the {target} lock is for Linux on x86-64. Elsewhere install assayline without "
        "vLLM (`pip install -e .`) and measure a server: `engine.backend: server`, docs/serving.md."
    )


def check_processor(cpuinfo: str, target: str) -> str | None:
    """vLLM's CPU build has kernels for AVX2 and for AVX-512, and none for less."""
    flags: set[str] = set()
    model = "this processor"
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            flags.update(value.split())
        elif key.strip() == "model name":
            model = value.strip()
    if target != "cpu" or not flags or "avx2" in flags:
        return None
    return (
        f"{model} has no AVX2; vLLM's CPU build needs it (Intel since Haswell, AMD since Zen), and no NVIDIA driver "
        "answers here. Use a machine with either."
    )


def check_disk(free: int, needed: int, folder: Path) -> str | None:
    """A disk that runs full after minutes is better known before."""
    if free >= needed:
        return None
    return (
        f"{free / GB:.1f} GB are free for {folder}; a first set-up needs about {needed / GB:.0f} GB there. "
        "Free some, or move the folder (uv's cache: UV_CACHE_DIR) to a larger disk."
    )


def measure_free(*folders: Path) -> list[tuple[Path, int]]:
    """Of these folders, which need not be there yet, the first on each file system, and the bytes free on it."""
    found: dict[int, tuple[Path, int]] = {}
    for folder in folders:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        found.setdefault(there.stat().st_dev, (folder, shutil.disk_usage(there).free))
    return list(found.values())


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where uv keeps what it fetched."""
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(environ.get("UV_CACHE_DIR") or home / "uv")
