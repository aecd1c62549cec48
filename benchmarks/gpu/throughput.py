"""(a) Tokens/s and engine steps: the pipeline compared with raw `LLM.generate` and `vllm bench throughput`.

For each shape, with the engine core in the engine's process and in one of vLLM's: raw, the pipeline in file order, and
the pipeline longest first, alternately, on the same token ids and forced lengths. Both sides stay open.
"""

import contextlib
import json
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from assayline.engines.process import engine_environment
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from benchmarks.gpu.runs import query
from benchmarks.gpu.setup import PROCESSES, Row, Setup, Shape, Tell
from benchmarks.overhead import (
    Measurement,
    RawVllm,
    SteppingEngine,
    make_spec,
    measure_pipeline,
    read_requests,
    write_prompts,
)
from benchmarks.peer_vllm import measure_offline

WARM_REQUESTS = 64


def measure_throughput(setup: Setup, tell: Tell) -> None:
    """Record three rows per shape, the most important first, as time may run out."""
    for shape in setup.shapes:
        tell(measure_sides(setup, shape, "own"))
    for shape in setup.shapes:
        tell(measure_peer(setup, shape))
        tell(measure_sides(setup, shape, "vllm"))


def plan_spec(setup: Setup, shape: Shape, prompts: Path, order: str, env: dict[str, str]) -> EvalSpec:
    """Make the pipeline's spec."""
    return make_spec(setup.build_model(shape), prompts, setup.make_args(shape), order=order, env=env)


def measure_sides(setup: Setup, shape: Shape, processes: str) -> Row:
    """Record one row: medians over pairs."""
    name, env = f"throughput-{shape.name}-{processes}", PROCESSES[processes]
    settings = setup.make_settings(name)
    folder = setup.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "prompts.jsonl", shape.requests)
    given = plan_spec(setup, shape, folder / "prompts.jsonl", "given", env)
    longest_first = plan_spec(setup, shape, folder / "prompts.jsonl", "auto", env)
    raw_env = engine_environment(settings, setup.device_env, env)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(RawVllm, given, raw_env, folder / "raw.log")
        stepping = SteppingEngine(given, settings, setup.device_env, folder / "pipeline.log")
        raw = opening.result()
    sides: dict[str, list[Measurement]] = {"raw": [], "given": [], "longest_first": []}
    working: dict[str, list[float]] = {"given": [], "longest_first": []}
    with contextlib.closing(stepping.engine), contextlib.closing(raw):
        _, run_id = measure_pipeline(
            given, settings, stepping
        )  # not measured: it warms up, and records the output lengths
        requests = read_requests(settings, run_id)
        raw.measure(requests[:WARM_REQUESTS])
        for number in range(setup.pairs):
            for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                if side == "raw":
                    sides[side].append(raw.measure(requests))
                else:
                    spec = given if side == "given" else longest_first
                    measured, run_id = measure_pipeline(spec, settings, stepping)
                    sides[side].append(measured)
                    working[side].append(read_working_rate(settings, run_id))
    return summarize_sides(sides, working, {"shape": shape.name, "processes": processes, "requests": shape.requests})


def read_working_rate(settings: Settings, run_id: str) -> float:
    """Return output tokens/s while the engine had requests, without the fixed cost of a run."""
    [row] = query(settings, "select output_tokens_per_s from main.run where run_id = ?", run_id)
    return float(row["output_tokens_per_s"])


def summarize_sides(sides: dict[str, list[Measurement]], working: dict[str, list[float]], head: Row) -> Row:
    """Return tokens/s and steps of each side, and the pipeline's ratios to raw per pair."""
    raw = sides["raw"]
    assert len({one.output_tokens for side in sides.values() for one in side}) == 1, "sides generated different amounts"
    row = {**head, "pairs": len(raw), "output_tokens": raw[0].output_tokens}
    for side, measured in sides.items():
        row[f"{side}_output_tokens_per_s"] = round(statistics.median(one.output_tokens_per_s for one in measured), 1)
        row[f"{side}_steps"] = statistics.median(one.engine_steps for one in measured)
        if side != "raw":
            ratios = [
                ours.output_tokens_per_s / theirs.output_tokens_per_s
                for theirs, ours in zip(raw, measured, strict=True)
            ]
            row[f"{side}_working_output_tokens_per_s"] = round(statistics.median(working[side]), 1)
            row[f"{side}_ratio_median"] = round(statistics.median(ratios), 4)
            row[f"{side}_ratio_range"] = [round(min(ratios), 4), round(max(ratios), 4)]
    return row


def measure_peer(setup: Setup, shape: Shape) -> Row:
    """Run `vllm bench throughput`, which measures only requests in and completions out."""
    folder = setup.folder / f"throughput-{shape.name}-peer"
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "prompts.jsonl", shape.requests)
    rows = [read_row(json.loads(line)) for line in (folder / "prompts.jsonl").read_bytes().splitlines()]
    env = engine_environment(setup.make_settings(folder.name), setup.device_env, {})
    head: Row = {"shape": shape.name, "processes": "vllm bench throughput"}
    try:
        found = measure_offline(setup.build_model(shape), setup.make_args(shape), rows, env, folder)
    except subprocess.CalledProcessError as error:
        return {**head, "failed": f"{error}: {(folder / 'throughput.log').read_text()[-1000:]}"}
    per_s = round(found["output_tokens"] / found["seconds"], 1)
    return {
        **head,
        "requests": found["requests"],
        "output_tokens": found["output_tokens"],
        "raw_output_tokens_per_s": per_s,
    }


def read_row(row: dict[str, Any]) -> tuple[str, int]:
    """Return a prompt as the chat template renders it, without BOS, and its forced length."""
    return f"user: {row['prompt']}\nassistant:", row["sampling"]["max_tokens"]
