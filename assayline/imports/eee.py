"""Logs in the format of every_eval_ever 0.3: a document with its `NAME_samples.jsonl` next to it.

A sample has a line per metric. Only the first one with its id makes a prompt and an answer.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from assayline.imports.rows import Imported, RowMaker, Rows, describe_scorer, read_json, read_lines, read_number, score
from assayline.records import Prompt

TOOL = "eee"


def read_logs(paths: list[Path]) -> Iterator[Imported]:
    """Yield a run per log; `paths` are logs, or folders with them."""
    for path in paths:
        yield from map(_read_log, sorted(path.rglob("*.json")) if path.is_dir() else [path])


def _read_log(path: Path) -> Imported:
    data = read_json(path)
    detailed = data.get("detailed_evaluation_results")
    if not detailed:
        raise ValueError(f"{path.name} has no detailed_evaluation_results: totals alone cannot be imported")
    samples = path.with_name(Path(detailed["file_path"]).name)
    library = data["eval_library"]
    scorers: dict[str, dict[str, Any]] = {}
    return Imported(
        tool=TOOL,
        version=data["schema_version"],
        model=data["model_info"]["id"],
        prompt_set=", ".join(dict.fromkeys(one["evaluation_name"] for one in data["evaluation_results"])),
        files=[path, samples],
        rows=_read_rows(samples, scorers, library, detailed.get("total_rows")),
        started_s=read_number(data.get("evaluation_timestamp")),
        settings={"eval_library": library, "inference_engine": data["model_info"].get("inference_engine")},
        scorers=scorers,
    )


def _read_rows(samples: Path, scorers: dict[str, dict[str, Any]], library: dict[str, str], wanted: int | None) -> Rows:
    rows, lines = RowMaker(TOOL), 0
    known: dict[str, Prompt] = {}
    for line in read_lines(samples):
        name, lines = line["sample_id"], lines + 1
        if name not in known:
            asked = line["input"]
            messages = [{"role": "user", "content": asked["raw"]}]
            metadata = {"choices": asked["choices"]} if asked.get("choices") else {}
            prompt = rows.prompt(messages, next(iter(asked["reference"]), None), source_id=name, metadata=metadata)
            yield prompt
            known[name] = replace(prompt, messages=[], metadata={})
            yield from rows.answer(prompt, **_read_answer(line))
        metric = line.get("evaluation_result_id") or line["evaluation_name"]
        scorers.setdefault(metric, describe_scorer(library["name"], library.get("version"), metric))
        extracted = [one["extracted_value"] for one in line["answer_attribution"] if one["is_terminal"]]
        yield score(metric, known[name], line["evaluation"]["score"], extracted=next(iter(extracted), None))
    if wanted is not None and lines != wanted:
        raise ValueError(f"{samples.name} has {lines} lines, and the log is of {wanted}")


def _read_answer(line: dict[str, Any]) -> dict[str, Any]:
    if line.get("error"):
        return {"error_kind": "request_failed", "error_message": line["error"]}
    usage, output = line.get("token_usage") or {}, line.get("output")
    said = [message for message in line.get("messages") or () if message["role"] == "assistant"]
    text, thought = (output["raw"], output.get("reasoning_trace")) if output else ([said[-1]["content"]], None)
    return {
        "text": next(iter(text), None),
        "reasoning": "\n".join(thought) if thought else None,
        "prompt_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": usage.get("input_tokens_cache_read"),
    }
