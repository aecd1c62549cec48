"""A table before it is HTML, Markdown or a terminal's: columns say once where their cells come from.

Cells are plain text: whoever renders them escapes them, and nobody else does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from assayline.words import NUMBER_SHOWS, show_range, show_text

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
    """A table of these rows."""
    return Table(caption, columns, [[column.cell(row) for column in columns] for row in rows], is_folded)
