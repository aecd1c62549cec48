"""A folder of wheels for machines without internet: filled here, checked there."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from installing.commands import Command, StatusLine, run
from installing.environment import hold
from installing.failures import SetupFailure, explain, name_kind
from installing.installers import CPU_TORCH_INDEX, pip_command
from installing.lock_files import Pin, normalize, read_pins
from installing.pip_settings import UNCONSTRAINED

ENVIRON = {**os.environ, **UNCONSTRAINED}
AT_ONCE = 4
"""Processes of pip side by side."""
BATCH = 16
"""Packages that one of them fetches: what is lost where it is interrupted."""
NEWEST_GLIBC = 31
"""2.31 (Debian 11, Ubuntu 20.04) is the oldest for which every package of the locks has a wheel."""
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, 4, -1)),
    *(f"{name}_x86_64" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")),
]
SIZES = {"cpu": "0.9 GB", "cuda": "some GB"}


def fetch(folder: Path, target: str, python: str) -> None:
    """Fills the folder with what `make setup` and `make setup-dev` need for a target and a Python."""
    if not re.fullmatch(r"3\.1[1-9]", python):
        raise SetupFailure(
            f"PYTHON_VERSION is {python}. Expected: 3.11, 3.12 or 3.13, the Python of the other machine."
        )
    if importlib.util.find_spec("pip") is None:
        raise SetupFailure(
            f"{sys.executable} has no pip, which fetches the wheels. Give one that has: make wheels PYTHON=…; on "
            "Debian and Ubuntu `apt install python3-pip`."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / ".lock", "wheels"):
        for left in folder.glob(".fetching-*"):
            shutil.rmtree(left)
        started = time.monotonic()
        pins = read_pins("uv", target, "dev")
        missing = find_missing(folder, pins, python)
        what = f"for {target}, Python {python}, Linux on x86-64"
        if missing:
            print(
                f"wheels: {len(missing)} of {len(pins)} wheels {what}, into {folder}; with all of them "
                f"{SIZES[target]}, about a minute per GB with a good connection",
                flush=True,
            )
            for torch in (pin for pin in missing if not pin.hashes):
                fetch_torch(folder, torch, python)
            fetch_hashed(folder, [pin for pin in missing if pin.hashes], python)
            print(f"wheels: done after {time.monotonic() - started:.0f} s", flush=True)
        else:
            print(f"wheels: {folder} has all {len(pins)} wheels {what}", flush=True)
    print(f"wheels: on the other machine, with this repository and that folder: make setup WHEELS={folder.name}")


def fetch_torch(folder: Path, pin: Pin, python: str) -> None:
    """Fetches torch's CPU build: from where pip looks anyway, or else from PyTorch's own index."""
    first = f"fetching torch's CPU build for Python {python}"
    second = f"{first} from PyTorch's own index (pip's have none)"
    for doing, more in ((first, []), (second, ["--index-url", CPU_TORCH_INDEX])):
        with temporary_folder(folder) as part:
            code, output = run(pip_download([pin], part, python, *more), ENVIRON)
            if not code:
                move_wheels(part, folder)
                return
        if more or name_kind(output) != "not_found":
            raise SetupFailure(explain(output, doing, code))


def fetch_hashed(folder: Path, pins: list[Pin], python: str) -> None:
    """Runs pip for these packages, some at a time and several side by side."""
    count = -(-len(pins) // BATCH)
    # Neighbours in the alphabet are often the large ones of one maker, so they are dealt out.
    waiting = [pins[start::count] for start in range(count)]
    running: dict[Command, tuple[list[Pin], Path]] = {}
    done = 0
    line = StatusLine("wheels")
    with temporary_folder(folder) as temporary:
        try:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    batch, part = waiting.pop(), Path(tempfile.mkdtemp(dir=temporary))
                    running[Command(pip_download(batch, part, python), ENVIRON)] = batch, part
                for command, (batch, part) in list(running.items()):
                    if (code := command.poll()) is None:
                        continue
                    output = command.read_output()
                    if code:
                        raise SetupFailure(explain(output, f"fetching {batch[0].name} and {len(batch) - 1} more", code))
                    del running[command]
                    command.stop()
                    move_wheels(part, folder)
                    done += len(batch)
                begun = sum(len(re.findall(r"^Collecting ", command.read_output(), re.M)) for command in running)
                line.show(f"{done + begun} of {len(pins)} wheels")
        finally:
            line.clear()
            for command in running:
                command.stop()


def pip_download(pins: list[Pin], part: Path, python: str, *more: str) -> list[str]:
    """The command that fetches these packages into a folder of its own."""
    requirements = part / "requirements.txt"
    requirements.write_text("\n".join(map(str, pins)), encoding="utf-8")
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    hashes = ["--require-hashes"] if pins[0].hashes else []
    arguments = ["--no-deps", "--only-binary", ":all:", *hashes, "--python-version", python, *platforms, *more]
    command = [*pip_command(sys.executable), "download", "--progress-bar", "off", *arguments]
    return [*command, "--dest", str(part), "-r", str(requirements)]


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A folder within the folder, so that what is whole is moved and never copied."""
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as name:
        yield Path(name)


def move_wheels(part: Path, folder: Path) -> None:
    """Only whole wheels have their name in the folder."""
    for wheel in part.glob("*.whl"):
        wheel.replace(folder / wheel.name)


def check_folder(folder: Path, groups: list[str]) -> None:
    """Raises a sentence unless the folder has a wheel for each package of these groups."""
    if not folder.is_dir():
        raise SetupFailure(f"WHEELS is {folder}, which is no folder. Expected: one that `make wheels` has filled.")
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    pins = read_pins(*groups)
    missing = find_missing(folder, pins, python)
    if not missing:
        return
    target = groups[0] if groups[0] in ("cpu", "cuda") else "cpu"
    named = ", ".join(f"{pin.name} {pin.version}" for pin in missing[:5]) + (", …" if len(missing) > 5 else "")
    other = sorted({tag for pin in missing for tag in other_pythons(folder, pin)})
    hint = f" (it has some for Python {', '.join(other)})" if other else ""
    raise SetupFailure(
        f"{folder} lacks {len(missing)} of {len(pins)} wheels for Python {python}: {named}{hint}. Fetch them where "
        f"there is internet: make wheels TARGET={target} PYTHON_VERSION={python} WHEELS={folder.name}"
    )


def find_missing(folder: Path, pins: Iterable[Pin], python: str) -> list[Pin]:
    """The packages for which the folder has no wheel that this Python can use."""
    files = index_folder(folder)
    return [pin for pin in pins if not any(fits(tags, python) for tags in files.get((pin.name, pin.version), []))]


def other_pythons(folder: Path, pin: Pin) -> list[str]:
    """Pythons for which the folder has a wheel of this package, as `3.12`."""
    tags = index_folder(folder).get((pin.name, pin.version), [])
    return [f"3.{found[1]}" for tag in tags if (found := re.match(r"cp3(\d+)-", tag))]


def index_folder(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Tags of the wheels of a folder, as `cp312-cp312-manylinux_2_28_x86_64`, by package and version."""
    files: dict[tuple[str, str], list[str]] = {}
    for path in folder.glob("*.whl"):
        name, version, *rest = path.stem.split("-")
        files.setdefault((normalize(name), version), []).append("-".join(rest[-3:]))
    return files


def fits(tags: str, python: str) -> bool:
    """Whether a wheel with these tags is for this CPython, on Linux on x86-64."""
    interpreters, abis, platforms = tags.split("-")
    minor = int(python.partition(".")[2])
    on_linux = any(re.fullmatch(r"any|(many)?linux.*_x86_64", platform) for platform in platforms.split("."))
    for tag in interpreters.split("."):
        found = re.fullmatch(r"(cp|py)3(\d*)", tag)
        if not on_linux or not found:
            continue
        wanted = int(found[2] or 0)
        exactly = found[1] == "cp" and wanted == minor and abis in (f"cp3{minor}", "none", "abi3")
        if exactly or (wanted <= minor and (abis == "abi3" or (abis == "none" and found[1] == "py"))):
            return True
    return False
