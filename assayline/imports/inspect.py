"""Logs of Inspect: `.eval`, a zip of JSON documents that is read sample by sample, and `.json`.

Epochs are repeats of a prompt. Verdicts C, P, I and N count 1, 0.5, 0 and 0, as in Inspect.
"""

import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from assayline.imports.rows import (
    Imported,
    RowMaker,
    Rows,
    Total,
    describe_scorer,
    join_text,
    read_json,
    read_number,
    read_time,
    say_missing,
    score,
)
from assayline.imports.totals import SHARE, make_score
from assayline.prompts.targets import write_target
from assayline.records import Prompt

TOOL = "inspect"
VERDICTS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
FINISH_REASONS = {"stop": "stop", "max_tokens": "length", "model_length": "length"}
ZSTANDARD = 93
"""Compression of a zip's member that the standard library of Python 3.11 cannot read."""
MOST_BYTES = 2**28
"""Maximum size of a member, which is read into memory."""


def read_log(path: Path) -> Iterator[Imported]:
    """Yield the run of a log."""
    header = read_json(path) if path.suffix == ".json" else next(_read_members(path, "header.json"), None)
    if header is None or "eval" not in header:
        raise ValueError(f"{path.name} is not a finished log of Inspect")
    about, stats, results = header["eval"], header.get("stats") or {}, header.get("results") or {}
    samples_wanted = results.get("total_samples") or _count_asked(about)
    status, completed = header.get("status", "success"), results.get("completed_samples")
    ended = "" if status == "success" else f"its status is {status}"
    is_text, version = path.suffix == ".json", about.get("packages", {}).get("inspect_ai")
    samples = iter(header.get("samples") or ()) if is_text else _read_members(path, "samples/")
    has_rows = bool(header.get("samples")) if is_text else _has_samples(path)
    scorers: dict[str, dict[str, Any]] = {}
    generation = {name: value for name, value in about.get("model_generate_config", {}).items() if value is not None}
    yield Imported(
        tool=TOOL,
        version=version,
        model=about["model"],
        prompt_set=about["task"],
        files=[path],
        rows=_read_rows(samples, scorers, version) if has_rows else (),
        totals=list(_read_scores(results)),
        ended=ended or ("" if has_rows else say_missing(completed, samples_wanted, "sample")),
        started_s=read_time(stats.get("started_at") or about["created"]),
        finished_s=read_time(stats.get("completed_at") or None),
        counts={"requests": samples_wanted},
        settings={name: about.get(name) for name in ("task_version", "task_args")}
        | {"samples": samples_wanted, **generation},
        scorers=scorers,
    )


def _has_samples(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith("samples/") for name in archive.namelist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path.name}: {error}") from None


def _read_scores(results: dict[str, Any]) -> Iterator[Total]:
    for one in results.get("scores") or ():
        n = one.get("scored_samples") or results.get("completed_samples")
        for name, metric in one["metrics"].items():
            if (value := read_number(metric["value"])) is None:
                continue
            if name == "stderr":
                yield Total("standard_error", "accuracy", value, SHARE, n, one["name"])
            elif name in ("accuracy", "mean"):
                yield make_score(one["name"], name, value, n)
            else:
                yield Total(name, "mean", value, "", n, one["name"])


def _count_asked(about: dict[str, Any]) -> int | None:
    """Return the number of samples that were asked for, which a log without results names by their ids."""
    sample_ids = (about.get("dataset") or {}).get("sample_ids")
    return None if sample_ids is None else len(sample_ids) * ((about.get("config") or {}).get("epochs") or 1)


def _read_members(path: Path, prefix: str) -> Iterator[Any]:
    """Yield the documents of a zip whose names begin with `prefix`, in the order of the file."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for member in archive.NameToInfo.values():  # the last of each name
                if member.filename.startswith(prefix):
                    if member.file_size > MOST_BYTES:
                        raise ValueError(
                            f"{member.filename} has {member.file_size:,} bytes, at most {MOST_BYTES:,} fit"
                        )
                    is_known = member.compress_type != ZSTANDARD
                    yield json.loads(archive.read(member) if is_known else _decompress(file, member))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path.name}: {error}") from None


def _decompress(file: BinaryIO, member: zipfile.ZipInfo) -> bytes:
    file.seek(member.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    file.seek(name_bytes + extra_bytes, 1)
    content = pa.py_buffer(file.read(member.compress_size))
    return bytes(pa.input_stream(content, compression="zstd").read(member.file_size))


def _read_rows(samples: Iterator[dict[str, Any]], scorers: dict[str, dict[str, Any]], version: str | None) -> Rows:
    rows = RowMaker(TOOL)
    for sample in samples:
        if sample["id"] not in rows.known:
            yield _make_prompt(rows, sample)
        prompt, repeat_index = rows.known[sample["id"]], sample["epoch"] - 1
        yield from rows.answer(prompt, repeat_index, **_read_answer(sample))
        for scorer, given in (sample.get("scores") or {}).items():
            values = given["value"] if isinstance(given["value"], dict) else {"": given["value"]}
            for part, value in values.items():
                number = VERDICTS.get(value, value) if isinstance(value, str) else value
                title = f"{scorer}.{part}" if part else scorer
                scorers.setdefault(title, describe_scorer(TOOL, version, title))
                texts = {"extracted": given.get("answer"), "explanation": given.get("explanation") or str(value)}
                yield score(title, prompt, number, repeat_index, **texts)


def _make_prompt(rows: RowMaker, sample: dict[str, Any]) -> Prompt:
    given, target = sample["input"], sample["target"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else [
        {"role": message["role"], "content": message["content"]} for message in given
    ]  # fmt: skip
    metadata = {**(sample.get("metadata") or {}), **({"choices": sample["choices"]} if sample.get("choices") else {})}
    name = sample["id"]
    return rows.prompt(messages, write_target(target), name=name, source_id=str(name), metadata=metadata)


def _read_answer(sample: dict[str, Any]) -> dict[str, Any]:
    error, output = sample.get("error"), sample.get("output")
    if error or not output:
        message = error["message"] if error else "The sample ended before the model was called."
        return {"error_kind": "request_failed", "error_message": message}
    usage = output.get("usage") or {}
    choice: dict[str, Any] = next(iter(output.get("choices") or []), {})
    content = choice.get("message", {}).get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    reasoning = [part["reasoning"] for part in parts if part["type"] == "reasoning"]
    return {
        "text": join_text(parts),
        "reasoning": "\n".join(reasoning) or None,
        "finish_reason": FINISH_REASONS.get(choice.get("stop_reason", "")),
        "prompt_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": usage.get("input_tokens_cache_read"),
    }
