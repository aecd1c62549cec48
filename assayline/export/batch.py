"""Output and error files of a batch, in the format of OpenAI and vLLM: one line per line of the batch file.

The answers to a line (`n` of its body) are the choices of one completion. If any of them is an error row, the line is
an error. Runs of other prompt sets use the row's id as `custom_id`, or `row-N` with the row's number from 0.

    {"id", "custom_id", "response": {"status_code": 200, "request_id", "body": a completion}, "error": null}
    {"id", "custom_id", "response": {"status_code": 400 or 500, "request_id", "body": {"error": …}}, "error": null}
    {"id", "custom_id", "response": null, "error": {"code", "message"}}

The first form is written to the output file, the others to the error file; the last is a request that never ran.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from assayline.errors import AssaylineError, SpecError
from assayline.export.rows import Exported, ExportedRun, new_files, read_prompts
from assayline.model import identify_model
from assayline.prompts.sources.batch import CHAT_URL, COMPLETIONS_URL
from assayline.records import NOT_SENT
from assayline.requests.build import WORKER
from assayline.requests.tokenizer import load_tokenizer
from assayline.store.database import Connection, Row
from assayline.words import hide_folder

BAD_REQUESTS = frozenset({"rejected_by_engine", "sampling_error", "media_error"})
"""Error kinds of an engine that the request caused. All errors of preparation are the request's, too."""

EXPIRED, CANCELLED, NOT_ANSWERED = "batch_expired", "batch_cancelled", "not_answered"
"""Error codes of requests that never ran. The first two are OpenAI's."""


NameToken = Callable[[str], str]
"""The text of a token, by its id as text."""


def export_batch(connection: Connection, run: ExportedRun, output: Path, force: bool) -> Exported:
    """Write the output file and, next to it, the error file. Raises SpecError for a run without generated text."""
    if run.has_options:
        raise SpecError(
            f"Run {run.row['run_id']} has likelihoods of given answers, and openai-batch needs generated text. hint: "
            "export it as lm-eval."
        )
    errors = name_errors(output)
    with (
        new_files(output.parent, (output.name, errors.name), force) as folder,
        open(folder / output.name, "w", encoding="utf-8", errors="replace") as output_file,
        open(folder / errors.name, "w", encoding="utf-8", errors="replace") as errors_file,
    ):
        prompts = read_prompts(connection, run)
        answered, failed = write_batch(run, prompts, name_tokens(run), output_file, errors_file)
    files = [path for path, lines in ((output, answered), (errors, failed)) if lines]
    return Exported(files, [f"{answered} lines answered, {failed} with an error."])


def name_errors(output: Path) -> Path:
    """Return the path of a batch's error file, next to its output."""
    return output.with_name(output.name.removesuffix(".jsonl") + ".errors.jsonl")


def name_tokens(run: ExportedRun) -> NameToken:
    """Return names by the tokenizer of the run's spec; `token_id:N`, vLLM's format, if it is no longer available."""

    @cache
    def open_tokenizer() -> Any:
        own = run.read_spec("engine.args.tokenizer")
        name, revision = (own, "engine.args.tokenizer_revision") if own else (run.row["model"], "revision")
        try:
            folder = identify_model(name, run.read_spec(revision)).folder
            return None if folder is None else load_tokenizer(folder)
        except AssaylineError:
            return None

    @cache
    def name(token: str) -> str:
        tokenizer = open_tokenizer()
        return f"token_id:{token}" if tokenizer is None else str(tokenizer.decode([int(token)]))

    return name


def write_batch(
    run: ExportedRun, prompts: Iterable[list[Row]], name: NameToken, output: TextIO, errors: TextIO
) -> tuple[int, int]:
    """Write a line per prompt, in the order of the prompt set. Return the numbers of lines in both files."""
    counts = {True: 0, False: 0}
    for rows in prompts:
        line, is_answered = _write_line(run, rows, name)
        (output if is_answered else errors).write(json.dumps(line, ensure_ascii=False) + "\n")
        counts[is_answered] += 1
    return counts[True], counts[False]


def _write_line(run: ExportedRun, rows: list[Row], name: NameToken) -> tuple[dict[str, Any], bool]:
    first = rows[0]
    asked = json.loads(first["metadata_json"])
    url = asked.get("url") if asked.get("url") in (CHAT_URL, COMPLETIONS_URL) else CHAT_URL
    line = {"id": f"batch_req_{first['request_id'][:32]}", "custom_id": _name_line(run, first)}
    if (error := _find_error(run, rows)) is not None:
        return {**line, **error}, False
    body = {
        "id": f"{'chatcmpl' if url == CHAT_URL else 'cmpl'}-{first['request_id'][:32]}",
        "object": "chat.completion" if url == CHAT_URL else "text_completion",
        "created": int(run.started_unix_s),
        "model": hide_folder(asked.get("model") or run.row["model"]),
        "choices": [
            (_write_chat if url == CHAT_URL else _write_text)(index, row, name) for index, row in enumerate(rows)
        ],
        "usage": _count_tokens(rows),
    }
    return {**line, "response": _respond(first, 200, body), "error": None}, True


def _name_line(run: ExportedRun, row: Row) -> str | None:
    """Return the custom_id; None for a line of a batch file without a readable one."""
    own: str | None = row["source_id"]
    return (
        own if own is not None or run.read_spec("prompts.source.kind") == "openai_batch" else f"row-{row['source_row']}"
    )


def _find_error(run: ExportedRun, rows: list[Row]) -> dict[str, Any] | None:
    failed = next((row for row in rows if row["error_kind"] is not None and row["error_kind"] != NOT_SENT), None)
    if failed is not None:
        kind, is_theirs = failed["error_kind"], failed["worker"] == WORKER or failed["error_kind"] in BAD_REQUESTS
        status, name = (400, "invalid_request_error") if is_theirs else (500, "server_error")
        error = {"message": failed["error_message"], "type": name, "param": None, "code": kind}
        return {"response": _respond(failed, status, {"error": error}), "error": None}
    if any(row["error_kind"] == NOT_SENT for row in rows):
        message = "The run's load ended before this request was sent."
        return {"response": None, "error": {"code": EXPIRED, "message": message}}
    if any(row["worker"] is None for row in rows):
        code = CANCELLED if run.row["state"] == "cancelled" else NOT_ANSWERED
        message = f"The run is {run.row['state']} and this request has no answer yet."
        return {"response": None, "error": {"code": code, "message": message}}
    return None


def _respond(row: Row, status_code: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status_code, "request_id": row["request_id"], "body": body}


def _write_chat(index: int, row: Row, name: NameToken) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": row["text"], "refusal": None}
    if row["reasoning"] is not None:
        message["reasoning"] = row["reasoning"]
    logprobs = None
    if row["logprobs_json"] is not None:
        most = json.loads(row["sampling_json"]).get("logprobs") or 0
        logprobs = {"content": [
            {**_describe(name(token), tokens[token]), "top_logprobs": [
                _describe(name(other), value) for other, value in _rank(tokens)[:most]
            ]}
            for token, tokens in _read_logprobs(row)
        ]}  # fmt: skip
    return {"index": index, "message": message, "logprobs": logprobs, **_write_end(row)}


def _write_text(index: int, row: Row, name: NameToken) -> dict[str, Any]:
    logprobs = None
    if row["logprobs_json"] is not None:
        chosen = [(name(token), tokens[token], tokens) for token, tokens in _read_logprobs(row)]
        logprobs = {
            "text_offset": [0, *itertools.accumulate(len(text) for text, _, _ in chosen[:-1])] if chosen else [],
            "token_logprobs": [value for _, value, _ in chosen],
            "tokens": [text for text, _, _ in chosen],
            "top_logprobs": [{name(token): value for token, value in _rank(tokens)} for _, _, tokens in chosen],
        }
    return {"index": index, "text": row["text"], "logprobs": logprobs, **_write_end(row)}


def _write_end(row: Row) -> dict[str, Any]:
    return {"finish_reason": row["finish_reason"], "stop_reason": row["stop_reason"]}


def _read_logprobs(row: Row) -> Iterator[tuple[str, dict[str, float]]]:
    """Return each generated token's id as text, with the log-probabilities at its position."""
    stored = json.loads(row["logprobs_json"])
    for token, tokens in zip(row["output_token_ids"], stored, strict=False):
        if tokens and str(token) in tokens:
            yield str(token), tokens


def _describe(name: str, logprob: float) -> dict[str, Any]:
    return {"token": name, "logprob": logprob, "bytes": list(name.encode("utf-8", "replace"))}


def _rank(tokens: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(tokens.items(), key=lambda item: -item[1])


def _count_tokens(rows: list[Row]) -> dict[str, Any]:
    """Count a line's tokens. Its choices share the prompt, so prompt tokens count once."""
    prompt, output = rows[0]["prompt_tokens"], [row["output_tokens"] for row in rows]
    if prompt is None or None in output:
        return {"prompt_tokens": prompt, "completion_tokens": None, "total_tokens": None}
    usage = {"prompt_tokens": prompt, "completion_tokens": sum(output), "total_tokens": prompt + sum(output)}
    cached = rows[0]["cached_tokens"]
    return usage if cached is None else {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
