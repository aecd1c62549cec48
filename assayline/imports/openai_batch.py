"""A batch in the format of OpenAI and vLLM: its input file, and its output and error files.

Prompts have the ids that they have in a run with the source openai_batch. Without the input file, prompts are known by
their custom_id only. The input is streamed; of the outputs, the position of each line is kept in memory.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.digests import digest_json
from assayline.imports.rows import Imported, RowMaker, Rows, join_text, read_places, read_time
from assayline.prompts.read import BadRow, load_prompts
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec
from assayline.words import count

TOOL = "openai-batch"
Places = dict[str, tuple[Path, int]]
"""File and position of the line that counts, by custom_id."""


def read_batch(paths: list[Path]) -> Iterator[Imported]:
    """Yield the run of one batch, whose files are `paths` in any order."""
    first = {path: next(_read_lines(path), (0, {}))[1] for path in paths}
    inputs = [path for path in paths if "body" in first[path]]
    outputs = [path for path in paths if path not in inputs]
    if len(inputs) > 1 or not outputs:
        raise ValueError("expected at most one input file, with its output file and perhaps its error file")
    places: Places = {}
    failed: set[str] = set()
    repeated, model, created = 0, None, None
    for path in outputs:
        for place, line in _read_lines(path):
            name, body, is_error = str(line["custom_id"]), _read_body(line), _find_error(line) is not None
            model, created = model or body.get("model"), created or body.get("created")
            repeated += name in places
            if name not in places or (name in failed and not is_error):
                places[name] = (path, place)
                (failed.add if is_error else failed.discard)(name)
    again = (
        f"{count(repeated, 'line')} with the custom_id of another; an answer counts before an error, then the first."
    )
    notes = [again] if repeated else []
    yield Imported(
        tool=TOOL,
        version=None,
        model=model or (first[inputs[0]]["body"].get("model") if inputs else None) or "unknown",
        prompt_set=(inputs or outputs)[0].stem,
        files=[*inputs, *outputs],
        rows=_read_rows(inputs, places, notes),
        started_s=read_time(created),
        notes=notes,
    )


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, line in read_places(path):
        if not isinstance(line, dict) or "custom_id" not in line:
            raise ValueError(f"the line {json.dumps(line):.80} of {path.name} has no custom_id")
        yield place, line


def _read_rows(inputs: list[Path], places: Places, notes: list[str]) -> Rows:
    rows = RowMaker(TOOL)
    files = {path: path.open("rb") for path, _ in places.values()}
    try:
        for prompt, error in _read_prompts(inputs, places, rows, notes):
            yield prompt
            answers = [error] if error else []
            if place := places.pop(prompt.source_id or "", None):  # also if it could not be sent from here
                files[place[0]].seek(place[1])
                answers = _read_answers(json.loads(files[place[0]].readline()))
            for repeat_index in range(max(len(answers), 1)):
                answer = answers[repeat_index] if answers else {}
                records = rows.answer(prompt, repeat_index, {"sampling": prompt.sampling}, **answer)
                yield from records if answers else [next(records)]  # without an answer it is missing
    finally:
        for file in files.values():
            file.close()


def _read_prompts(
    inputs: list[Path], places: Places, rows: RowMaker, notes: list[str]
) -> Iterator[tuple[Prompt, dict[str, Any] | None]]:
    """Yield each prompt, and the error of one that could not be sent; then those of lines that the input lacks."""
    for path in inputs:
        for prompt in load_prompts(PromptSpec.model_validate({"source": {"kind": "openai_batch", "path": str(path)}})):
            rows.rows += 1
            if isinstance(prompt, BadRow):
                yield prompt.prompt, {"error_kind": prompt.kind, "error_message": prompt.message}
            else:
                yield prompt, None
        if places:
            lines = f"{count(len(places), 'line')}, such as that of {next(iter(places))!r:.80},"
            notes.append(f"{path.name} lacks the custom_id of {lines} whose prompt is therefore unknown.")
    for name in list(places):
        yield rows.prompt([], prompt_id=digest_json({"custom_id": name}), source_id=name), None


def _read_body(line: dict[str, Any]) -> dict[str, Any]:
    return (line.get("response") or {}).get("body") or {}


def _find_error(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return the error of a line without an answer. It may have only a status code."""
    if not (error := line.get("error") or _read_body(line).get("error")) and _read_body(line).get("choices"):
        return None
    given = error if isinstance(error, dict) else {"message": error}
    status = (line.get("response") or {}).get("status_code")
    message = given.get("message") or f"The response has no choices; its status code is {status}."
    return {"error_kind": str(given.get("code") or "request_failed"), "error_message": str(message)}


def _read_answers(line: dict[str, Any]) -> list[dict[str, Any]]:
    if error := _find_error(line):
        return [error]
    body = _read_body(line)
    usage, choices = body.get("usage") or {}, sorted(body["choices"], key=lambda choice: choice.get("index") or 0)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    tokens = usage.get("completion_tokens") if len(choices) == 1 else None  # the sum over all choices
    return [
        {
            **_read_message(choice),
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": None if (stop := choice.get("stop_reason")) is None else str(stop),
            "prompt_tokens": usage.get("prompt_tokens"),
            "cached_tokens": cached,
            "output_tokens": tokens,
        }
        for choice in choices
    ]


def _read_message(choice: dict[str, Any]) -> dict[str, Any]:
    """Return text and reasoning of a choice. A refusal is a text."""
    message = choice.get("message") or {"content": choice.get("text")}
    text, reasoning = join_text(message.get("content")), message.get("reasoning") or message.get("reasoning_content")
    return {"text": message.get("refusal") if text is None else text, "reasoning": reasoning}
