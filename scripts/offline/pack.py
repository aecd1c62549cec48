"""Pack the project, vLLM and their packages for a CUDA machine without a network, in 64 MiB.

    python scripts/offline/pack.py [--out offline] [--work .cache/offline] [--extra "NAME==VERSION …"] [--project-only]

The machine must have Python 3.12, torch 2.11 (CUDA 13), a Hopper GPU, and packages common with torch and transformers
(numpy, pyarrow, psutil, rich, pytest, …). vLLM 0.26 is the newest for that torch. Only the parts for dense models in
bf16 are packed: no Rust front end, no guidance for structured outputs but xgrammar, and no kernels for
mixture-of-experts models, other attention or other GPUs.
packages.txt lists the other packages. OUT gets site.tar.xz, project.tar.xz and boot.sh; unpack them on the machine with
`source boot.sh`.
"""

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

from trim_kernels import trim

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 64 * 2**20
PYTHON = "3.12"
PLATFORMS = [*(f"manylinux_2_{glibc}_x86_64" for glibc in range(39, 16, -1)), "manylinux2014_x86_64"]
SM = 90
PACKAGES = Path(__file__).with_name("packages.txt")
LEFT_OUT = (
    "vllm/vllm-rs", "vllm/_rust_tool_parser.abi3.so", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
    "vllm/vllm_flash_attn/cute", "vllm/_flashmla*.so", "vllm/_qutlass_C.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so", "vllm/third_party/deep_gemm", "vllm/third_party/fmha_sm100",
    "vllm/third_party/tml_fa4", "vllm/entrypoints/serve/instrumentator/static", "xgrammar/include",
    "scipy/[a-r]*", "scipy/si*", "scipy/spa*", "scipy/st*", "scipy/special/cython_special*", "scipy/**/tests",
    "scipy.libs/libgfortran-8f1e9814*", "scipy.libs/libquadmath-828275a7*", "**/*.a", "**/*.pyi",
)  # fmt: skip
"""Paths below site that dense models in bf16 on Hopper do not need. Of SciPy, a run's metrics need special alone."""

TRIMMED = "vllm/_C_stable_libtorch.abi3.so"


def main() -> int:
    """Pack the bundle. Return the exit code: 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "offline", help="folder of the archives")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "offline", help="folder of wheels and files")
    parser.add_argument("--extra", default="", help="additional packages, space-separated, as NAME==VERSION")
    parser.add_argument("--project-only", action="store_true", help="keep the existing site.tar.xz")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    steps = {
        "wheels": lambda: download(options.work / "wheels", [*read_packages(), *options.extra.split()]),
        "site": lambda: unpack(options.work / "wheels", options.work / "site"),
        "site.tar.xz": lambda: pack(options.work / "site", "site", options.out / "site.tar.xz"),
        "project.tar.xz": lambda: pack_project(options.work, options.out / "project.tar.xz"),
        "boot.sh": lambda: shutil.copy(Path(__file__).with_name("boot.sh"), options.out),
    }
    if options.project_only:
        steps = {name: steps[name] for name in ("project.tar.xz", "boot.sh")}
    for name, step in steps.items():
        started = time.monotonic()
        step()
        print(f"pack: {name} after {time.monotonic() - started:.0f} s", flush=True)
    total = 0
    for path in sorted(options.out.iterdir()):
        total += path.stat().st_size
        print(f"pack: {path.name} {path.stat().st_size / 2**20:.1f} MiB")
    print(f"pack: {total / 2**20:.1f} MiB in total, limit {LIMIT_BYTES >> 20} MiB")
    return int(total > LIMIT_BYTES)


def read_packages() -> list[str]:
    """Read names and versions from packages.txt."""
    return [line for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]


def download(wheels: Path, requirements: list[str]) -> None:
    """Download one wheel each for the target machine. Other wheels in the folder are deleted."""
    wheels.mkdir(parents=True, exist_ok=True)
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    target = ["--python-version", PYTHON, "--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(wheels)]
    subprocess.run([*command, *target, *platforms, *requirements], check=True)
    wanted = {requirement.replace("-", "_").replace("==", "-").lower() for requirement in requirements}
    for wheel in wheels.glob("*.whl"):
        if "-".join(wheel.name.split("-")[:2]).lower() not in wanted:
            wheel.unlink()


def unpack(wheels: Path, site: Path) -> None:
    """Unpack all wheels into one folder, without files that the target machine does not need."""
    shutil.rmtree(site, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)
    for pattern in LEFT_OUT:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    library = bytearray((site / TRIMMED).read_bytes())
    before, after = trim(library, SM)
    (site / TRIMMED).write_bytes(library)
    print(f"pack: {TRIMMED}: {before >> 20} MiB of kernels, {after >> 20} MiB of them for sm_{SM}")
    libraries = [str(path) for path in site.rglob("*.so*") if path.is_file() and is_stripped(path.relative_to(site))]
    subprocess.run(["strip", "-s", *libraries], check=False, stderr=subprocess.DEVNULL)


def is_stripped(path: Path) -> bool:
    """Return False for vLLM's own libraries and those moved by auditwheel, which stripping breaks."""
    return path.parts[0] not in ("vllm", "pyzmq.libs")


def pack_project(work: Path, out: Path) -> None:
    """Archive the repository as committed, without documentation and tests."""
    folder = work / "project"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", "HEAD", ".", ":!docs", ":!tests"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    pack(folder, "project", out)


def pack(folder: Path, name: str, out: Path) -> None:
    """Write a reproducible .tar.xz with maximum compression."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    filters: list[dict[str, int]] = [{"id": lzma.FILTER_X86}]
    filters += [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 192 * 2**20}]
    with lzma.open(out, "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w|") as archive:
        archive.add(folder, name, filter=plain)


if __name__ == "__main__":
    sys.exit(main())
