"""uv, and pip where uv cannot be had: both install lock files into an environment."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from installing import progress
from installing.commands import StatusLine, run
from installing.environment import ROOT, Environment
from installing.failures import SetupFailure, explain, name_kind
from installing.lock_files import GROUPS, lock_path, parse_pins
from installing.pip_settings import UNCONSTRAINED, read_pip_settings, uv_variables, without_settings
from installing.torchvision_build import declare_operators

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, asked only where the configured ones have no CPU build of the locked version."""
OLDEST_UV = (0, 5)
"""The first that knows every variable by which it is told where pip looks."""


class Installer:
    """One of the two, with how it is called."""

    def __init__(
        self, environment: Environment, wheels: Path | None, uv: Path | None, keep_open: Sequence[int]
    ) -> None:
        self.has_changed = False
        """Whether .venv may be other than before the first call of `install`."""
        self._is_uv = uv is not None
        self._python = environment.python
        self._keep_open = keep_open
        self._describe: Callable[[str, int], str] = progress.describe_uv if uv else progress.describe_pip
        self._environ = dict(os.environ) if wheels is None else without_settings(os.environ)
        if uv:
            self._command = [str(uv), "pip", "install", "--python", str(environment.python)]
            if wheels is None:
                self._environ |= uv_variables(read_pip_settings(environment.python), os.environ)
        else:
            self._command = [*pip_command(environment.python), "install", "--progress-bar", "off"]
            self._environ |= UNCONSTRAINED
        if wheels is not None:
            self._command += ["--no-index", "--find-links", str(wheels)]

    def install(self, group: str) -> None:
        """Installs one group of locks."""
        for name in GROUPS[group]:
            (self._install_torch if name == "torch-cpu" else self._install_lock)(name)
        if group == "cpu":
            declare_operators(self._python)

    def install_project(self) -> None:
        """This repository itself, as links to its folders; with the setuptools that the lock has installed."""
        self._run(["--no-build-isolation", "--no-deps", "-e", str(ROOT)], 1, "installing assayline itself")

    def _install_lock(self, name: str) -> None:
        total = len(parse_pins(lock_path(name).read_text(encoding="utf-8")))
        self._run(["--no-deps", "--require-hashes", "-r", str(lock_path(name))], total, f"installing locks/{name}.txt")

    def _install_torch(self, name: str) -> None:
        """From where pip looks anyway, or else from PyTorch's own index."""
        arguments = ["--no-deps", "-r", str(lock_path(name))]
        doing = "installing torch's CPU build"
        try:
            self._run(arguments, 1, doing)
        except NotFound as failure:
            if "--no-index" in self._command:
                raise
            option = "--default-index" if self._is_uv else "--index-url"
            doing += " from PyTorch's own index (pip's have none)"
            try:
                self._run([*arguments, option, CPU_TORCH_INDEX], 1, doing)
            except SetupFailure as second:
                raise second from failure

    def _run(self, arguments: list[str], total: int, doing: str) -> None:
        line = StatusLine("setup")
        is_fetching = False

        def show(output: str) -> None:
            nonlocal is_fetching
            is_fetching = progress.is_fetching(output)
            line.show(f"{doing}: {self._describe(output, total)}")

        try:
            code, output = run([*self._command, *arguments], self._environ, self._keep_open, show)
        except KeyboardInterrupt:
            self.has_changed |= not is_fetching
            raise
        finally:
            line.clear()
        kind = name_kind(output) if code else None
        # uv and pip fetch everything before they change anything.
        self.has_changed |= kind not in ("network", "certificate", "hash", "not_found")
        if code:
            raise (NotFound if kind == "not_found" else SetupFailure)(explain(output, doing, code))


class NotFound(SetupFailure):
    """A package is on none of the indexes that were asked."""


def find_uv() -> Path | None:
    """The uv on the PATH, if it runs and is new enough."""
    found = shutil.which("uv")
    return Path(found) if found and (read_version(Path(found)) or (0,)) >= OLDEST_UV else None


def read_version(uv: Path) -> tuple[int, ...] | None:
    """What `uv --version` says; nothing where it does not run."""
    try:
        text = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = re.match(r"uv (\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, numbers.groups())) if numbers else None


def bring_uv(environment: Environment, wheels: Path | None, keep_open: Sequence[int]) -> Path | None:
    """uv of locks/uv.txt, in .venv; nothing where the index has none for this machine."""
    uv = environment.python.parent / "uv"
    pip = Installer(environment, wheels, None, keep_open)
    try:
        pip.install("uv")
    except NotFound:
        print("setup: no uv for this machine; pip does it instead, in some minutes", flush=True)
        return None
    return uv if read_version(uv) else None


def make_environment(environment: Environment, keep_open: Sequence[int]) -> None:
    """An empty environment with pip, of the Python that runs this."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(environment.folder)]
    code, output = run(command, os.environ, keep_open)
    if not code:  # in a step of its own, as `venv` keeps to itself what goes wrong in it
        command = [str(environment.python), "-I", "-m", "ensurepip", "--upgrade", "--default-pip"]
        code, output = run(command, os.environ, keep_open)
    has_no_pip = re.search(r"No module named '?(ensurepip|venv)|ensurepip is (not available|disabled)", output)
    if code and has_no_pip and environment.python.exists() and find_uv():
        return  # uv does without
    if code and has_no_pip:
        raise SetupFailure(
            f"this Python ({sys.executable}) cannot make a virtual environment with pip. Expected: Python's `venv` and "
            "`ensurepip`; on Debian and Ubuntu `apt install python3-venv`. uv on the PATH does without pip."
        )
    if code:
        raise SetupFailure(explain(output, "making .venv", code))


def pip_command(python: Path | str) -> list[str]:
    """pip of a Python, without its hint at newer versions."""
    return [str(python), "-m", "pip", "--disable-pip-version-check"]
