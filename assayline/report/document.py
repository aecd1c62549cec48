"""A report before it is HTML or Markdown: a headline, key figures, and sections of a few kinds of block.

All text in it is plain: whoever renders it escapes it. Numbers are shown, not computed (see `words.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from assayline.words import DASH, NUMBER_SHOWS, SPACE, show_name, show_note, show_range, show_text

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


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure: what it is, its value with unit, and what makes it readable (an interval, an n)."""

    label: str
    value: str
    detail: str = ""
    is_bad: bool = False

    @property
    def parts(self) -> tuple[str, str]:
        """The value's number and its unit."""
        number, _, unit = self.value.rpartition(SPACE)
        return (number, unit) if number else (unit, "")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or more."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A Vega-Lite specification, and in words what it shows."""

    title: str
    description: str
    spec: dict[str, Any]
    is_small: bool = False
    """Whether a third of the page's width is enough, where there is that much."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Text that a prompt set, a model or an engine wrote, of which `characters` is the whole length."""

    label: str
    text: str | None
    characters: int | None = None

    @property
    def note(self) -> str:
        """The mark of a text that was cut, or that is not there."""
        if self.text is None:
            return "none"
        if self.characters is not None and self.characters > len(self.text):
            return f"cut: the first {len(self.text):,} of {self.characters:,} characters"
        return "" if self.text else "empty"


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A picture or a sound of a prompt, as a small copy inside the page, or a note where there is none."""

    kind: Literal["image", "audio", "note"]
    words: str
    uri: str = ""
    """data: URI of the copy."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt and what became of it."""

    title: str
    facts: Sequence[tuple[str, str]]
    quotes: Sequence[Quote]
    exhibits: Sequence[Exhibit] = ()


Block = Paragraph | Table | Chart | Quote | Sample


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it. `key` is its anchor."""

    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """Adds a paragraph."""
        self.blocks.append(Paragraph(text, is_warning))

    def add(self, *blocks: Block) -> None:
        """Adds what is not a paragraph, in this order."""
        self.blocks.extend(blocks)


@dataclass(frozen=True, slots=True)
class Document:
    """The whole report."""

    title: str
    subtitle: str
    state: str
    headline: list[str]
    figures: list[Figure]
    sections: list[Section]
