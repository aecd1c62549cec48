"""Results and samples of lm-evaluation-harness, with the file names and keys of the harness's EvaluationTracker.

A run with the source lm_eval has results by the harness itself (`lm_eval/` in its folder); the tracker's own fields
are added. Any other run becomes one task named after its prompt set. Its metrics are the run's scorers: mean and
standard error from the view accuracy, and the mean over repeats per prompt. Fields that such a run lacks (task
versions, the harness's commit) are absent, null or N/A, as in the harness's own files.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from assayline.errors import SpecError
from assayline.export.rows import Exported, ExportedRun, digest, new_files, read_prompts
from assayline.harness.judge import KIND
from assayline.store.database import Connection, Row, read_rows
from assayline.store.score_files import FOLDER_NAME
from assayline.words import hide_folder

MODEL_SOURCE = "assayline"
WORDS = ("doc_to_", "description", "fewshot_config")
"""Fields of a task's configuration with words of its prompts."""


def export_harness(connection: Connection, run: ExportedRun, output: Path, force: bool) -> Exported:
    """Write `results_TIME.json` and a `samples_TASK_TIME.jsonl` per task to a folder.

    Raises SpecError for a run of harness tasks that the harness has not judged.
    """
    if run.read_spec("prompts.source.kind") == KIND:
        results, samples = _read_judged(run)
    else:
        results, samples = _make_results(connection, run), {_name_task(run): _make_samples(connection, run)}
    stamp = run.row["started_at"].isoformat().replace(":", "-")
    names = {task: f"samples_{task}_{stamp}.jsonl" for task in samples}
    with new_files(output, [*names.values(), f"results_{stamp}.json"], force) as folder:
        hashes = {task: _write_samples(folder / names[task], rows) for task, rows in samples.items()}
        results |= {"task_hashes": hashes, **_describe_model(run)}
        text = json.dumps(results, indent=2, ensure_ascii=False)
        (folder / f"results_{stamp}.json").write_text(text, encoding="utf-8", errors="replace")
    return Exported([output], [f"Results and samples of {', '.join(samples)}."])


def _read_judged(run: ExportedRun) -> tuple[dict[str, Any], dict[str, Iterator[dict[str, Any]]]]:
    folder = run.run_dir / FOLDER_NAME
    path = folder / "results.json"
    if not path.exists():
        raise SpecError(
            f"Run {run.row['run_id']} has a task of lm-evaluation-harness whose answers are not judged: {path} is "
            "missing. hint: resume the run to judge them."
        )
    results = json.loads(path.read_text(encoding="utf-8"))
    results["config"] = {**results.get("config", {}), **_describe_config(run)}
    results.pop("aggregations", None)
    for config in results["configs"].values() if run.without_texts else ():
        config.update({name: run.hide(value) for name, value in config.items() if name.startswith(WORDS)})
    files = {path.stem.removeprefix("samples_"): path for path in sorted(folder.glob("samples_*.jsonl"))}
    return results, {task: map(partial(_sanitize, run), _read_lines(path)) for task, path in files.items()}


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _sanitize(run: ExportedRun, sample: dict[str, Any]) -> dict[str, Any]:
    """Format a sample as the tracker does: responses and target as text, arguments by name."""
    arguments = {
        f"gen_args_{number}": {
            f"arg_{at}": value if isinstance(value, dict) else run.hide(value) for at, value in enumerate(given)
        }
        for number, given in enumerate(sample["arguments"])
    }
    texts = {name: _as_texts(run.hide(sample[name])) for name in ("resps", "filtered_resps")}
    document, target = run.hide(sample["doc"]), run.hide(str(sample["target"]))
    return {**sample, **texts, "doc": document, "arguments": arguments, "target": target}


def _as_texts(value: Any) -> Any:
    return [_as_texts(item) for item in value] if isinstance(value, list) else str(value)


def _write_samples(path: Path, samples: Iterable[dict[str, Any]]) -> str:
    """Write the samples. Return the task's hash: the hash of its samples' hashes in order."""
    hashes = hashlib.sha256()
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for sample in samples:
            hashes.update((sample["doc_hash"] + sample["prompt_hash"] + sample["target_hash"]).encode())
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    return hashes.hexdigest()


def _describe_model(run: ExportedRun) -> dict[str, Any]:
    row, system = run.row, run.hide(run.read_spec("chat.system"))
    ends = row["finished_at"]
    return {
        "model_source": MODEL_SOURCE,
        "model_name": (model := hide_folder(row["model"])),
        "model_name_sanitized": re.sub(r"[\"<>:/|\\?*\[\]]+", "__", model),
        "system_instruction": system,
        "system_instruction_sha": None if system is None else digest(system),
        "fewshot_as_multiturn": run.read_spec("prompts.source.apply_chat_template"),
        "chat_template": None,
        "chat_template_sha": None,
        "total_evaluation_time_seconds": None if ends is None else str((ends - row["started_at"]).total_seconds()),
    }


def _describe_config(run: ExportedRun) -> dict[str, Any]:
    return {
        "model": MODEL_SOURCE,
        "model_args": {
            name: hide_folder(value)
            for name, value in {"pretrained": run.row["model"], **(run.read_spec("engine.args") or {})}.items()
        },
    }


def _make_results(connection: Connection, run: ExportedRun) -> dict[str, Any]:
    task, run_id = _name_task(run), run.row["run_id"]
    scored = read_rows(connection, "select * from accuracy where run_id = ? order by ordinal", run_id)
    query = """
        select
            (select count(*) from prompt where run_id = $1) as original,
            (select count(distinct (prompt_id, occurrence)) from scores where run_id = $1) as effective
    """
    (counts,) = read_rows(connection, query, run_id)
    values: dict[str, Any] = {"alias": task, "sample_len": counts["effective"]}
    for row in scored:
        error = row["standard_error"]
        values |= {
            f"{row['scorer']},none": row["mean"],
            f"{row['scorer']}_stderr,none": "N/A" if error is None else error,
        }
    shots = run.read_spec("prompts.few_shot.count") or 0
    return {
        "results": {task: values},
        "group_subtasks": {task: []},
        "configs": {
            task: {
                "task": task,
                "dataset_path": hide_folder(run.read_spec("prompts.source.path"))
                or run.read_spec("prompts.source.dataset"),
                "output_type": "multiple_choice" if run.has_options else "generate_until",
                "num_fewshot": shots,
                "repeats": run.read_spec("prompts.repeats"),
                "metric_list": [{"metric": row["scorer"], "aggregation": "mean"} for row in scored],
                "generation_kwargs": run.read_spec("sampling"),
            }
        },
        "versions": {task: "N/A"},
        "n-shot": {task: shots},
        "higher_is_better": {task: {row["scorer"]: True for row in scored}},
        "n-samples": {task: counts},
        "config": {
            **_describe_config(run),
            "limit": run.read_spec("prompts.limit"),
            "gen_kwargs": run.read_spec("sampling"),
        },
        "git_hash": None,
        "date": run.started_unix_s,
    }


def _make_samples(connection: Connection, run: ExportedRun) -> Iterator[dict[str, Any]]:
    return map(_make_sample, read_prompts(connection, run))


def _make_sample(rows: list[Row]) -> dict[str, Any]:
    first = rows[0]
    has_options = first["option_index"] is not None
    means: dict[str, float] = first["means"] or {}
    messages = json.loads(first["messages_json"])
    named = {"id": first["source_id"], "prompt_id": first["prompt_id"], "messages": messages}
    document = {**json.loads(first["metadata_json"]), **named}
    prompt = first["rendered"] or ""
    asked = [row for row in rows if row["repeat_index"] == 0] if has_options else rows[:1]
    seconds = [row["option"] for row in asked] if has_options else [json.loads(first["sampling_json"])]
    contexts = [(row["rendered"] or "").removesuffix(row["option"] or "") for row in asked] if has_options else [prompt]
    answers: list[Any]
    if has_options:  # whether an option is greedy is not known
        answers = [[[str(row["option_logprob"]), "None"]] for row in asked]
        filtered = [answer for (answer,) in answers]
    else:
        answers = [[row["text"] or "" for row in rows]]
        filtered = [rows[0]["text"] or ""]
    target = first["target"]
    return {
        "doc_id": first["source_row"],
        "doc": document,
        "target": str(target),
        "arguments": {
            f"gen_args_{number}": {"arg_0": context, "arg_1": second}
            for number, (context, second) in enumerate(zip(contexts, seconds, strict=True))
        },
        "resps": answers,
        "filtered_resps": filtered,
        "filter": "none",
        "metrics": list(means),
        "doc_hash": digest(json.dumps(document, indent=2, ensure_ascii=False)),
        "prompt_hash": digest(contexts[0] if contexts else prompt),
        "target_hash": digest(str(target)),
        **means,
    }


def _name_task(run: ExportedRun) -> str:
    """Convert a task's name for file names as the harness does: letters, digits and underscores."""
    return re.sub(r"\W", "_", run.row["prompt_set"])
