"""Logs in the format of every_eval_ever 0.3: a document with its `NAME_samples.jsonl` next to it.

A sample has a line per metric. Only the first one with its id makes a prompt and an answer. Lines that assayline wrote
name the prompt's id and the repeat in their metadata, and have timestamps. Of several data sets each has scorers of its
own, after the one of all tasks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.harness.judge import ALL_TASKS
from assayline.imports.rows import (
    Imported,
    RowMaker,
    Rows,
    Total,
    describe_scorer,
    read_json,
    read_lines,
    read_time,
    score,
)
from assayline.imports.totals import SHARE, make_score
from assayline.prompts.targets import write_target

TOOL = "eee"
VERSION = "0.3"
OWN = {"prompt_id", "occurrence", "repeat_index"}
"""Metadata of a line that assayline wrote."""


def read_log(path: Path) -> Iterator[Imported]:
    """Yield the run of a log."""
    data = read_json(path)
    if not str(data["schema_version"]).startswith(f"{VERSION}."):
        raise ValueError(f"{path.name} has schema_version {data['schema_version']}, expected {VERSION}")
    detailed = data.get("detailed_evaluation_results")
    samples = path.with_name(Path(detailed["file_path"]).name) if detailed else None
    library = data["eval_library"]
    scorers: dict[str, dict[str, Any]] = {}
    yield Imported(
        tool=TOOL,
        version=data["schema_version"],
        model=data["model_info"]["id"],
        prompt_set=", ".join(dict.fromkeys(one["evaluation_name"] for one in data["evaluation_results"])),
        files=[path, *([samples] if samples else [])],
        rows=_read_rows(samples, scorers, data) if samples else (),
        totals=list(_read_scores(data)),
        started_s=read_time(data.get("evaluation_timestamp")),
        counts={"scores": detailed.get("total_rows")} if detailed else {},
        settings={"eval_library": library, "inference_engine": data["model_info"].get("inference_engine")},
        scorers=scorers,
    )


def _name_sets(data: dict[str, Any]) -> dict[str, str]:
    """Return the data set of each evaluation."""
    return {
        one["evaluation_name"]: (one.get("source_data") or {}).get("dataset_name") or one["evaluation_name"]
        for one in data["evaluation_results"]
    }


def _read_scores(data: dict[str, Any]) -> Iterator[Total]:
    sets = _name_sets(data)
    for one in data["evaluation_results"]:
        if not (details := one.get("score_details")):
            continue
        config = one["metric_config"]
        name = one.get("evaluation_result_id") or one["evaluation_name"]
        scorer = f"{sets[one['evaluation_name']]}: {name}" if len(set(sets.values())) > 1 else name
        spread = details.get("uncertainty") or {}
        n, error = spread.get("num_samples"), (spread.get("standard_error") or {}).get("value")
        is_better = not config.get("lower_is_better", False)
        yield make_score(scorer, config.get("metric_id") or scorer, details["score"], n, is_better)
        if error is not None:
            yield Total("standard_error", "accuracy", error, SHARE, n, scorer)


def _read_rows(samples: Path, scorers: dict[str, dict[str, Any]], data: dict[str, Any]) -> Rows:
    rows, library = RowMaker(TOOL), data["eval_library"]
    results = data["evaluation_results"]
    ids = {one.get("evaluation_result_id"): one["metric_config"].get("metric_id") for one in results}
    sets = _name_sets(data)
    answered: set[Any] = set()
    firsts: dict[str, str] = {}  # data set → its first metric
    if has_several := len(set(sets.values())) > 1:
        described = describe_scorer(library["name"], library.get("version"), ALL_TASKS)
        scorers[ALL_TASKS] = {**described, "tasks": firsts}
    for line in read_lines(samples):
        own = metadata if (metadata := line.get("metadata") or {}).keys() >= OWN else {}
        name, repeat_index = line["sample_id"], int(own.get("repeat_index", 0))
        metric = line.get("evaluation_result_id") or line["evaluation_name"]
        task = sets.get(line["evaluation_name"], line["evaluation_name"])
        sample = (own["prompt_id"], own["occurrence"]) if own else (task, name)
        if sample not in rows.known:
            asked = line["input"]
            messages = [{"role": "user", "content": asked["raw"]}]
            given, prompt_id = asked["reference"], own.get("prompt_id")
            target = given if isinstance(given, str) else write_target(list(given or ()))
            choices = {"choices": asked["choices"]} if asked.get("choices") else {}
            yield rows.prompt(messages, target, prompt_id, name=sample, source_id=name, metadata=choices)
        if (sample, repeat_index) not in answered:
            answered.add((sample, repeat_index))
            yield from rows.answer(rows.known[sample], repeat_index, **_read_answer(line, own))
        title = f"{task}: {metric}" if has_several else metric
        described = describe_scorer(library["name"], library.get("version"), metric)
        scorers.setdefault(title, {**described, "metric_id": ids.get(metric)})
        extracted = [one["extracted_value"] for one in line["answer_attribution"] if one["is_terminal"]]
        found = {"extracted": next(iter(extracted), None), "error_kind": _read_error(line, own)}
        scored = score(title, rows.known[sample], line["evaluation"]["score"], repeat_index, **found)
        yield scored
        if has_several and firsts.setdefault(task, title) == title:
            yield scored._replace(scorer=ALL_TASKS)


def _read_error(line: dict[str, Any], own: dict[str, str]) -> str | None:
    return own.get("error_kind", "request_failed") if line.get("error") else None


def _read_answer(line: dict[str, Any], own: dict[str, str]) -> dict[str, Any]:
    details = ((line.get("performance") or {}).get("additional_details") or {}) if own else {}
    times = {name: float(value) for name, value in details.items() if name.endswith("_at_s")}
    common = {**times, **{name: own.get(name) for name in ("finish_reason", "stop_reason")}}
    if "worker" in own:
        common["worker"] = own["worker"]
    if error_kind := _read_error(line, own):
        return {**common, "error_kind": error_kind, "error_message": line["error"]}
    usage, output = line.get("token_usage") or {}, line.get("output")
    said = [message for message in line.get("messages") or () if message["role"] == "assistant"]
    text, thought = (output["raw"], output.get("reasoning_trace")) if output else ([said[-1]["content"]], None)
    return {
        **common,
        "text": next(iter(text), None),
        "reasoning": "\n".join(thought) if thought else None,
        "prompt_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": usage.get("input_tokens_cache_read"),
    }
