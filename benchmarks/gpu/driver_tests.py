"""Run the tests that need a GPU: `pytest -m gpu` on the files with such tests."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.gpu.runs import ROOT
from benchmarks.gpu.setup import Row, Setup, Tell

FILES = ("tests/gpu", "tests/engines/test_out_of_memory.py")


def run_tests(setup: Setup, tell: Tell) -> None:
    """Record one row per test. Without a GPU, tests are skipped."""
    results = setup.folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-o", "addopts=", "-q", "-p", "no:cacheprovider", *FILES]
    with (setup.folder / "tests.log").open("w") as log:
        done = subprocess.run([*command, f"--junitxml={results}"], cwd=ROOT, stdout=log, stderr=log, check=False)
    if not results.exists():
        raise RuntimeError(f"pytest ended with {done.returncode}: {(setup.folder / 'tests.log').read_text()[-1500:]}")
    for row in read_results(results):
        tell(row)


def read_results(path: Path) -> list[Row]:
    """Read name, outcome, seconds and message of each test from pytest's XML."""
    rows = []
    for case in ElementTree.parse(path).iter("testcase"):
        told = next((child for child in case if child.tag in ("skipped", "failure", "error")), None)
        outcome = "passed" if told is None else {"skipped": "skipped"}.get(told.tag, "failed")
        words = "" if told is None else (told.get("message") or "").splitlines()[0][:300]
        rows.append({"test": case.get("name"), "outcome": outcome, "seconds": float(case.get("time", 0)), "why": words})
    return rows
