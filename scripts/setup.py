"""Make .venv from the lock files: vLLM's CUDA build if an NVIDIA driver answers, otherwise its CPU build.

    python3 scripts/setup.py [--extra ray | --dev] [--target cpu|cuda] [--wheels FOLDER]
    python3 scripts/setup.py wheels [--target cpu|cuda] [--python 3.12] [--wheels FOLDER]
    python3 scripts/setup.py --check

Needs Python 3.11 or newer with venv and pip: pip installs the uv of locks/uv.txt, and uv installs everything else.
`wheels` fills a folder for machines without internet. `--check` prints which vLLM is installed and which ones work.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# This file must parse on any Python, so that an old one prints a message instead of a SyntaxError.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "setup: Python %d.%d (%s) is too old; 3.11 or newer is needed. hint: make setup PYTHON=python3.12"  # noqa: UP031
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

from pip_settings import read_pip_settings, uv_variables

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from assayline.flows.cli import doctor  # the standard library is enough for it  # noqa: E402

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Used only if pip's indexes do not have torch's CPU build."""
PIP = ["-m", "pip", "--disable-pip-version-check"]
NEEDED_GB = {"cpu": 4, "cuda": 12}
MORE: list[list[str]] = [[], ["ray"], ["ray", "dev"]]
"""The locks besides the target's: of an ordinary setup, of one with `--extra ray`, and of one with `--dev`."""
NEWEST_GLIBC = 31
"""glibc 2.31 (Debian 11, Ubuntu 20.04), the oldest for which every locked package has a wheel."""
HIDDEN = (" + ", " - ", " ~ ", "Looking in ", "Saved ", "Checked ", "Using Python ", "Processing ", "Success")
"""Prefixes of lines of uv and pip that are not shown."""
PATTERNS = {
    "disk": r"No space left on device|os error 28\b|Errno 28\b|Disk quota exceeded|os error 122\b",
    "certificate": r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|UnknownIssuer",
    "network": r"dns error|name resolution|Name or service not known|tcp connect error|Connection (refused|reset)"
    r"|Network is unreachable|No route to host|error sending request|NewConnectionError|ConnectTimeout|ProxyError"
    r"|operation timed out|ReadTimeout|Read timed out|Network connectivity is disabled",
    "hash": r"hash mismatch|DO NOT MATCH THE HASHES|no hashes were provided or computed",
    "not_found": r"no version of|No matching distribution|(was|were) not found|has no wheels with|no usable wheels",
    "no_pip": r"No module named '?(pip|ensurepip)|ensurepip is (not available|disabled)",
}
"""Patterns in the output of uv or pip, by kind of failure. The first match counts."""
HINTS = {
    "disk": "no space left: free some, or set TMPDIR and UV_CACHE_DIR to folders on a larger disk.",
    "certificate": "if a proxy signs the index's certificate, run `pip config set global.cert FILE`.",
    "network": "the index cannot be reached: configure a proxy or an index in pip; uv uses pip's configuration. "
    "Without internet, see docs/guides/wheels.md: `make wheels`, then `make setup WHEELS=folder` here.",
    "hash": "a file is not the locked one: try `.venv/bin/uv cache clean`; otherwise an index or a folder of pip's "
    "configuration (`pip config list`) has another build: leave it out, as PIP_CONFIG_FILE=/dev/null does.",
    "not_found": "a locked package is neither on pip's indexes, which must mirror PyPI, nor in WHEELS, which "
    f"`make wheels PYTHON_VERSION={sys.version_info[0]}.{sys.version_info[1]}` fills; Python must be 3.11 to 3.13.",
    "no_pip": "use a Python with venv and pip; on Debian and Ubuntu: `apt install python3-venv python3-pip`.",
}


class SetupError(Exception):
    """Setup failed, with a message for the user and a kind of PATTERNS."""

    def __init__(self, message: str, kind: str = "other") -> None:
        super().__init__(message)
        self.kind = kind


class Environment:
    """.venv of a repository. Its setup.json describes the installation, and is empty during an installation."""

    def __init__(self, root: Path, target: str) -> None:
        self.root = root
        self.target = target
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.stamp = self.folder / "setup.json"

    def is_ready(self, more: list[str]) -> bool:
        """Return True if the environment works and matches the locks, with at least `more` of them."""
        return self.python.exists() and any(
            self.read_stamp() == self.describe(locks) for locks in MORE if len(locks) >= len(more)
        )

    def is_broken(self) -> bool:
        """Return True if the environment must be recreated. One without setup.json is the user's own and is kept."""
        stamp, now = self.read_stamp(), self.describe([])
        same = self.python.exists() and all(
            (stamp or {}).get(key) == now[key] for key in ("folder", "python", "target")
        )
        return stamp is not None and not same

    def read_stamp(self) -> dict[str, Any] | None:
        """Return the contents of setup.json, empty if an installation was interrupted."""
        return json.loads(self.stamp.read_text(encoding="utf-8") or "{}") if self.stamp.exists() else None

    def describe(self, more: list[str]) -> dict[str, Any]:
        """Return the contents of setup.json for an installation of the present locks."""
        files = [*sorted(self.root.glob("locks/*.txt")), self.root / "pyproject.toml", Path(__file__)]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        made_for = {"folder": str(self.folder), "python": str(self.python.resolve()), "target": self.target}
        return {**made_for, "more": more, "digest": digest}


def set_up(environment: Environment, more: list[str], wheels: Path | None) -> None:
    """Create or update .venv if needed."""
    if environment.is_ready(more):
        return
    path = environment.root / ".cache" / "setup.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: waiting for another setup in this folder", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)  # an installer that outlives a killed setup keeps the lock
        if not environment.is_ready(more):
            install(environment, more, wheels)


def install(environment: Environment, more: list[str], wheels: Path | None) -> None:
    """Install the locks; those besides the target's if requested, or installed before."""
    started = time.monotonic()
    print(f"setup: installing into {environment.folder}", flush=True)
    if environment.is_broken():
        print("setup: recreating .venv: it is unfinished, moved, or for another Python or vLLM", flush=True)
        shutil.rmtree(environment.folder)
    before = environment.read_stamp()
    more = max(more, (before or {}).get("more", []), key=len)
    if not environment.folder.exists():
        check_machine(environment.target, shutil.disk_usage(environment.root).free, Path("/proc/cpuinfo"))
        environment.folder.mkdir()
    environment.stamp.write_text("")
    try:
        make_environment(environment, wheels)
        install_locks(environment, more, wheels)
    except SetupError as error:
        if error.kind not in ("disk", "other"):  # uv downloads everything before it changes the environment
            environment.stamp.write_text(json.dumps(before)) if before else environment.stamp.unlink()
        raise
    environment.stamp.write_text(json.dumps(environment.describe(more)), encoding="utf-8")
    print(f"setup: done after {time.monotonic() - started:.0f} s", flush=True)


def check_machine(target: str, free_bytes: int, cpuinfo: Path) -> None:
    """Raise SetupError if the locks cannot be installed or vLLM cannot run here."""
    problem = None
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        problem = (
            f"unsupported platform {sys.platform} on {platform.machine()}: the locks are for Linux on x86-64. hint: to "
            "measure a server without vLLM (docs/guides/load-testing.md), run `pip install -e .`."
        )
    elif target == "cpu" and not re.search(r"\bavx2\b", cpuinfo.read_text()):
        problem = "vLLM's CPU build needs AVX2, which this CPU lacks, and no NVIDIA driver was found."
    elif free_bytes < NEEDED_GB[target] * 10**9:
        problem = f"only {free_bytes / 1e9:.1f} GB of disk are free; the first setup needs {NEEDED_GB[target]} GB."
    if problem and os.environ.get("ASSAYLINE_SETUP_CHECKS") != "off":
        raise SetupError(f"{problem} hint: ASSAYLINE_SETUP_CHECKS=off skips this check.")


def make_environment(environment: Environment, wheels: Path | None) -> None:
    """Create .venv with pip and the locked uv, if missing."""
    if not environment.python.exists():
        run([sys.executable, "-m", "venv", "--without-pip", str(environment.folder)], "making .venv", {})
        # A separate step, since `venv` hides why it failed.
        run([str(environment.python), "-Im", "ensurepip", "--default-pip"], "installing pip", {})
    command = [str(environment.python), *PIP, "install", "-q", "--require-hashes"]
    command += ["--isolated", "--no-index", "--find-links", str(wheels)] if wheels else []
    variables = {"PIP_CONFIG_FILE": os.devnull} if wheels else {}
    run([*command, "-r", str(environment.root / "locks" / "uv.txt")], "installing uv", variables)


def install_locks(environment: Environment, more: list[str], wheels: Path | None) -> None:
    """Install the locks and the repository itself with uv."""
    command = [str(environment.folder / "bin" / "uv"), "pip", "install", "--no-deps"]
    command += ["--python", str(environment.python)]
    variables = {} if wheels else uv_variables(read_pip_settings(environment.python), os.environ)
    if wheels:
        command += ["--no-config", "--offline", "--no-index", "--find-links", str(wheels)]
    locks = environment.root / "locks"
    if environment.target == "cpu":
        otherwise = [] if wheels else ["--default-index", CPU_TORCH_INDEX]
        run([*command, "-r", str(locks / "torch-cpu.txt")], "installing torch's CPU build", variables, otherwise)
    for name in [environment.target, *more]:
        run([*command, "--require-hashes", "-r", str(locks / f"{name}.txt")], f"installing {name}.txt", variables)
    patch_torchvision(environment.folder)
    run([*command, "--no-build-isolation", "-e", str(environment.root)], "installing assayline", variables)


def patch_torchvision(folder: Path) -> None:
    """Patch torchvision in an environment so that it imports with torch's CPU build, as `assayline doctor --fix`."""
    for extension in folder.glob("lib/python3*/site-packages/torchvision/extension.py"):
        doctor.patch_torchvision(extension)


def fetch_wheels(root: Path, folder: Path, target: str, python: str) -> None:
    """Download the wheels of a setup with `--dev` into a folder, if missing. Uses pip, as uv cannot download."""
    print(f"wheels: downloading for {target}, Python {python}, Linux on x86-64, into {folder}", flush=True)
    tags = [*(f"manylinux_2_{minor}" for minor in range(NEWEST_GLIBC, 4, -1)), "manylinux2014", "linux"]
    command = [sys.executable, *PIP, "download", "--progress-bar", "off", "--no-deps", "--only-binary", ":all:"]
    command += [option for tag in tags for option in ("--platform", f"{tag}_x86_64")]
    command += ["--python-version", python, "--dest", str(folder)]
    if target == "cpu":
        torch = [*command, "-r", str(root / "locks" / "torch-cpu.txt")]
        run(torch, "fetching torch's CPU build", {}, ["--index-url", CPU_TORCH_INDEX])
    locks = [option for name in ("uv", target, *MORE[-1]) for option in ("-r", str(root / "locks" / f"{name}.txt"))]
    run([*command, "--require-hashes", *locks], "fetching wheels", {})
    print(f"wheels: done. hint: copy repository and folder to the other machine: make setup WHEELS={folder.name}")


def run(command: list[str], doing: str, variables: dict[str, str], otherwise: list[str] | None = None) -> None:
    """Run a command with additional variables and show its output. Raises SetupError if it fails.

    If a package is not found, retry with the options `otherwise`.
    """
    # Locked versions are exact. With a constraint, pip reports a missing file as a conflict.
    environ = {**os.environ, **variables, "PIP_CONSTRAINT": os.devnull}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    output = ""
    with subprocess.Popen(command, env=environ, close_fds=False, text=True, errors="replace", **streams) as process:
        for line in process.stdout:
            output += line
            if not line.startswith(HIDDEN):
                print(line, end="", flush=True)
    if process.returncode:
        error = explain(output, doing)
        if error.kind != "not_found" or not otherwise:
            raise error
        run([*command, *otherwise], doing, variables)


def explain(output: str, doing: str) -> SetupError:
    """Make the error for output that was shown."""
    for kind, pattern in PATTERNS.items():
        if re.search(pattern, output, re.IGNORECASE):
            return SetupError(f"{doing} failed. hint: {HINTS[kind]}", kind)
    return SetupError(f"{doing} failed; the reason is above.")


def describe_versions(root: Path) -> str:
    """Describe the installed vLLM and the versions known to work."""
    source = (root / "assayline" / "engines" / "host" / "vllm" / "internals.py").read_text(encoding="utf-8")
    known = re.findall(r'"([\d.]+)"', re.findall(r"^KNOWN_VERSIONS = (.*)$", source, re.MULTILINE)[0])
    installed = [path.stem for path in root.glob(".venv/lib/python3*/site-packages/vllm*.dist-info")]
    return (
        f"installed in .venv: {', '.join(installed) or 'no vLLM; `make setup` installs it'}\n"
        f"known to work: {', '.join(known)} (docs/reference/compatibility.md)"
    )


def guess_target() -> str:
    """Return `cuda` if nvidia-smi lists a GPU, else `cpu`."""
    tool = shutil.which("nvidia-smi")
    listed = subprocess.run([tool, "-L"], capture_output=True, check=False).stdout if tool else b""
    return "cuda" if b"GPU 0" in listed else "cpu"


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Set up or download. Return the exit code; errors go to stderr."""
    parser = argparse.ArgumentParser(prog="scripts/setup.py", description="Make .venv from the lock files.")
    parser.add_argument("action", nargs="?", choices=["setup", "wheels"], default="setup")
    parser.add_argument("--check", action="store_true", help="print the installed vLLM and the supported ones")
    parser.add_argument("--extra", choices=["ray", ""], help="install Ray too")
    parser.add_argument("--dev", action="store_true", help="install Ray and packages of tests and linters too")
    parser.add_argument("--wheels", help="folder of wheels that `wheels` fills and `setup` uses as its only source")
    parser.add_argument("--target", choices=["cpu", "cuda", ""], help="vLLM build (default: that for this machine)")
    parser.add_argument("--python", help="for `wheels`: 3.11, 3.12 or 3.13 (default: this Python)")
    options = parser.parse_args(arguments)
    wheels = Path(options.wheels).expanduser().resolve() if options.wheels else None
    target = options.target or guess_target()
    try:
        if options.check:
            print(describe_versions(root))
        elif options.action == "wheels":
            python = options.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
            fetch_wheels(root, wheels or root / "wheels", target, python)
        else:
            set_up(Environment(root, target), MORE[2 if options.dev else bool(options.extra)], wheels)
    except SetupError as error:
        print(f"{options.action}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error}\n{options.action}: {explain(str(error), 'writing')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{options.action}: interrupted. hint: rerun the command; downloads are kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
