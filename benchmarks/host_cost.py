"""What the pipeline costs around the engine, in CPU-seconds by process, with a model that computes next to nothing.

    python -m benchmarks.host_cost [--pairs 3] [--requests 1024 4096] [--processes own|vllm] [--shares 2]

Both sides answer the same prompts in the order given, in turn: raw `vllm.LLM.generate` in a process of its own, and
the pipeline, whose flow and worker are this process and whose engine has a process. With `--processes vllm` the engine
core has another one, vLLM's own, on both sides. With `--shares 2` either side's engine has half of the cores, and what
is around it the others.

Seconds of CPU of a process include its threads for computing, which spin where one waits for another, whoever made it
wait. So the thread that drives the engine is counted by itself, too: all Python of an engine's process is there, and
`engine_over_raw_ms_per_request` is about that thread. Where the engine has several cores it spins as well.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from assayline.engines.devices.claims import list_devices
from assayline.engines.environment import engine_environment
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from benchmarks.cpu_spent import find_host, read_cpu_s, read_thread_s, spend
from benchmarks.overhead import RawVllm, SteppingEngine, make_spec, measure_pipeline, read_requests, write_prompts
from benchmarks.random_model import build_random_model

SEATS = 256
COLUMNS = ("raw_cpu_s", "raw_thread_s", "engine_cpu_s", "engine_thread_s", "flow_cpu_s", "raw_seconds", "seconds")
PROCESSES = {"own": {}, "vllm": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}


def measure_size(folder: Path, model: Path, requests: int, options: argparse.Namespace) -> dict[str, Any]:
    """One number of requests: medians over pairs."""
    env = PROCESSES[options.processes]
    folder.mkdir()
    write_prompts(folder / "prompts.jsonl", requests)
    usual = argparse.Namespace(
        mode="continuous", window=None, token_times=False, dtype="float32", seats=SEATS, order="given"
    )
    fields = make_spec(model, folder / "prompts.jsonl", usual).model_dump(mode="json")
    fields["engine"]["env"] = env
    spec = parse_spec(fields)
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    device_env = list_devices("auto", options.shares)[0].env
    stepping = SteppingEngine(spec, settings, device_env, folder / "pipeline.log")
    raw = RawVllm(spec, engine_environment(settings, device_env, env), folder / "raw.log")
    own = psutil.Process()
    taken: dict[str, list[float]] = {name: [] for name in COLUMNS}
    steps: list[tuple[int, int]] = []
    with contextlib.closing(stepping.engine), contextlib.closing(raw):
        _, run_id = measure_pipeline(spec, settings, stepping)
        asked = read_requests(settings, run_id)
        raw.measure(asked[:64])
        host, yardstick = find_host(), psutil.Process(raw.pid)
        theirs_watched = {"raw_cpu_s": lambda: read_cpu_s(yardstick), "raw_thread_s": lambda: read_thread_s(yardstick)}
        ours_watched = {
            "engine_cpu_s": lambda: read_cpu_s(host),
            "engine_thread_s": lambda: read_thread_s(host),
            "flow_cpu_s": lambda: sum(own.cpu_times()[:2]),
        }
        for _ in range(options.pairs):
            theirs, cost = spend(theirs_watched, lambda: raw.measure(asked))
            (ours, _), more = spend(ours_watched, lambda: measure_pipeline(spec, settings, stepping))
            for name, value in {**cost, **more, "raw_seconds": theirs.seconds, "seconds": ours.seconds}.items():
                taken[name].append(value)
            steps.append((theirs.engine_steps, ours.engine_steps))
    over_raw = [o - r for o, r in zip(taken["engine_thread_s"], taken["raw_thread_s"], strict=True)]
    row = {
        "requests": requests,
        "output_tokens": theirs.output_tokens,
        "engine_steps": [statistics.median(side) for side in zip(*steps, strict=True)],
        **{name: round(statistics.median(values), 2) for name, values in taken.items()},
        "engine_over_raw_ms_per_request": round(1000 * statistics.median(over_raw) / requests, 3),
        "engine_over_raw_ms_range": [round(1000 * value / requests, 3) for value in (min(over_raw), max(over_raw))],
        "wall_ratio_median": round(
            statistics.median(r / o for r, o in zip(taken["raw_seconds"], taken["seconds"], strict=True)), 3
        ),
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--processes", choices=list(PROCESSES), default="own", help="whose process the engine core has")
    parser.add_argument("--shares", type=int, default=1, help="equal parts of the cores, of which the engine has one")
    options = parser.parse_args()
    model = build_random_model(Path(".cache") / "random-1x64", 1, 64)
    with tempfile.TemporaryDirectory(prefix="assayline-host-cost-") as name:
        rows = [measure_size(Path(name) / str(size), model, size, options) for size in options.requests]
    least, most = rows[0], rows[-1]
    between = most["requests"] - least["requests"]
    per_thousand = {
        f"{name}_per_thousand": round(1000 * (most[name] - least[name]) / between, 3) for name in COLUMNS if between
    }
    report = {"benchmark": "host_cost", "processes": options.processes, "shares": options.shares}
    print(json.dumps({**report, **per_thousand, "sizes": rows}))


if __name__ == "__main__":
    main()
