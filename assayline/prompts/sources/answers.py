"""Rows that are stored answers of other runs. `store/answers.py` reads them, above this package.

A row's origin names its stored answers. It is always part of the prompt's metadata, so that SQL can join a verdict with
the judged answer.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from assayline.errors import PromptError
from assayline.prompts.columns import RowReader
from assayline.prompts.row import PromptParts, Row
from assayline.spec.prompts import AnswersSource, PairsSource


class AnswerRow(Row):
    """A row and the keys of its stored answers."""

    __slots__ = ("origin",)

    def __init__(self, row: Row, origin: dict[str, Any]) -> None:
        super().__init__(row)
        self.origin = origin


class AnswerReader(RowReader):
    """Read rows by a spec's columns and template, and add their origin to the metadata."""

    def read(self, row: Row) -> PromptParts:
        parts = super().read(row)
        return replace(parts, metadata={**parts.metadata, **self.read_origin(row)})

    def read_origin(self, row: Row) -> dict[str, Any]:
        return row.origin if isinstance(row, AnswerRow) else {}


def refuse_rows(source: AnswersSource | PairsSource) -> Iterator[NoReturn]:
    """Raise PromptError: these rows are an argument of `load_prompts`."""
    raise PromptError(f"Rows of a source of kind {source.kind} are in the database, which is not open here.")
