"""Peak memory and time of a run with 10,000 to a million prompts. Time must grow linearly, and memory hardly at all.

    python -m benchmarks.memory [--prompts 10000 100000 1000000]

Each size is one call of `assayline evaluate` on a generated JSONL file: reading, the tokenizer and chat template of the
tiny model, shards, part files, DuckDB, SQL metrics and Prefect's API, all in one process. The engine is the fake one,
in the same process, so the figures exclude a real engine. Measured from outside:

- `flow MiB`: peak memory of the flow's process (VmHWM of Linux), including mapped files.
- `other MiB`: peak memory of its child processes together, sampled every 0.2 s: none at present.
- `s/1000 more`, `CPU s/1000 more`: seconds, and CPU seconds of the flow's process, per 1,000 prompts more than the
  previous row, which excludes start-up. Compare CPU seconds on a busy machine.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from examples.tiny_model import ensure_tiny_model

SAMPLE_INTERVAL_S = 0.2
MIB = 2**20
WORDS = ("alder", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo", "hazel", "juniper", "larch", "maple", "oak")


@dataclass(frozen=True)
class Measurement:
    """Measurements of one run."""

    prompts: int
    seconds: float
    cpu_seconds: float
    flow_peak_mib: float
    other_peak_mib: float
    parts_mib: float
    database_mib: float


def write_prompts(path: Path, count: int) -> None:
    """Write distinct questions of 40 to 160 characters, with the answer of the fake engine: the last word."""
    dice = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            words = dice.choices(WORDS, k=dice.randint(4, 22))
            row = {"id": number, "question": f"{number} trees: {' '.join(words)}", "answer": words[-1]}
            file.write(json.dumps(row) + "\n")


def write_spec(path: Path, model: Path, prompts: Path) -> None:
    spec = {
        "name": "memory",
        "model": str(model.absolute()),
        "prompts": {
            "source": {"kind": "file", "path": str(prompts)},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
        },
        "sampling": {"temperature": 0, "max_tokens": 16},
        "engine": {"backend": "fake"},
    }
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")


def measure(count: int, model: Path, folder: Path) -> Measurement:
    """Run the command on `count` prompts. Raises SystemExit with its output if it fails."""
    write_prompts(folder / "prompts.jsonl", count)
    write_spec(folder / "spec.yaml", model, folder / "prompts.jsonl")
    env = {
        **os.environ,
        "ASSAYLINE_DATA_DIR": str(folder / "data"),
        "PREFECT_HOME": str(folder / "prefect"),
        "DO_NOT_TRACK": "1",
    }
    env.pop("PREFECT_API_URL", None)  # an existing server would not be measured
    started = time.monotonic()
    with open(folder / "output.txt", "w+b") as output:
        command = [sys.executable, "-m", "assayline", "evaluate", str(folder / "spec.yaml")]
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        peak, other, cpu_seconds = watch(process)
        seconds = time.monotonic() - started
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{output.read().decode(errors='replace')}\nThe run of {count} prompts failed; see above.")
    parts = sum(file.stat().st_size for file in (folder / "data").rglob("*.parquet"))
    database = (folder / "data" / "assayline.duckdb").stat().st_size
    mib = [round(size / MIB, 1) for size in (peak, other, parts, database)]
    return Measurement(count, round(seconds, 1), round(cpu_seconds, 1), *mib)


def watch(process: "subprocess.Popen[bytes]") -> tuple[int, int, float]:
    """Return peak bytes of the process and of its children, and its CPU seconds, when it ends."""
    flow = psutil.Process(process.pid)
    peak = other_peak = 0
    cpu_seconds = 0.0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error, OSError, StopIteration):
            peak = max(peak, read_peak_bytes(process.pid))
            times = flow.cpu_times()
            cpu_seconds = max(cpu_seconds, times.user + times.system)
            other_peak = max(other_peak, sum(child.memory_info().rss for child in flow.children(recursive=True)))
        time.sleep(SAMPLE_INTERVAL_S)
    return peak, other_peak, cpu_seconds


def read_peak_bytes(process_id: int) -> int:
    """Return the peak memory of a process as Linux reports it."""
    lines = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    if options.prompts != sorted(set(options.prompts)):
        parser.error("--prompts must be increasing")
    model = ensure_tiny_model()
    done: list[Measurement] = []
    print(
        f"{'prompts':>8} {'seconds':>8} {'s/1000 more':>11} {'CPU s':>7} {'CPU s/1000 more':>15} {'flow MiB':>9} "
        f"{'other MiB':>9} {'parts MiB':>9} {'database MiB':>12}"
    )
    for count in options.prompts:
        folder = Path(tempfile.mkdtemp(prefix="assayline-memory-"))
        try:
            now = measure(count, model, folder)
        finally:
            shutil.rmtree(folder)
        more, cpu_more = slopes(done[-1], now) if done else ("", "")
        done.append(now)
        print(
            f"{count:>8} {now.seconds:>8.1f} {more:>11} {now.cpu_seconds:>7.1f} {cpu_more:>15} "
            f"{now.flow_peak_mib:>9.1f} {now.other_peak_mib:>9.1f} {now.parts_mib:>9.1f} {now.database_mib:>12.1f}",
            flush=True,
        )
    print(json.dumps(summarize(done)))


def slopes(before: Measurement, now: Measurement) -> tuple[float, float]:
    """Return seconds and CPU seconds per 1,000 prompts that `now` has more than `before`."""
    thousands = (now.prompts - before.prompts) / 1000
    seconds, cpu_seconds = now.seconds - before.seconds, now.cpu_seconds - before.cpu_seconds
    return round(seconds / thousands, 3), round(cpu_seconds / thousands, 3)


def summarize(done: list[Measurement]) -> dict[str, Any]:
    """Run all sizes. The ratio of the last peak to the first must stay near 1."""
    return {
        "benchmark": "memory",
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": round(psutil.virtual_memory().total / MIB),
        "runs": [asdict(run) for run in done],
        "seconds_per_thousand_more": [slopes(*pair)[0] for pair in itertools.pairwise(done)],
        "cpu_seconds_per_thousand_more": [slopes(*pair)[1] for pair in itertools.pairwise(done)],
        "flow_peak_ratio": round(done[-1].flow_peak_mib / done[0].flow_peak_mib, 3),
    }


if __name__ == "__main__":
    main()
