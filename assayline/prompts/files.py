"""Rows of text files, JSONL and CSV, one at a time.

A line that cannot be read is a row of its own, which says why, and the next line is read as if nothing was wrong. What
leaves no place to read on from is an error of the run: a CSV header without names, a quote that is never closed.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assayline.errors import PromptError
from assayline.prompts.values import explain_json

Row = dict[str, Any]

LONGEST_LINE_BYTES = 2**27
"""Of a line of JSON; of a field of CSV as many characters. The csv module refuses fields over 131,072 unless told, and
prompts are longer; without any limit, a quote that is never closed makes one field of the rest of the file."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that is there and is not of its file's format."""

    text: str
    """As the file has it; bytes that are no UTF-8 are written as \\xff."""
    message: str
    """File, line, what is wrong, and what was expected."""


def read_jsonl(path: Path) -> Iterator[Row | UnreadableRow]:
    """One object per line; blank lines are no rows. Raises PromptError for a file that cannot be read on."""
    for number, line in _numbered_lines(path):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            yield UnreadableRow(_show_bytes(line), f"{path}, line {number}: {_explain_bytes(error)}")
            continue
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = (
                f"not JSON ({explain_json(error)}). Expected one JSON object per line; the line begins {text[:60]!r}."
            )
        else:
            if isinstance(row, dict):
                yield row
                continue
            problem = (
                f"holds {_json_type(row)}, expected a JSON object with columns as keys. Of a file that is one JSON "
                "array, set prompts.source.format to json, or rename it to .json."
            )
        yield UnreadableRow(text, f"{path}, line {number}: {problem}")


def read_csv(path: Path) -> Iterator[Row | UnreadableRow]:
    """Rows by the names in the first line; an empty cell is null. Raises PromptError for a bad header, and for a quote
    that is still open at the end."""
    csv.field_size_limit(LONGEST_LINE_BYTES)
    lines = _CsvLines(path)
    reader = csv.reader(lines, strict=True)
    header: list[str] = []
    while True:
        first = reader.line_num + 1
        lines.begin_row()
        fields: list[str] = []
        problem = ""
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = (
                f"not CSV ({error}). Expected commas between fields, double quotes around those with commas, and "
                '"" for a quote.'
            )
        where = f"{path}, line {first}" if reader.line_num <= first else f"{path}, lines {first} to {reader.line_num}"
        problem = problem or lines.problem
        if problem and (lines.are_read or not header):
            raise PromptError(f"{where}: {problem}")
        if not header and not problem:
            header = _check_header(fields, path)
        elif fields and len(fields) != len(header):
            problem = (
                f"{len(fields)} fields, expected {len(header)} as in the header ({', '.join(header)}). Quote fields "
                "that hold commas or line breaks."
            )
        elif fields and not problem:
            yield {name: cell or None for name, cell in zip(header, fields, strict=True)}
        if problem:
            yield UnreadableRow(lines.text, f"{where}: {problem}")


class _CsvLines:
    """A file's lines for the csv module, which takes several for a row with line breaks in its fields."""

    def __init__(self, path: Path) -> None:
        self._lines = _numbered_lines(path)
        self._of_row: list[str] = []
        self.problem = ""
        """What is wrong with the bytes of the row's lines; empty if nothing is."""
        self.are_read = False
        """Whether a line was asked for after the last one: the row then has no end."""

    @property
    def text(self) -> str:
        """The row's lines."""
        return "".join(self._of_row)

    def begin_row(self) -> None:
        """Forgets the lines of the row before."""
        self._of_row, self.problem = [], ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            _, line = next(self._lines)
        except StopIteration:
            self.are_read = True
            raise
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self.problem = _explain_bytes(error)
            text = _show_bytes(line)
        self._of_row.append(text)
        return text


def _check_header(fields: list[str], path: Path) -> list[str]:
    unnamed_or_twice = sorted({name for name in fields if not name.strip() or fields.count(name) > 1})
    if unnamed_or_twice:
        raise PromptError(
            f"{path}, line 1: the header has no name, or the same name twice ({unnamed_or_twice}). "
            "Expected a first line of different column names."
        )
    return fields


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines from 1 with their ends, without a byte order mark."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE_BYTES), b""), start=1):
                if number == 1 and line.startswith(b"\x1f\x8b"):
                    raise PromptError(f"{path} is compressed (gzip). hint: decompress it first, with gunzip.")
                if len(line) == LONGEST_LINE_BYTES:
                    raise PromptError(
                        f"{path}, line {number}: longer than {LONGEST_LINE_BYTES} bytes. Expected one row per line."
                    )
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror or error}.") from None


def _explain_bytes(error: UnicodeDecodeError) -> str:
    return (
        f"not UTF-8 ({error.reason}, byte {error.start} of the line). Convert the file, for example with "
        "`iconv -t UTF-8`."
    )


def _show_bytes(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
