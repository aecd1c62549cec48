"""Rows of a file that is one JSON array, one at a time: such files have hundreds of megabytes.

An object of the array is decoded as soon as all of it is read. Where the array is broken there is no place to read on
from, so that is an error of the run; an element that is no object is one bad row.
"""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.errors import PromptError
from assayline.prompts.files import LONGEST_LINE_BYTES, Row, UnreadableRow

CHUNK_BYTES = 2**20
CUT_CHARACTERS = 3
"""With fewer behind it, a number may not be whole: 1e+5 begins with 1."""
_BLANKS = re.compile(r"[ \t\n\r]*")


def read_json_array(path: Path) -> Iterator[Row | UnreadableRow]:
    """Yields the array's objects. Raises PromptError for a file that is no array, or cannot be read on."""
    try:
        with open(path, "rb") as file:
            reader = _ArrayReader(path, iter(lambda: file.read(CHUNK_BYTES), b""))
            yield from reader.read()
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror or error}.") from None


class _ArrayReader:
    """Text that is read and not decoded yet, and how far it is decoded."""

    def __init__(self, path: Path, chunks: Iterator[bytes]) -> None:
        self._path = path
        self._chunks = chunks
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0
        self._is_ended = False
        self._number = 0

    def read(self) -> Iterator[Row | UnreadableRow]:
        if self._next_sign() != "[":
            raise PromptError(
                f"{self._path} begins with {self._text[self._place : self._place + 20]!r}, expected a JSON array. "
                "Where it has an object per line, set prompts.source.format to jsonl, or rename it to .jsonl."
            )
        self._place += 1
        if self._next_sign() == "]":
            return
        while True:
            self._number += 1
            self._next_sign()
            row, text = self._decode()
            if isinstance(row, dict):
                yield row
            else:
                kind = type(row).__name__
                yield UnreadableRow(text, f"{self._where}: it is {kind}, expected a JSON object with columns as keys.")
            sign = self._next_sign()
            if sign not in ("]", ","):
                raise PromptError(f"{self._where}: followed by {sign!r}, expected a comma or the array's end.")
            if sign == "]":
                return
            self._place += 1

    @property
    def _where(self) -> str:
        return f"{self._path}, element {self._number}"

    def _decode(self) -> tuple[Any, str]:
        """The value that begins here, and its text. More is read for as long as it is not whole."""
        decoder = json.JSONDecoder()
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                is_too_long = len(self._text) - self._place > LONGEST_LINE_BYTES
                if is_too_long or not self._grow():
                    raise PromptError(f"{self._where}: not JSON ({error}). What follows cannot be read.") from None
                continue
            if len(self._text) - end < CUT_CHARACTERS and self._grow():
                continue
            text, self._place = self._text[self._place : end], end
            return value, text

    def _next_sign(self) -> str:
        """The next character that is not blank; empty at the file's end."""
        while True:
            found = _BLANKS.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text) or not self._grow():
                return self._text[self._place : self._place + 1]

    def _grow(self) -> bool:
        """Reads as much again as there is, at least a chunk, so that a long element is not tried too often."""
        if self._is_ended:
            return False
        parts = [self._text[self._place :]]
        wanted, self._place = len(parts[0]), 0
        try:
            while True:
                chunk = next(self._chunks, b"")
                self._is_ended = not chunk
                parts.append(self._decoder.decode(chunk, final=self._is_ended))
                wanted -= len(chunk)
                if self._is_ended or wanted <= 0:
                    break
        except UnicodeDecodeError as error:
            raise PromptError(
                f"{self._path}: not UTF-8 ({error.reason}, after element {self._number}). Convert the file, for "
                "example with `iconv -t UTF-8`."
            ) from None
        self._text = "".join(parts)
        return True
