"""A table before it is HTML, Markdown or a terminal's: columns say once where their cells come from.

Cells are plain text: whoever renders them escapes them, and nobody else does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from assayline.words import DASH, NUMBER_SHOWS, show_name, show_note, show_range, show_text

Key = str | int
"""Of a value in a row: the name of a column, or a place."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, where the value is in a row, and how it is shown."""

    header: str
    value: Key | tuple[Key, Key] | Callable[[Any], Any]
    """A key of the row; the keys of an interval's two ends; or a function of the row."""
    show: Callable[[Any], str] = show_text

    @property
    def is_number(self) -> bool:
        """Whether it is aligned right, as what shows numbers is."""
        return self.show in NUMBER_SHOWS

    @property
    def is_note(self) -> bool:
        """Whether a page shows it below its row."""
        return self.show is show_note

    @property
    def style(self) -> str:
        """The class of its cells on a page; empty for text that wraps."""
        return "number" if self.is_number else "name" if self.show is show_name else ""

    def cell(self, row: Any) -> str:
        """The text for a row."""
        match self.value:
            case str() | int():
                return self.show(row[self.value])
            case (low, high):
                return show_range(self.show(row[low]), self.show(row[high]))
            case _:
                return self.show(self.value(row))


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and the text of every cell. The first column names its row."""

    caption: str
    columns: Sequence[Column]
    cells: Sequence[Sequence[str]]
    is_folded: bool = False
    """Whether it is shown only when asked for."""


def tabulate(caption: str, columns: Sequence[Column], rows: Iterable[Any], is_folded: bool = False) -> Table:
    """A table of these rows, without columns that are empty in all of them. The first column always stays."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    kept = [i for i in range(len(columns)) if not i or not cells or any(row[i] not in ("", DASH) for row in cells)]
    return Table(caption, [columns[i] for i in kept], [[row[i] for i in kept] for row in cells], is_folded)
