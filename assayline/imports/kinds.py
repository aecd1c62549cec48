"""Kinds of result files: found by their content, so that a folder may mix them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assayline.errors import PromptError
from assayline.imports import KINDS

MARKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "guidellm": (("benchmarks", "metadata"),),
    "eee": (("schema_version", "eval_library"),),
    "inspect": (("eval", "version"), ("eval", "samples")),
    "lm-eval": (("results", "configs"),),
    "inference-perf": (("load_summary", "successes"),),
    "vllm-bench": (
        ("model_id", "date"),
        ("elapsed_time", "requests_per_second"),
        ("avg_latency", "percentiles"),
    ),
    "values": (("date", "name", "value"),),
    "openai-batch": (("custom_id",),),
}
"""Keys of a document, or of the first one in a list, by kind."""
SUFFIXES = (".json", ".jsonl", ".eval", ".csv", ".gz")
GZIP = b"\x1f\x8b"
SWEEP = "summary.json"
"""File of a sweep that repeats its `run=N.json`."""


def find_files(paths: list[Path], kind: str | None, say: Callable[[str], object]) -> Iterator[tuple[str, list[Path]]]:
    """Yield the files of each run or report with their kind (default: found). `say` receives a sentence on other files.

    The files of a batch are one run, those of a folder together. Raises PromptError for a path without any.
    """
    batches: dict[Path, list[Path]] = {}
    others = list[Path]()
    for path in paths:
        found = 0
        for file in list_files(path):
            is_named = not path.is_dir()
            named = kind if kind and is_named else None if file.suffix == ".gz" and not is_named else find_kind(file)
            if named == "openai-batch" and kind in (None, named):
                batches.setdefault(Path() if is_named else file.parent, []).append(file)
            elif named is not None and kind in (None, named):
                yield named, [file]
            else:
                others += [] if _is_of_another(file) else [file]
                continue
            found += 1
        if not found:
            known = KINDS[kind] if kind else "; ".join(f"{one}: {files}" for one, files in KINDS.items())
            what = f"result file of {kind}" if kind else "result file of a known kind"
            raise PromptError(f"{path} has no {what}. hint: pass {known}.")
    for files in batches.values():
        yield "openai-batch", files
    if others and not kind:
        shown = ", ".join(file.name for file in others[:3]) + ", …" * (len(others) > 3)
        say(f"Left out, as of no known kind: {shown}.")


def find_kind(path: Path) -> str | None:
    """Return the kind of a file by its content; None for another file, and for samples next to a document."""
    if not path.stat().st_size:
        raise PromptError(
            f"{path} is empty. Nothing of files after it was stored. hint: delete it, or pass the complete file."
        )
    try:
        with path.open("rb") as file:
            if file.read(2) == GZIP:
                raise ValueError("it is compressed. hint: decompress it, as with gunzip")
            file.seek(0)
            if path.suffix == ".eval":
                return "inspect"
            if path.suffix == ".csv":
                keys: Any = file.readline().decode("utf-8-sig").strip().replace('"', "").split(",")
            else:
                keys = json.loads(file.readline() if path.suffix == ".jsonl" else file.read())
    except (ValueError, RecursionError) as error:
        what, _, hint = str(error).partition(". hint: ")
        raise PromptError(
            f"{path} cannot be imported, as it cannot be read: {what}. Nothing of it, or of files after it, was "
            f"stored. hint: {hint or 'pass complete files'}."
        ) from None
    first = keys[0] if keys and isinstance(keys, list) and isinstance(keys[0], dict) else keys
    if not isinstance(first, dict | list):
        return None
    return next(
        (kind for kind, marks in MARKS.items() if any(all(key in first for key in mark) for mark in marks)), None
    )


def list_files(path: Path) -> list[Path]:
    """List a file, or the files below a folder, without a summary that repeats its runs."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    return [file for file in found if file.name != SWEEP or not list(file.parent.glob("run=*.json"))]


def _is_of_another(file: Path) -> bool:
    """Return True for samples, which a document next to them names, and for the second form of vLLM's results."""
    return "samples" in file.name or file.name.endswith(".pytorch.json")
