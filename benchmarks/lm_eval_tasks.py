"""Agreement with lm-evaluation-harness: the same tasks and model, run by both tools with vLLM.

    python -m benchmarks.lm_eval_tasks [--model FOLDER --context-tokens 1024]

Eleven kinds of tasks over generated local data: few-shot arithmetic, arithmetic in a chat template with examples as
turns, multiple choice, multiple choice with several contexts, multiple choice by mutual information, cloze, a group
with an aggregate, a majority vote, regex extraction with two filters, a custom scoring function, and perplexity over
documents longer than the context. The model is the tiny one, or a folder. It compares the text of every request, every
response, every score per prompt, and every aggregate. The last line is JSON. Exit code 1: a difference was found.

The harness has a pinned environment in .cache/ that shares vLLM and its dependencies with this one. Both sides run in
it, one after the other.
"""

import argparse
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.run.begin import begin_evaluation
from assayline.run.drive import drive_worker
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.manifest import NEVER
from benchmarks.lm_eval_kinds import write_tasks
from benchmarks.peer_environment import prepare_environment
from benchmarks.peer_lm_eval import HARNESS, ask_harness
from examples.tiny_model import BOS, ensure_tiny_model

CONTEXT_TOKENS = 192
"""The tiny model's context, shorter than the documents of the perplexity task."""
LOGPROB_TOLERANCE = 1e-3
"""Tolerance for float32 sums in another order."""
ENGINE = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**27}


def ask_here(folder: Path, model: Path, plain: list[str], engine: dict[str, Any]) -> dict[str, Any]:
    """Run the tasks with and without a chat template. Return the results from the database and the runs' folders.

    `engine` is the spec's engine."""
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    found: dict[str, Any] = {"results": {}, "documents": {}}
    for name, tasks, is_chat in (("plain", plain, False), ("chat", ["arithmetic_chat"], True)):
        source = {"kind": "lm_eval", "task": tasks, "include_path": str(folder), "apply_chat_template": is_chat}
        spec = parse_spec({
            "name": name,
            "model": str(model),
            "prompts": {"source": source},
            "engine": engine,
        })  # fmt: skip
        evaluation = begin_evaluation(spec, settings, NEVER)
        counts = evaluation.prepare()
        drive_worker(evaluation, "worker-0")
        evaluation.finish(counts)
        results = json.loads((evaluation.run_dir / "lm_eval" / "results.json").read_text())
        found["results"].update(results["results"] | results.get("groups", {}))
        found["documents"].update(read_documents(settings, evaluation.run_id))
    return found


def read_documents(settings: Settings, run_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return requests, responses and scores by task and document."""
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


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Print the table and the differences. Return the figures by task."""
    print("\n| task | documents | equal requests | equal responses | equal scores | equal aggregates |")
    print("|---|---:|---:|---:|---:|---:|")
    tasks = {}
    for task, samples in theirs["samples"].items():
        row = compare_task(task, samples, ours, theirs)
        tasks[task] = row
        shares = " | ".join("{} of {}".format(*row[what]) for what in ("requests", "responses", "scores", "aggregates"))
        print(f"| {task} | {row['documents']} | {shares} |")
    return tasks


def compare_task(task: str, samples: list[dict[str, Any]], ours: dict[str, Any], theirs: dict[str, Any]) -> Any:
    """Return pairs (equal, compared) of one task."""
    alike: dict[str, list[bool]] = {"requests": [], "responses": [], "scores": [], "aggregates": []}
    for sample in samples:
        document = ours["documents"][f"{task}/{sample['doc_id']}"]
        asked = ["".join(part for part in arguments if isinstance(part, str)) for arguments in sample["arguments"]]
        answered = [response for responses in sample["resps"] for response in responses]
        if len(document["requests"]) > len(asked):  # a long text in windows, which the harness sums, too
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
    """Return True for equal texts, or numbers equal except for rounding. Likelihoods compare their first element."""
    other = other[0] if isinstance(other, list) else other
    if isinstance(one, str):
        return one == other
    return math.isclose(float(one), float(other), rel_tol=LOGPROB_TOLERANCE, abs_tol=LOGPROB_TOLERANCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--backend", choices=["offline", "async"], default="offline")
    parser.add_argument("--model", type=Path, help="folder of a model (default: the tiny model)")
    parser.add_argument("--context-tokens", type=int, default=CONTEXT_TOKENS, help="max_model_len of both engines")
    options = parser.parse_args()
    if importlib.util.find_spec("lm_eval") is None:
        python = str(prepare_environment(*HARNESS))
        os.execv(python, [python, "-m", "benchmarks.lm_eval_tasks", *sys.argv[1:]])
    model = options.model.resolve() if options.model else ensure_tiny_model()
    args = {**ENGINE, "max_model_len": options.context_tokens}
    engine = {"backend": options.backend, "device": "cpu", "args": args}
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        plain = write_tasks(folder, options.prompts)
        ours = ask_here(folder, model, plain, engine)
        theirs = ask_harness(folder, model, plain, args)
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
