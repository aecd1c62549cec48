"""The parts of the check, in order, each in a separate process.

    python -m benchmarks.gpu.parts NAME SETUP.json FINDINGS.jsonl

runs one. A part appends its findings line by line, so that a stopped or crashed part leaves its findings so far.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.runs import ROOT
from benchmarks.gpu.setup import Row, Setup, SkipPart, Tell, read_setup

POLL_S = 0.2
END_S = 10.0
CPU_PATIENCE = 5.0
"""Factor for the limits of a rehearsal: engines start slowly on a few cores."""


@dataclass(frozen=True)
class Part:
    """A measurement and its time limit on a GPU, in seconds."""

    name: str
    title: str
    limit_s: float
    entry: str
    """Module and function."""


PARTS = (
    Part("tests", "Tests that need a GPU", 55, "driver_tests:run_tests"),
    Part("handover", "(h) Idling, aborts, stops and engines handed over", 70, "handover:measure_handover"),
    Part("tight", "(i) Out of memory on a card that the weights fill", 60, "limits:measure_tight"),
    Part("throughput", "(a) Throughput against raw vLLM", 165, "throughput:measure_throughput"),
    Part("memory", "(b) Out of memory in the middle of a run", 80, "memory:measure_memory"),
    Part("kills", "(c) Engine and run killed", 50, "kills:measure_kills"),
    Part("curve", "(e) Speed and energy against seats, next to ML.ENERGY", 95, "energy:measure_curve"),
    Part("latency", "(d) Inter-token latency against AsyncLLM alone", 45, "latency:measure_latency"),
    Part("sampler", "(j) Every seat samples with top-p and log-probabilities", 45, "limits:measure_sampler"),
    Part("start", "(k) A start with vLLM's default arguments", 120, "limits:measure_start"),
    Part("sharing", "(f) Two engines on one GPU", 40, "several:measure_sharing"),
    Part("tensor_parallel", "(g) One engine on two GPUs", 60, "several:measure_tensor_parallel"),
)


def run_part(part: Part, setup: Setup, limit_s: float, tell: Tell) -> Row:
    """Run the part in a separate process for at most `limit_s` seconds. Return state, seconds and rows."""
    findings, log_path = setup.folder / f"{part.name}.jsonl", setup.folder / f"{part.name}.log"
    setup.write(setup.folder / "setup.json")
    findings.touch()
    started, state, told = time.monotonic(), "done", 0
    with log_path.open("w") as log:
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.parts",
            part.name,
            str(setup.folder / "setup.json"),
            str(findings),
        ]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        while process.poll() is None:
            told = tell_new(findings, told, tell)
            if time.monotonic() - started > limit_s:
                state = f"stopped after {limit_s:.0f} s"
                break
            time.sleep(POLL_S)
    finally:
        end_group(process)
    tell_new(findings, told, tell)
    rows = read_rows(findings)
    last = rows.pop() if rows and "state" in rows[-1] else None
    if state == "done":
        state = last["state"] if last else f"died: {log_path.read_text(errors='replace')[-500:]}"
    return {"state": state, "seconds": round(time.monotonic() - started, 1), "rows": rows}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the part and its processes. Engines have their own sessions and end when their worker has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_S)


def tell_new(findings: Path, told: int, tell: Tell) -> int:
    """Report the rows after the first `told`. Return the number of rows."""
    rows = read_rows(findings)
    for row in rows[told:]:
        if "state" not in row:
            tell(row)
    return len(rows)


def read_rows(path: Path) -> list[Row]:
    """Return the complete lines; the last one may be partial."""
    rows = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def main() -> None:
    name, setup_path, findings = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    [part] = [part for part in PARTS if part.name == name]
    module, function = part.entry.split(":")

    def tell(row: Row) -> None:
        with findings.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")

    try:
        measure: Callable[[Setup, Tell], None] = getattr(import_module(f"benchmarks.gpu.{module}"), function)
        measure(read_setup(setup_path), tell)
    except SkipPart as reason:
        tell({"state": f"skipped: {reason}"})
    except Exception as error:
        traceback.print_exc()
        tell({"state": f"failed: {type(error).__name__}: {error}"})
        sys.exit(1)
    else:
        tell({"state": "done"})


if __name__ == "__main__":
    main()
