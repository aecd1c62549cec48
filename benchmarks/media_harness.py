"""Questions about pictures as lm-evaluation-harness asks them: its own multimodal model type, over transformers.

The harness has an environment of its own in .cache/, pinned, which borrows torch and transformers from this one. A task
is written that shows the same pictures in the same places; the numbers of prompt tokens are read where the harness
hands its tensors to the model. Two things of it are gone around: it adds the tokenizer's own BOS to the one that the
chat template has written, and it fails on rows without a picture.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.lm_eval_agreement import HARNESS
from benchmarks.peer_environment import prepare_environment

TASK = """
task: seeing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/shown.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{'<image>' * (image | length)}}}}{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_image: !function pictures.open_pictures
generation_kwargs: {{do_sample: false, max_gen_toks: 8, until: ["<|end|>"]}}
metric_list: [{{metric: exact_match}}]
"""
PICTURES = """
from PIL import Image


def open_pictures(doc):
    return [Image.open(path).convert("RGB") for path in doc["image"]]
"""
RUN = """
import json, sys
import lm_eval
from lm_eval.models.hf_vlms import HFMultimodalLM
from lm_eval.tasks import TaskManager

folder, model = sys.argv[1:]
tokens, encode = {}, HFMultimodalLM.tok_batch_multimodal_encode

def count(self, strings, images, *args, **kwargs):
    inputs = encode(self, strings, images, *args, **kwargs)
    (tokens[strings[0]],) = inputs["attention_mask"].sum(dim=1).tolist()
    return inputs

HFMultimodalLM.tok_batch_multimodal_encode = count
found = lm_eval.simple_evaluate(
    model="hf-multimodal", model_args=f"pretrained={model},dtype=float32", tasks=["seeing"], device="cpu", batch_size=1,
    task_manager=TaskManager(include_path=folder, include_defaults=False), apply_chat_template=True, log_samples=True,
    bootstrap_iters=0,
)
samples = sorted(found["samples"]["seeing"], key=lambda sample: sample["doc_id"])
answers = [(sample["resps"][0][0], tokens[sample["arguments"][0][0]]) for sample in samples]
with open(f"{folder}/harness.json", "w") as file:
    json.dump(answers, file)
"""


def ask_harness(model: Path, folder: Path, rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """(text, prompt tokens) of each row, in the order of the rows. Each has a picture."""
    shown = [{**row, "answer": row["answer"] or ""} for row in rows]
    (folder / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shown))
    (folder / "seeing.yaml").write_text(TASK.format(folder=folder))
    (folder / "pictures.py").write_text(PICTURES)
    command = [
        str(prepare_environment(*HARNESS)),
        "-c",
        RUN,
        str(folder),
        str(_copy_without_bos(model, folder / "model")),
    ]
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    done = subprocess.run(command, env={**os.environ, **quiet}, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lm-evaluation-harness failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    return [(text, tokens) for text, tokens in json.loads((folder / "harness.json").read_text())]


def _copy_without_bos(model: Path, folder: Path) -> Path:
    """The model with a tokenizer that adds nothing to what the template wrote."""
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "post_processor": None}))
    return folder
