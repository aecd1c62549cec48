"""Rows from files, from the spec and from the Hugging Face hub, one at a time.

Nothing is collected: a file of any size needs the memory of a line (JSONL, CSV) or of a few hundred rows (Parquet).
A damaged file is an error of the run, not of a row, since what follows the damage cannot be trusted.
"""

import csv
import glob
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assayline.errors import PromptError
from assayline.spec.prompts import FileSource, HubSource, InlineSource

Row = dict[str, Any]

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json-lines": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
PARQUET_BATCH_ROWS = 256
LONGEST_LINE_BYTES = 2**27
"""Of a line of JSON; of a field of CSV as many characters. The csv module refuses fields over 131,072 unless told, and
prompts are longer; without any limit, a quote that is never closed makes one field of the rest of the file."""


class FileRow(Row):
    """A row that knows the folder of its file, which paths in it are relative to."""

    __slots__ = ("folder",)

    def __init__(self, row: Row, folder: Path) -> None:
        super().__init__(row)
        self.folder = folder


def read_rows(source: FileSource | InlineSource | HubSource) -> Iterator[Row]:
    """Yields the source's rows in its order. Raises PromptError, saying where, for what cannot be read."""
    match source:
        case InlineSource(rows=rows):
            yield from rows
        case HubSource():
            yield from _read_hub(source)
        case FileSource(path=path, format=given):
            for file in find_files(path):
                folder = file.parent.absolute()
                for row in READERS[_format_of(file) if given == "auto" else given](file):
                    yield FileRow(row, folder)


def find_files(pattern: str) -> list[Path]:
    """The file of that name, or the glob's files sorted by name. Raises PromptError where there is none."""
    try:
        path = Path(pattern).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a ~user that is not there
        raise PromptError(f"Prompt file {pattern!r:.200} cannot be looked for: {error!s:.200}. Give a path.") from None
    if is_folder:
        raise PromptError(f"Prompt file {pattern} is a folder. Give a file, or a glob such as {pattern}/*.jsonl.")
    if is_there:
        return [path]
    if not glob.has_magic(pattern):
        raise PromptError(
            f"Prompt file {pattern} does not exist (working folder: {Path.cwd()}). Give the path of a "
            ".jsonl, .csv or .parquet file, or a glob."
        )
    names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute patterns
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise PromptError(
            f"No file matches {pattern} (working folder: {Path.cwd()}). Check the glob's folder and ending."
        )
    return files


def _format_of(path: Path) -> str:
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise PromptError(
            f"Prompt file {path} has the ending {path.suffix or '(none)'}, expected one of "
            f"{', '.join(FORMATS)}. Rename it, or set prompts.source.format to jsonl, csv or "
            "parquet."
        ) from None


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in _numbered_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptError(
                f"{path}, line {number}: not JSON ({error}). Expected one JSON object per line; the "
                f"line begins {line[:60]!r}."
            ) from None
        if not isinstance(row, dict):
            raise PromptError(
                f"{path}, line {number}: holds {_json_type(row)}, expected a JSON object with columns "
                "as keys. A file that is one JSON array becomes lines by `jq -c '.[]'`."
            )
        yield row


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_LINE_BYTES)
    reader = csv.reader((line for _, line in _numbered_lines(path)), strict=True)
    header: list[str] = []
    try:
        for fields in reader:
            if not header:
                header = _check_header(fields, path)
            elif fields:
                if len(fields) != len(header):
                    raise PromptError(
                        f"{path}, line {reader.line_num}: {len(fields)} fields, expected {len(header)} "
                        f"as in the header ({', '.join(header)}). Quote fields that hold commas or "
                        "line breaks."
                    )
                yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise PromptError(
            f"{path}, line {reader.line_num}: not CSV ({error}). Expected commas between fields, "
            'double quotes around those with commas, and "" for a quote.'
        ) from None


def _check_header(fields: list[str], path: Path) -> list[str]:
    unnamed_or_twice = sorted({name for name in fields if not name.strip() or fields.count(name) > 1})
    if unnamed_or_twice:
        raise PromptError(
            f"{path}, line 1: the header has no name, or the same name twice ({unnamed_or_twice}). "
            "Expected a first line of different column names."
        )
    return fields


def _read_parquet(path: Path) -> Iterator[Row]:
    from pyarrow import parquet

    rows_read = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_BATCH_ROWS):
                rows = batch.to_pylist()
                yield from rows
                rows_read += len(rows)
    except Exception as error:  # a foreign file: besides Arrow's errors there are those of dates, time zones, decimals
        raise PromptError(
            f"{path}, after row {rows_read}: not readable as Parquet ({str(error).strip()}). The file is "
            "damaged, no Parquet file, or holds values that Python has no like of, such as a date in the "
            "year 100,000: write it again."
        ) from None


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "parquet": _read_parquet,
}


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines from 1 with their ends, decoded one by one so that a bad byte has a line number."""
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE_BYTES), b""), start=1):
                if len(line) == LONGEST_LINE_BYTES:
                    raise PromptError(
                        f"{path}, line {number}: longer than {LONGEST_LINE_BYTES} bytes. Expected one row per line."
                    )
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{path}, line {number}: not UTF-8 ({error.reason}, byte {error.start} of the line). Convert "
            "the file, for example with `iconv -t UTF-8`."
        ) from None
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror or error}.") from None


def _read_hub(source: HubSource) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise PromptError(
            f"Prompt set {source.dataset!r} is on the Hugging Face hub, which needs the package "
            "`datasets`: pip install 'assayline[hub]'"
        ) from None
    try:
        rows = datasets.load_dataset(
            source.dataset, name=source.subset, split=source.split, revision=source.revision, streaming=True
        )
        yield from (dict(row) for row in rows)
    except Exception as error:  # datasets raises a dozen unrelated types, network errors among them
        raise PromptError(
            f"Hub dataset {source.dataset!r} (subset {source.subset}, split {source.split}, revision "
            f"{source.revision}) cannot be read: {type(error).__name__}: {error} Check the names, and "
            "HF_TOKEN for gated ones."
        ) from None


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
