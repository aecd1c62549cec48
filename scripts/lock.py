"""Writes the lock files from pyproject's ranges, with pip's own resolver: names and versions only.

    python scripts/lock.py cpu|cuda|dev

Each lock is the whole set of packages for one purpose, installed with `--no-deps`:
    cpu   runtime with vLLM's CPU build
    cuda  runtime with vLLM's CUDA build
    dev   what tests and linters need on top of cpu
torchvision, torchaudio and torchcodec are left out of cpu and dev: the registry has CUDA builds of them only, which
fail beside a CPU torch and take transformers down with them; nothing here reads images or sound.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
PYTHONS = ("3.11.0", "3.11.9", "3.12.0", "3.13.0")
"""Packages ask for different helpers on different Pythons; a lock has them all."""
CUDA_PINS = ["vllm==0.32.0"]
"""The same vLLM as the CPU build, so that what the tests prove holds there too."""


def main(target: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = project["dependencies"]
    if target == "cuda":
        pins = resolve(runtime + extras["cuda"] + CUDA_PINS, cpu_torch=False)
    else:
        pins = {
            name: version
            for name, version in resolve(runtime + extras["cpu"], cpu_torch=True).items()
            if name not in LEFT_OUT
        }
    if target == "dev":
        wanted = runtime + extras["cpu"] + extras["dev"] + extras["ray"] + extras["hub"]
        wanted += [f"{name}=={version}" for name, version in pins.items()]
        everything = resolve(wanted, cpu_torch=True)
        pins = {name: version for name, version in everything.items() if name not in pins and name not in LEFT_OUT}
    path = ROOT / "locks" / f"{target}.txt"
    lines = [
        f"# Written by scripts/lock.py {target}: do not edit. Installed with --no-deps.",
        *(f"{name}=={version}" for name, version in sorted(pins.items())),
    ]
    path.write_text("\n".join(lines) + "\n")
    print(f"{path}: {len(pins)} packages")


def resolve(requirements: list[str], cpu_torch: bool) -> dict[str, str]:
    """Names and versions that pip would install into an empty environment, for every supported Python."""
    chosen = ask_pip(requirements, cpu_torch)
    while missing := needed_by_other_pythons(chosen):
        requirements = requirements + missing
        chosen = ask_pip(requirements, cpu_torch)
    return {canonicalize_name(item["name"]): item["version"].partition("+")[0] for item in chosen}


def needed_by_other_pythons(chosen: list[dict[str, Any]]) -> list[str]:
    """Requirements whose marker does not hold for this interpreter, but for another one that may use the lock."""
    names = {canonicalize_name(item["name"]) for item in chosen}
    missing = set()
    for requirement in (Requirement(text) for item in chosen for text in item.get("requires_dist", [])):
        if requirement.marker is None or canonicalize_name(requirement.name) in names | LEFT_OUT:
            continue
        for full in PYTHONS:
            environment = {"python_full_version": full, "python_version": full.rpartition(".")[0], "extra": ""}
            if requirement.marker.evaluate(environment):
                missing.add(f"{requirement.name}{requirement.specifier}")
    return sorted(missing)


def ask_pip(requirements: list[str], cpu_torch: bool) -> list[dict[str, Any]]:
    """Metadata of what pip would install."""
    environment = dict(os.environ)
    if not cpu_torch:
        environment.pop("PIP_FIND_LINKS", None)  # a local CPU build of torch must not shadow the CUDA build
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--dry-run",
                "--ignore-installed",
                "--report",
                str(report),
                *requirements,
            ],
            check=True,
            env=environment,
        )
        return [item["metadata"] for item in json.loads(report.read_text())["install"]]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("cpu", "cuda", "dev"):
        sys.exit(__doc__)
    main(sys.argv[1])
