"""What a run's beginning and end cost: a whole command against a plain `vllm.LLM` process.

    python -m benchmarks.startup [--pairs 5]

Both start a Python process and load the same small model, in turn. The yardstick's end is the return of its first
`LLM.generate`; ours is the moment in which the first prompt goes into the engine, its warm-up done. Seconds, and CPU
seconds of all processes of either side until then; then from the last answer to the end of the command, that is, to
the shell's next prompt. The CPU seconds of `--help` and `--dry-run` are beside them. Prefect has no server here.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
import yaml

from benchmarks.process_tree import CpuSamples, run_sampled
from examples.tiny_model import ensure_tiny_model

ROOT = Path(__file__).resolve().parents[1]
RAW = """
import json, sys, time
from vllm import LLM, SamplingParams
order = json.loads(sys.argv[1])
llm = LLM(model=order["model"], **order["args"])
llm.generate([{"prompt_token_ids": [5] * 40}], SamplingParams(max_tokens=1), use_tqdm=False)
print(f"ready {time.time()}", flush=True)
"""
EVALUATE = [sys.executable, "-m", "flows", "evaluate"]


@dataclass(frozen=True)
class Start:
    """From the start of a command to its first prompt, and from its last answer to its end."""

    seconds: float
    cpu_s: float
    end_s: float = 0.0
    end_cpu_s: float = 0.0


def start_raw(spec: Path, env: dict[str, str], folder: Path) -> Start:
    """The yardstick: `LLM(...)` and one `generate`."""
    data = yaml.safe_load(spec.read_text())
    order = json.dumps({"model": data["model"], "args": data["engine"]["args"]})
    log = folder / "raw.log"
    began, samples = sample([sys.executable, "-c", RAW, order], env, log)
    ready = next(float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("ready "))
    return Start(ready - began, cpu(samples, began, ready))


def start_ours(spec: Path, env: dict[str, str], folder: Path) -> Start:
    """A run of its own, of which the database knows when its requests were sent and answered."""
    began, samples = sample([*EVALUATE, str(spec), "--fresh"], env, folder / "ours.log")
    ended = samples.wall_s[-1]
    with duckdb.connect(Path(env["ASSAYLINE_DATA_DIR"]) / "assayline.duckdb", read_only=True) as connection:
        newest = "select run_id, epoch(started_at) from runs order by started_at desc limit 1"
        run_id, zero = connection.execute(newest).fetchall()[0]
        times = "select min(sent_at_s), max(finished_at_s) from completions where run_id = ?"
        sent, answered = connection.execute(times, [run_id]).fetchall()[0]
    return Start(
        zero + sent - began,
        cpu(samples, began, zero + sent),
        ended - zero - answered,
        cpu(samples, zero + answered, ended),
    )


def sample(command: list[str], env: dict[str, str], log: Path) -> tuple[float, CpuSamples]:
    """When the command began, and what its processes used; a last sample is taken at its end."""
    began = time.time()
    samples = run_sampled(command, os.sched_getaffinity(0), env, log)
    samples.wall_s.append(time.time())
    samples.cpu_s.append(samples.cpu_s[-1])
    return began, samples


def cpu(samples: CpuSamples, start_s: float, end_s: float) -> float:
    return sum(samples.cpu_between(start_s, end_s).values())


def measure_cpu(command: list[str], env: dict[str, str]) -> float:
    """CPU seconds of a command that has no other processes."""
    process = subprocess.Popen(command, env={**os.environ, **env}, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"`{' '.join(command)}` failed with exit code {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-startup-") as name:
        folder = Path(name)
        data = yaml.safe_load((ROOT / "examples" / "arithmetic.yaml").read_text())
        data["model"] = str(ensure_tiny_model())
        data["prompts"]["source"]["path"] = str(ROOT / "examples" / "arithmetic.jsonl")
        spec = folder / "spec.yaml"
        spec.write_text(yaml.safe_dump(data))
        own = {"ASSAYLINE_DATA_DIR": str(folder / "data"), "PREFECT_HOME": str(folder / "prefect")}
        env = {**own, "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        start_raw(spec, env, folder)  # fills the caches of either side
        start_ours(spec, env, folder)
        print(
            f"{'pair':>4} {'raw s':>7} {'ours s':>7} {'more s':>7} {'raw CPU':>8} {'ours CPU':>8} {'more CPU':>8}"
            f" {'end s':>6} {'end CPU':>7}"
        )
        pairs = []
        for number in range(options.pairs):
            sides = [start_raw, start_ours] if number % 2 == 0 else [start_ours, start_raw]
            both = {side: side(spec, env, folder) for side in sides}
            raw, ours = both[start_raw], both[start_ours]
            pairs.append((raw, ours))
            print(
                f"{number + 1:>4} {raw.seconds:>7.2f} {ours.seconds:>7.2f} {ours.seconds - raw.seconds:>7.2f} "
                f"{raw.cpu_s:>8.2f} {ours.cpu_s:>8.2f} {ours.cpu_s - raw.cpu_s:>8.2f} {ours.end_s:>6.2f} "
                f"{ours.end_cpu_s:>7.2f}",
                flush=True,
            )
        helps = [measure_cpu([*EVALUATE, "--help"], env) for _ in range(options.pairs)]
        dry_runs = [measure_cpu([*EVALUATE, str(spec), "--dry-run"], env) for _ in range(options.pairs)]
    figures = {
        "more_seconds": [ours.seconds - raw.seconds for raw, ours in pairs],
        "more_cpu_seconds": [ours.cpu_s - raw.cpu_s for raw, ours in pairs],
        "raw_seconds": [raw.seconds for raw, _ in pairs],
        "end_seconds": [ours.end_s for _, ours in pairs],
        "help_cpu_seconds": helps,
        "dry_run_cpu_seconds": dry_runs,
    }
    summary = {"benchmark": "startup", "pairs": len(pairs), "cores": len(os.sched_getaffinity(0))}
    for figure, values in figures.items():
        summary[f"{figure}_median"] = round(statistics.median(values), 2)
        summary[f"{figure}_range"] = [round(min(values), 2), round(max(values), 2)]
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
