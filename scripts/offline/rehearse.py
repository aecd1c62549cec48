"""Rehearse the offline bundle on this machine: without a network, up to the point where a GPU is needed.

    python scripts/offline/rehearse.py --python /path/to/python3.12 [--bundle offline] [--cpu-wheel WHEEL]

PYTHON is like the target machine's: 3.12 with torch 2.11 and the packages that pack.py does not include. All steps run
in a new folder, with an empty environment and an empty home, in a network namespace without a network (`unshare -n` as
root, or `unshare -rn`). Given the wheel of vLLM's CPU build of the same version, its compiled parts replace the
bundle's, and the GPU check then runs to its end on the CPU with tiny models.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOOT = "source ./boot.sh"
NO_NETWORK = """
import socket
names = [name for _, name in socket.if_nameindex()]
assert names == ["lo"], names
print("the only interface is", *names)
"""
IMPORTS = """
import vllm, torch, duckdb
from vllm import LLM
from vllm.v1.engine.async_llm import AsyncLLM
import assayline.run.begin, assayline.run.worker, benchmarks.gpu.__main__
print("vLLM", vllm.__version__, "torch", torch.__version__, "DuckDB", duckdb.__version__)
"""
NAMES = """
from pathlib import Path
import vllm
from scripts.check_vllm import NEEDS, find_missing
missing = find_missing(Path(vllm.__file__).parent)
assert not missing, missing
print("nothing of", len(NEEDS), "classes and files is missing")
"""
KERNELS = """
import vllm._C_stable_libtorch
"""
STEPS = [
    ("no network", f"python3 -c '{NO_NETWORK}'", 0),
    ("unpack and compile", f"{BOOT} && du -sh $PLACE/site", 0),
    ("imports", f"{BOOT} && python3 -c '{IMPORTS}'", 0),
    ("names that are used of vLLM", f"{BOOT} && python3 -c '{NAMES}'", 0),
    ("tests without a GPU", f"{BOOT} && python3 -m benchmarks.gpu --device cpu --parts tests --out out", 0),
    ("the check, without a GPU", f"{BOOT} && python3 -m benchmarks.gpu", 1),
    ("an engine, without a GPU", f"{BOOT} && python3 -m benchmarks.gpu --device cpu --parts throughput --out out", 1),
    ("compiled kernels, without a driver", f"{BOOT} && python3 -c '{KERNELS}'", 1),
]
"""Name, command and expected exit code of each step."""

ON_CPU = "python3 -m benchmarks.gpu --device cpu --pairs 1 --out out"


def main() -> int:
    """Run the steps. Return the exit code: 1 if a step had an unexpected exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="Python 3.12 with torch 2.11")
    parser.add_argument("--bundle", type=Path, default=ROOT / "offline", help="folder that pack.py wrote")
    parser.add_argument("--cpu-wheel", type=Path, help="vLLM's CPU build of the bundle's version")
    parser.add_argument(
        "--parts", default="throughput,memory,kills,latency,sharing", help="parts of the check on the CPU"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-rehearsal-") as name:
        node = Path(name)
        for path in options.bundle.iterdir():
            shutil.copy(path, node)
        (node / "bin").mkdir()
        (node / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{options.python.absolute()}" "$@"\n')
        (node / "bin" / "python3").chmod(0o755)
        is_good = sum(not run_step(node, *step) for step in STEPS) == 0
        if is_good and options.cpu_wheel:
            lay_over(options.cpu_wheel, node / "place" / "site")
            is_good = run_step(node, "the check on the CPU", f"{BOOT} && {ON_CPU} --parts {options.parts}", 0)
    return int(not is_good)


def run_step(node: Path, name: str, command: str, expected: int) -> bool:
    """Run a step and print its duration and last lines. Return True if it had the expected exit code."""
    env = {"PATH": f"{node}/bin:/usr/bin:/bin", "HOME": str(node), "PLACE": str(node / "place"), "LANG": "C.UTF-8"}
    env |= {"OMP_WAIT_POLICY": "PASSIVE", "TMPDIR": str(node)}
    unshare = ["unshare", "-n" if os.getuid() == 0 else "-rn"]
    started = time.monotonic()
    done = subprocess.run(
        [*unshare, "bash", "-c", f"ip link set lo up 2>/dev/null; {command}"],
        cwd=node,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    is_good = done.returncode == expected
    seconds = time.monotonic() - started
    print(
        f"rehearse: {name}: {seconds:.1f} s, exit code {done.returncode}{'' if is_good else f', expected {expected}'}"
    )
    for line in done.stdout.strip().splitlines()[-40 if not is_good else -12 :]:
        print(f"    {line[:300]}")
    sys.stdout.flush()
    return is_good


def lay_over(wheel: Path, site: Path) -> None:
    """Replace the CUDA build's package by the CPU build's."""
    shutil.rmtree(site / "vllm")
    for info in site.glob("vllm-*.dist-info"):
        shutil.rmtree(info)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)


if __name__ == "__main__":
    sys.exit(main())
