"""A log of every_eval_ever 0.3: a document with the scores and `UUID_samples.jsonl` next to it, in its folder tree.

A sample has a line per scorer, with the tokens and times of its answer. A run without texts has digests in them. The
metadata of a line has what the format lacks: the prompt's id, the repeat, the kind of an error.
"""

import hashlib
import itertools
import json
import re
import uuid
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from assayline.errors import SpecError
from assayline.export.rows import Exported, ExportedRun, digest, name_model, new_files, read_prompts, unix_s
from assayline.store.database import Connection, Row, read_rows
from assayline.words import count, hide_folder

SCHEMA = "0.3.0"
DETAILS = ("prompt_id", "occurrence", "repeat_index", "worker", "finish_reason", "stop_reason", "error_kind")


def export_eee(connection: Connection, run: ExportedRun, output: Path, force: bool) -> Exported:
    """Write the log and its samples below `output`. Raises SpecError for a run without scores."""
    query = "select accuracy.*, definition from accuracy join scorers using (run_id, scorer) where run_id = ?"
    scorers = read_rows(connection, f"{query} and samples > 0 order by accuracy.ordinal", run.row["run_id"])
    if not scorers:
        raise SpecError(
            f"Run {run.row['run_id']} has no scores, and eee is a format of scores. hint: add them with `assayline "
            f"score {run.row['run_id']} --scorer …`."
        )
    developer, model = name_model(run.row["model"])
    collection = re.sub(r"[^\w.-]+", "_", run.row["prompt_set"]).strip(".") or "prompts"
    folder = Path("data", "data_" if collection == "data" else collection, developer, model)
    name = uuid.UUID(bytes=hashlib.sha256(run.row["run_id"].encode()).digest()[:16], version=4)
    (tools,) = read_rows(
        connection, "select tool, tool_version, vllm_version from run where run_id = ?", run.row["run_id"]
    )
    document = _describe(run, tools, scorers, developer, model)
    files = [folder / f"{name}.json", folder / f"{name}_samples.jsonl"]
    checksum, lines = hashlib.sha256(), 0
    with new_files(output / folder, [file.name for file in files], force) as unfinished:
        with (unfinished / files[1].name).open("wb") as samples:
            for line in _make_lines(connection, run, document):
                written = (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace")
                samples.write(written)
                checksum.update(written)
                lines += 1
        document["detailed_evaluation_results"] = {
            "format": "jsonl", "file_path": files[1].as_posix(), "hash_algorithm": "sha256",
            "checksum": checksum.hexdigest(), "total_rows": lines,
        }  # fmt: skip
        (unfinished / files[0].name).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return Exported([output / file for file in files], [f"{count(lines, 'score')} of {count(len(scorers), 'scorer')}."])


def _describe(run: ExportedRun, tools: Row, scorers: list[Row], developer: str, model: str) -> dict[str, Any]:
    row = run.row
    started, ended = (str(unix_s(moment)) for moment in (row["started_at"], row["finished_at"] or row["started_at"]))
    model_id = f"{developer}/{model}"
    engine = {"name": "vllm", "version": tools["vllm_version"]} if tools["vllm_version"] else None
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{row['prompt_set']}/{model_id}/{ended}",
        "evaluation_timestamp": started,
        "retrieved_timestamp": ended,
        "source_metadata": {
            "source_name": row["run_id"],
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": tools["tool"] or "assayline",
            "version": (tools["tool_version"] if tools["tool"] else row["assayline_version"]) or "unknown",
        },
        "model_info": {
            "name": hide_folder(row["model"]),
            "id": model_id,
            "developer": developer,
            **({"inference_engine": engine} if engine else {}),
            "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
        },
        "evaluation_results": [_describe_score(run, scorer, started) for scorer in scorers],
    }


def _describe_score(run: ExportedRun, scorer: Row, started: str) -> dict[str, Any]:
    given = run.read_spec("sampling") or {}
    sampling = {name: given.get(name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    uncertainty: dict[str, Any] = {"num_samples": scorer["samples"]}
    if scorer["standard_error"] is not None:
        uncertainty["standard_error"] = {"value": scorer["standard_error"], "method": "analytic"}
    if scorer["mean_low"] is not None:
        bounds = {"lower": scorer["mean_low"], "upper": scorer["mean_high"], "confidence_level": 0.95}
        uncertainty["confidence_interval"] = bounds
    return {
        "evaluation_result_id": scorer["scorer"],
        "evaluation_name": run.row["prompt_set"],
        "source_data": _describe_data(run),
        "evaluation_timestamp": started,
        "metric_config": {
            "evaluation_description": scorer["definition"] or scorer["kind"],
            "metric_id": scorer["kind"],
            "metric_name": scorer["scorer"],
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {"score": scorer["mean"], "uncertainty": uncertainty},
        "generation_config": {
            "generation_args": {name: value for name, value in sampling.items() if value is not None}
        },
    }


def _describe_data(run: ExportedRun) -> dict[str, Any]:
    source = run.read_spec("prompts.source") or {}
    if source.get("kind") != "hub":
        return {"dataset_name": run.row["prompt_set"], "source_type": "other"}
    details = {name: source[name] for name in ("subset", "revision") if source.get(name)}
    return {
        "dataset_name": run.row["prompt_set"], "source_type": "hf_dataset", "hf_repo": source["dataset"],
        "hf_split": source["split"], "additional_details": details,
    }  # fmt: skip


def _make_lines(connection: Connection, run: ExportedRun, document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for prompt in read_prompts(connection, run):
        for _, group in itertools.groupby(prompt, itemgetter("repeat_index")):
            rows = list(group)
            sample = _make_sample(rows, document) if rows[0]["worker"] else {}
            for score in (rows[0]["scores"] or []) if sample else []:
                found = {
                    "turn_idx": 0, "source": "output.raw", "extracted_value": score["extracted"],
                    "extraction_method": score["scorer"], "is_terminal": True,
                }  # fmt: skip
                yield {
                    **sample,
                    "evaluation_result_id": score["scorer"],
                    "answer_attribution": [] if score["extracted"] is None else [found],
                    "evaluation": {"score": score["value"], "is_correct": score["value"] == 1},
                }


def _make_sample(rows: list[Row], document: dict[str, Any]) -> dict[str, Any]:
    """Return a line without its score. `rows` are the answer, or the likelihoods of a sample's options."""
    row = rows[0]
    asked = [_read_text(message["content"]) for message in json.loads(row["messages_json"])]
    raw, reference = "\n\n".join(asked), [] if row["target"] is None else [row["target"]]
    best = max(rows, key=lambda one: -float("inf") if one["option_logprob"] is None else one["option_logprob"])
    text = row["text"] if row["option"] is None else best["option"]
    details = {name: row[name] for name in DETAILS if row[name] is not None}
    return {
        "schema_version": SCHEMA,
        "evaluation_id": document["evaluation_id"],
        "model_id": document["model_info"]["id"],
        "evaluation_name": document["evaluation_results"][0]["evaluation_name"],
        "sample_id": str(row["source_row"]) if row["source_id"] is None else row["source_id"],
        "sample_hash": digest(raw + "".join(reference)),
        "interaction_type": "single_turn",
        "input": {"raw": raw, "formatted": row["rendered"], "reference": reference, "choices": row["options"]},
        "output": {
            "raw": [] if text is None else [text],
            "reasoning_trace": None if row["reasoning"] is None else [row["reasoning"]],
        },
        "messages": None,
        "token_usage": _count_tokens(rows),
        "performance": _describe_times(row) if len(rows) == 1 else None,
        "error": row["error_message"] or row["error_kind"],
        "metadata": {name: str(value) for name, value in details.items()},
    }


def _read_text(content: Any) -> str:
    """Return the text of a message. Media are left out."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or () if "text" in part)


def _count_tokens(rows: list[Row]) -> dict[str, int] | None:
    asked, answered = ([row[name] for row in rows] for name in ("prompt_tokens", "output_tokens"))
    if None in asked or None in answered:
        return None
    usage = {"input_tokens": sum(asked), "output_tokens": sum(answered), "total_tokens": sum(asked) + sum(answered)}
    cached = [row["cached_tokens"] for row in rows]
    return usage if None in cached else {**usage, "input_tokens_cache_read": sum(cached)}


def _describe_times(row: Row) -> dict[str, Any] | None:
    """Return the latencies of an answer, and all of its timestamps in seconds after the start of the run."""
    at = {name: value for name, value in row.items() if name.endswith("_at_s") and value is not None}
    spans = {
        "latency_ms": ("arrived_at_s", "finished_at_s"),
        "time_to_first_token_ms": ("arrived_at_s", "first_token_at_s"),
        "generation_time_ms": ("first_token_at_s", "last_token_at_s"),
    }
    times = {
        name: round(max(0.0, at[end] - at[begin]) * 1e3, 6)
        for name, (begin, end) in spans.items()
        if begin in at and end in at
    }
    return {**times, "additional_details": {name: str(value) for name, value in at.items()}} if at else None
