"""A task of likelihoods that runs out of memory: what becomes of it in lm-evaluation-harness with vLLM, and here.

    python -m benchmarks.lm_eval_memory [--documents 24]

The log-probability of every token of a prompt needs a row over the whole vocabulary per token of a step, which vLLM has
not kept room for. The task has long contexts, the model a vocabulary of 65,536. Asked three times: by the harness
without a limit; by the harness whose process, once its engine is open and all requests are made, may take half of what
the first run took beyond that; and here, with an engine that may take as much beyond its own size when it is warm.
Compared with the undisturbed run is every log-probability, every score and the aggregate. The last line is JSON. Exit
code 1: the harness lived, or what came out here differs.

A limit on the address space stands for a device that is full: torch's allocator fails inside the forward pass. The
harness is installed aside, as in `lm_eval_tasks`.
"""

import argparse
import importlib.util
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.drive import Listener, drive_worker
from assayline.evaluation.resume import NEVER
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from benchmarks.gpu.memory import Watched
from benchmarks.lm_eval_tasks import compare, read_documents
from benchmarks.peer_environment import prepare_environment
from benchmarks.peer_lm_eval import HARNESS, RUN_LIMITED, read_found, run_harness
from benchmarks.random_model import build_random_model

VOCABULARY = 65_536
CONTEXT_CHARACTERS = (1200, 1500)
"""A byte is a token."""

ROOM_SHARE = 0.5
"""What the limit leaves, of what an undisturbed run takes beyond an engine that is warm."""

ENGINE = {
    "dtype": "float32", "max_model_len": 2048, "max_num_batched_tokens": 2048, "enforce_eager": True,
    "enable_prefix_caching": False, "kv_cache_memory_bytes": 2**28,
}  # fmt: skip
TASK = """task: endings
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/endings.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: "{{{{right}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def write_task(folder: Path, documents: int) -> None:
    """Long texts of letters, with two endings each."""
    draw = random.Random(5)
    lines = []
    for _ in range(documents):
        letters = draw.choices("abcdefghij", k=draw.randint(*CONTEXT_CHARACTERS))
        endings = ["".join(draw.choices("klmnopq", k=draw.randint(2, 6))) for _ in range(2)]
        lines.append({"text": "".join(letters), "endings": endings, "right": draw.randint(0, 1)})
    (folder / "endings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "endings.yaml").write_text(TASK.format(folder=folder))


def ask_here(folder: Path, model: Path, limit_bytes: int | None, watched: Watched) -> dict[str, Any]:
    """A run of the task; what the database has of it, and of its engines."""
    name = "free" if limit_bytes is None else "limited"
    settings = Settings(data_dir=folder / name, lock_dir=folder / "locks", engine_memory_limit_bytes=limit_bytes)
    spec = parse_spec({
        "name": name,
        "model": str(model),
        "prompts": {"source": {"kind": "lm_eval", "task": ["endings"], "include_path": str(folder)}},
        "engine": {"device": "cpu", "args": ENGINE},
    })  # fmt: skip
    evaluation = begin_evaluation(spec, settings, NEVER)
    counts = evaluation.prepare()
    drive_worker(evaluation, "worker-0", Listener(on_event=watched.on_event))
    evaluation.finish(counts)
    results = json.loads((evaluation.run_dir / "lm_eval" / "results.json").read_text())
    with connect(settings.database_path, 10) as connection:
        engines = connection.execute(
            "select failure_kind, ok_requests from engine_history where run_id = ? order by engine_generation",
            [evaluation.run_id],
        ).fetchall()
        ((ok_requests, error_requests),) = connection.execute(
            "select ok_requests, error_requests from run_summary where run_id = ?", [evaluation.run_id]
        ).fetchall()
        reductions = connection.execute(
            "select message from engine_events where run_id = ? and event = 'reduced' order by at_s",
            [evaluation.run_id],
        ).fetchall()
    return {
        "documents": dict(read_documents(settings, evaluation.run_id)),
        "results": results["results"],
        "deaths": [kind for kind, _ in engines if kind],
        "reductions": [message for (message,) in reductions],
        "ok_requests": ok_requests,
        "error_requests": error_requests,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=24)
    options = parser.parse_args()
    if importlib.util.find_spec("lm_eval") is None:
        python = str(prepare_environment(*HARNESS))
        os.execv(python, [python, "-m", "benchmarks.lm_eval_memory", *sys.argv[1:]])
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        model = build_random_model(folder / "model", 2, 128, vocabulary=VOCABULARY)
        write_task(folder, options.documents)
        theirs = read_found(run_harness(RUN_LIMITED, folder, model, ["endings"], ENGINE, room_bytes=None), folder)
        growth_bytes = theirs["peak"] - theirs["warm"]
        room_bytes = int(ROOM_SHARE * growth_bytes)
        died = run_harness(RUN_LIMITED, folder, model, ["endings"], ENGINE, room_bytes=room_bytes)
        watched = Watched()
        ask_here(folder, model, None, watched)
        ours = ask_here(folder, model, watched.warm_bytes + room_bytes, Watched())
        figures = compare(ours, theirs)
    reasons = re.findall(r"(?:\w+Error|\w*allocate memory).*", died.stderr)
    report = {
        "benchmark": "lm_eval_memory",
        "documents": options.documents,
        "vocabulary": VOCABULARY,
        "undisturbed_growth_bytes": growth_bytes,
        "room_bytes": room_bytes,
        "harness_exit_code": died.returncode,
        "harness_says": reasons[-1] if reasons else None,
        **{name: ours[name] for name in ("deaths", "reductions", "ok_requests", "error_requests")},
        "tasks": figures,
    }
    is_same = all(
        row[what][0] == row[what][1]
        for row in figures.values()
        for what in ("requests", "responses", "scores", "aggregates")
    )
    report["holds"] = died.returncode != 0 and bool(ours["deaths"]) and ours["error_requests"] == 0 and is_same
    print(json.dumps(report))
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
