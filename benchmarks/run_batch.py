"""A batch file in `vllm run-batch` and in assayline: answers kept after a kill near the end, and engine steps.

    python -m benchmarks.run_batch [--lines 600] [--share 0.99]

Both use the same file (chats of different lengths with forced output lengths), the same tiny model, the same engine
arguments and vLLM on this machine. Each side runs twice. The first run kills itself (SIGKILL) when it has received the
given share of the answers, and the answers on disk are counted: for vLLM, lines of its output file; for assayline,
lines of `export --format openai-batch`. Then assayline resumes, and vLLM, which cannot, starts again. The last line is
JSON. Exit code 1: answers are missing at the end.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from assayline.export.make import export_run
from assayline.settings import Settings
from assayline.store.database import connect
from examples.tiny_model import ensure_tiny_model

ROOT = Path(__file__).resolve().parents[1]
ENGINE = {
    "max_model_len": 256, "max_num_seqs": 32, "max_num_batched_tokens": 2048, "dtype": "float32", "enforce_eager": True,
    "kv_cache_memory_bytes": 2**27,
}  # fmt: skip
LONGEST_TOKENS = 160

THEIRS = """
import asyncio, json, os, signal
from prometheus_client import REGISTRY
from vllm.entrypoints.launchers import run_batch

kill_at, done = int(os.environ["KILL_AT"]), 0
before = run_batch.BatchProgressTracker.completed

def completed(self):
    global done
    before(self)
    done += 1
    if done == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

run_batch.BatchProgressTracker.completed = completed
if __name__ == "__main__":
    asyncio.run(run_batch.main(run_batch.parse_args()))
    steps = [sample.value for metric in REGISTRY.collect() for sample in metric.samples
             if sample.name == "vllm:iteration_tokens_total_count"]
    print("STEPS", json.dumps(int(sum(steps))), flush=True)
"""
"""`vllm run-batch` that kills itself at `kill_at` answers (0: never) and prints its engine steps."""

OURS = """
import os, signal, sys
from assayline import evaluate
from assayline.records import Completion
from assayline.store.parts import PartWriter

kill_at, done = int(os.environ["KILL_AT"]), 0
before = PartWriter.add

def add(self, record):
    global done
    before(self, record)
    done += isinstance(record, Completion)
    if kill_at and done == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

PartWriter.add = add
print("RUN", evaluate(sys.argv[1]).run_id, flush=True)
"""
"""An evaluation that kills itself when its worker has `kill_at` answers (0: never)."""


def write_lines(path: Path, count: int) -> None:
    """Write chats of 8 to 60 words with log-normal output lengths, half of them below 32 tokens."""
    dice = random.Random(0)
    words = [f"word{number}" for number in range(40)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            text = " ".join(dice.choices(words, k=dice.randint(1, 12)))
            tokens = max(1, min(LONGEST_TOKENS, round(dice.lognormvariate(3.5, 0.8))))
            body = {
                "model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 0,
                "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True,
            }  # fmt: skip
            line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def run_theirs(folder: Path, model: Path, output: Path, kill_at: int) -> tuple[int, int | None]:
    """Run vLLM. Return the exit code, and the engine steps of a completed run."""
    script = folder / "theirs.py"
    script.write_text(THEIRS)
    flags = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in ENGINE.items()
    ]
    files = ["-i", str(folder / "batch.jsonl"), "-o", str(output)]
    code, log = _run([str(script), *files, "--model", str(model), "--served-model-name", "tiny", *flags], kill_at)
    found = re.search(r"^STEPS (\d+)$", log, re.M)
    if code != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"vllm run-batch ended with {code}:\n{log[-2000:]}")
    return code, int(found[1]) if found else None


def run_ours(folder: Path, data: Path, kill_at: int) -> int:
    """Run assayline. Return the exit code."""
    code, log = _run(["-c", OURS, str(folder / "spec.yaml")], kill_at, data)
    if code != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"assayline ended with {code}:\n{log[-2000:]}")
    return code


def _run(arguments: list[str], kill_at: int, data: Path | None = None) -> tuple[int, str]:
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "WARNING", "PYTHONPATH": str(ROOT), "KILL_AT": str(kill_at)}
    if data is not None:
        environment["ASSAYLINE_DATA_DIR"] = str(data)
    with tempfile.TemporaryFile("w+") as log:  # a pipe would block on the engine of a killed run
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=log, stderr=log, text=True, env=environment, start_new_session=True
        )
        code = process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # processes that a killed run may have left
        log.seek(0)
        return code, log.read()


def count_lines(path: Path) -> int:
    return sum(1 for _ in path.open("rb")) if path.exists() else 0


def export_lines(data: Path, run_id: str) -> int:
    output = data / "ours.jsonl"
    export_run(Settings(data_dir=data), run_id, "openai-batch", output, force=True)
    return count_lines(output)


def read_summary(data: Path, run_id: str) -> dict[str, Any]:
    with connect(data / "assayline.duckdb", 30, read_only=True) as connection:
        found = connection.execute(
            "select ok_requests, (select sum(engine_steps) from engine) as engine_steps, output_tokens, attempts "
            "from main.run where run_id = ?",
            [run_id],
        )
        names = [column[0] for column in found.description or ()]
        return dict(zip(names, found.fetchall()[0], strict=True))


def find_run(data: Path) -> str:
    return max(path.name for path in (data / "runs").iterdir())


def compare(folder: Path, model: Path, lines: int, share: float) -> dict[str, Any]:
    write_lines(folder / "batch.jsonl", lines)
    source = {"kind": "openai_batch", "path": str(folder / "batch.jsonl")}
    spec = {"name": "batch", "model": str(model), "prompts": {"source": source}, "engine": {"args": ENGINE}}
    (folder / "spec.yaml").write_text(json.dumps(spec))  # JSON is YAML
    kill_at = max(1, round(lines * share))

    theirs = compare_theirs(folder, model, lines, kill_at)
    ours = compare_ours(folder, lines, kill_at)
    return {
        "lines": lines,
        "killed_at_answers": kill_at,
        **{name: {"vllm": theirs[name], "assayline": ours[name]} for name in theirs},
        "attempts": ours["attempts"],
        "output_tokens": ours["output_tokens"],
    }


def compare_theirs(folder: Path, model: Path, lines: int, kill_at: int) -> dict[str, Any]:
    run_theirs(folder, model, folder / "theirs.jsonl", kill_at)
    theirs_left = count_lines(folder / "theirs.jsonl")
    print(f"vllm run-batch, killed with {kill_at} of {lines} answers: {theirs_left} on disk", flush=True)
    _, theirs_steps = run_theirs(folder, model, folder / "theirs.jsonl", 0)
    theirs_lines = count_lines(folder / "theirs.jsonl")
    print(f"vllm run-batch, restarted: {theirs_lines} answers, {theirs_steps} engine steps", flush=True)
    return {"on_disk_after_kill": theirs_left, "answers_at_the_end": theirs_lines, "engine_steps": theirs_steps}


def compare_ours(folder: Path, lines: int, kill_at: int) -> dict[str, Any]:
    data, fresh = folder / "data", folder / "fresh"
    run_ours(folder, data, kill_at)
    killed = find_run(data)
    ours_left = export_lines(data, killed)
    print(f"assayline, killed with {kill_at} of {lines} answers: {ours_left} on disk", flush=True)
    run_ours(folder, data, 0)
    resumed = read_summary(data, killed)
    resumed_lines = export_lines(data, killed)
    print(f"assayline, resumed: {resumed_lines} answers", flush=True)
    run_ours(folder, fresh, 0)  # a new database: known output lengths would change the request order
    whole = read_summary(fresh, find_run(fresh))
    print(f"assayline, complete: {whole['ok_requests']} answers, {whole['engine_steps']} engine steps", flush=True)
    return {
        "on_disk_after_kill": ours_left,
        "answers_at_the_end": resumed_lines,
        "engine_steps": whole["engine_steps"],
        "attempts": resumed["attempts"],
        "output_tokens": whole["output_tokens"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.99)
    known = parser.parse_args()
    model = ensure_tiny_model()
    with tempfile.TemporaryDirectory(prefix="run-batch-") as folder:
        figures = compare(Path(folder), model, known.lines, known.share)
    print(json.dumps(figures))
    return int(set(figures["answers_at_the_end"].values()) != {known.lines})


if __name__ == "__main__":
    sys.exit(main())
