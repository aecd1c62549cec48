"""A batch in the format of OpenAI and vLLM: its input file, and its output and error files.

Prompts have the ids that they have in a run with the source openai_batch. Without the input file, prompts are known by
their custom_id only. The input is streamed; of the outputs, the position of each line is kept in memory.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.digests import digest_json
from assayline.imports.rows import Imported, RowMaker, Rows, read_lines
from assayline.prompts.read import BadRow, load_prompts
from assayline.records import Prompt
from assayline.spec.prompts import OpenAiBatchSource, PromptSpec

TOOL = "openai-batch"
Places = dict[str, tuple[Path, int]]
"""File and position of each answer, by custom_id."""


def read_batch(paths: list[Path]) -> Iterator[Imported]:
    """Yield the run of one batch, whose files are `paths` in any order."""
    inputs = [path for path in paths if "body" in _read_first(path)]
    outputs = [path for path in paths if path not in inputs]
    if len(inputs) > 1 or not outputs:
        raise ValueError("expected at most one input file, with its output file and perhaps its error file")
    places = {line["custom_id"]: (path, place) for path in outputs for place, line in _read_places(path)}
    first = next((line for _, line in _read_places(outputs[0])), {})
    body = (first.get("response") or {}).get("body") or {}
    asked = _read_first(inputs[0])["body"] if inputs else {}
    yield Imported(
        tool=TOOL,
        version=None,
        model=body.get("model") or asked.get("model") or "unknown",
        prompt_set=(inputs or outputs)[0].stem,
        files=[*inputs, *outputs],
        rows=_read_rows(inputs, places),
        started_s=body.get("created"),
    )


def _read_first(path: Path) -> dict[str, Any]:
    line = next(read_lines(path), None)
    if not isinstance(line, dict) or "custom_id" not in line:
        raise ValueError(f"the first line of {path.name} has no custom_id")
    return line


def _read_places(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        place = 0
        for line in file:
            if line.strip():
                yield place, json.loads(line)
            place += len(line)


def _read_rows(inputs: list[Path], places: Places) -> Rows:
    rows = RowMaker(TOOL)
    files = {path: path.open("rb") for path, _ in places.values()}
    try:
        for prompt, error in _read_prompts(inputs, places, rows):
            yield prompt
            answers: list[dict[str, Any]] = []
            if error:
                answers = [error]
            elif prompt.source_id in places:
                path, place = places[prompt.source_id]
                files[path].seek(place)
                answers = _read_answers(json.loads(files[path].readline()))
            for repeat_index in range(max(len(answers), 1)):
                answer = answers[repeat_index] if answers else {}
                records = rows.answer(prompt, repeat_index, {"sampling": prompt.sampling}, **answer)
                yield from records if answers else [next(records)]  # without an answer it is missing
    finally:
        for file in files.values():
            file.close()


def _read_prompts(inputs: list[Path], places: Places, rows: RowMaker) -> Iterator[tuple[Prompt, dict[str, Any] | None]]:
    """Yield each prompt, and the error of one that could not be sent."""
    if not inputs:
        for name in places:
            yield rows.prompt([], prompt_id=digest_json({"custom_id": name}), source_id=name), None
        return
    for prompt in load_prompts(PromptSpec(source=OpenAiBatchSource(kind="openai_batch", path=str(inputs[0])))):
        if isinstance(prompt, BadRow):
            yield prompt.prompt, {"error_kind": prompt.kind, "error_message": prompt.message}
        else:
            yield prompt, None


def _read_answers(line: dict[str, Any]) -> list[dict[str, Any]]:
    response = line.get("response") or {}
    body = response.get("body") or {}
    if error := line.get("error") or body.get("error"):
        return [{"error_kind": str(error.get("code") or "request_failed"), "error_message": error.get("message")}]
    usage, choices = body.get("usage") or {}, body["choices"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    tokens = usage.get("completion_tokens") if len(choices) == 1 else None  # the sum over all choices
    return [
        {
            "text": choice["text"] if "text" in choice else choice["message"].get("content"),
            "reasoning": (choice.get("message") or {}).get("reasoning"),
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": None if (stop := choice.get("stop_reason")) is None else str(stop),
            "prompt_tokens": usage.get("prompt_tokens"),
            "cached_tokens": cached,
            "output_tokens": tokens,
        }
        for choice in choices
    ]
