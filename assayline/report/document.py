"""A report before rendering: a headline, key figures, and sections of blocks.

All text is plain; renderers escape it. Numbers are formatted, not computed (see `words.py`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from assayline.digests import digest_json
from assayline.words import DASH, NUMBER_SHOWS, SPACE, show_name, show_note, show_range, show_text

Key = str | int
"""Key of a value in a row: a column name or an index."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, the location of the value in a row, and its format."""

    header: str
    value: Key | tuple[Key, Key] | Callable[[Any], Any]
    """A key of the row; the keys of both ends of an interval; or a function of the row."""
    show: Callable[[Any], str] = show_text
    is_wide: bool = False
    """True for a column that a terminal has no room for."""
    is_text: bool = False
    """True for texts of models, prompts and engines, which a report may leave out."""

    @property
    def is_number(self) -> bool:
        """Return True for numbers, which are right-aligned."""
        return self.show in NUMBER_SHOWS

    @property
    def is_note(self) -> bool:
        """Return True for a note, which a page shows below its row."""
        return self.show is show_note

    @property
    def style(self) -> str:
        """Return the CSS class of the cells; empty for text that wraps."""
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
    """Columns, and the text of every cell. The first column names its row."""

    caption: str
    columns: Sequence[Column]
    cells: Sequence[Sequence[str]]
    is_folded: bool = False
    """True for a table that is collapsed at first."""


def tabulate(caption: str, columns: Sequence[Column], rows: Iterable[Any], is_folded: bool = False) -> Table:
    """Build a table, without columns that are empty in all rows. The first column always stays."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    kept = [i for i in range(len(columns)) if not i or not cells or any(row[i] not in ("", DASH) for row in cells)]
    return Table(caption, [columns[i] for i in kept], [[row[i] for i in kept] for row in cells], is_folded)


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure: label, value with unit, and a detail (an interval, an n)."""

    label: str
    value: str
    detail: str = ""
    is_bad: bool = False

    @property
    def parts(self) -> tuple[str, str]:
        """Split the value into number and unit."""
        number, _, unit = self.value.rpartition(SPACE)
        return (number, unit) if number else (unit, "")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One or more sentences."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A Vega-Lite specification, with a title and a description."""

    title: str
    description: str
    spec: dict[str, Any]
    is_small: bool = False
    """True if a third of a wide page is enough."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Text written by a prompt set, a model or an engine; `characters` is its full length."""

    label: str
    text: str | None
    characters: int | None = None

    @property
    def note(self) -> str:
        """Return a note for text that was cut, or that is missing."""
        if self.text is None:
            return "none"
        if self.characters is not None and self.characters > len(self.text):
            return f"truncated: first {len(self.text):,} of {self.characters:,} characters"
        return "" if self.text else "empty"


TEXT_CHARACTERS = 1_500
"""Characters of a quoted text that a page has; one answer may be megabytes."""


def cut_quote(label: str, text: str | None) -> Quote:
    """Quote the beginning of a text."""
    return Quote(label, text and text[:TEXT_CHARACTERS], len(text or ""))


@dataclass(frozen=True, slots=True)
class Exhibit:
    """An image or audio of a prompt, as a small copy inside the page, or a note without one."""

    kind: Literal["image", "audio", "note"]
    words: str
    uri: str = ""
    """data: URI of the copy."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt with its answer."""

    title: str
    facts: Sequence[tuple[str, str]]
    quotes: Sequence[Quote]
    exhibits: Sequence[Exhibit] = ()


Block = Paragraph | Table | Chart | Quote | Sample
Part = Block | str | None | Iterable["Part"]
"""The content of a section: a block, a paragraph's text, or several; None and empty ones are left out."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with blocks; `key` is its anchor."""

    key: str
    title: str
    blocks: list[Block]


def make_section(key: str, title: str, *parts: Part) -> Section | None:
    """Build a section of parts in this order; None if all are empty, as a section without data is not shown."""
    blocks = list(_list_blocks(parts))
    return Section(key, title, blocks) if blocks else None


def _list_blocks(parts: Iterable[Part]) -> Iterator[Block]:
    for part in parts:
        if isinstance(part, str):
            yield from [Paragraph(part)] if part else []
        elif isinstance(part, Table):
            yield from [part] if part.cells else []
        elif isinstance(part, Paragraph | Chart | Quote | Sample):
            yield part
        elif part is not None:
            yield from _list_blocks(part)


def warn(text: str) -> list[Paragraph]:
    """Return a warning; none for an empty text."""
    return [Paragraph(text, is_warning=True)] if text else []


@dataclass(frozen=True, slots=True)
class Document:
    """A complete report."""

    title: str
    subtitle: str
    state: str
    headline: list[str]
    figures: list[Figure]
    sections: list[Section]
    folder: str = ""
    """Folder of its files, relative to the data folder."""

    @classmethod
    def of(
        cls,
        title: str,
        subtitle: str,
        state: str,
        headline: Iterable[str],
        figures: Iterable[Figure | None],
        sections: Iterable[Section | None],
        folder: str = "",
    ) -> "Document":
        """Build a report without sentences, figures and sections that are empty."""
        shown = [one for one in figures if one is not None and one.value != DASH]
        return cls(title, subtitle, state, [*filter(None, headline)], shown, [*filter(None, sections)], folder)


def name_folder(name: str, identity: Sequence[str], *, is_plain: bool) -> str:
    """Return the name if it is unique and valid as a folder name; else a cleaned name with a digest of `identity`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    return plain if is_plain and plain == name else f"{plain}-{digest_json(list(identity))[:8]}".lstrip("-")


PATH = re.compile(r"(?<![\w./:<-])/(?:[\w.@+=~-]+/)+[\w.@+=~-]*\w")
URL_HOST = re.compile(r"(\bhttps?://)[^/\s\"'<>]+")
OWN_TEXTS = ("Spec", "Message", "Error")
"""Labels of quotes that no prompt set and no model wrote."""
HOST_FACTS = ("host", "SLURM_JOB_NODELIST", "NODE_NAME")
"""First cells of rows that name machines."""


def hide_places(document: Document) -> Document:
    """Return a report to share: of each absolute path the last parts that tell it from others, and no names of hosts.

    Prompts and answers stay as they are.
    """
    found: set[str] = set()

    def look(text: str) -> str:
        found.update(PATH.findall(text))
        return text

    _map_texts(document, look)
    short = {path: _shorten(path, found) for path in found}
    hidden: Document = _map_texts(
        document, lambda text: URL_HOST.sub(r"\1…", PATH.sub(lambda path: short[path[0]], text))
    )
    return hidden


def _shorten(path: str, others: set[str]) -> str:
    parts = path.split("/")
    ends = ("/".join(parts[-size:]) for size in range(1, len(parts)))
    return next((end for end in ends if not any(other != path and other.endswith(f"/{end}") for other in others)), path)


def _map_texts(part: Any, change: Callable[[str], str]) -> Any:
    """Return a part of a document with changed texts, except for those of prompts and answers."""
    match part:
        case str():
            return change(part)
        case Column():
            return part
        case Quote() if part.label not in OWN_TEXTS:
            return part
        case Table():
            rows = [row for row in part.cells if not row or row[0] not in HOST_FACTS]
            return replace(part, caption=change(part.caption), cells=_map_texts(rows, change))
        case dict():
            return {name: value if name == "$schema" else _map_texts(value, change) for name, value in part.items()}
        case list() | tuple():
            return [_map_texts(value, change) for value in part]
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{one.name: _map_texts(getattr(part, one.name), change) for one in fields(part)})
    return part


def leave_out_texts(document: Document) -> Document:
    """Return a report without texts of prompts, answers, errors and specs."""
    kept: list[Section] = []
    for one in document.sections:
        blocks = [_leave_out(block) for block in one.blocks if not isinstance(block, Quote | Sample)]
        kept += [replace(one, blocks=blocks)] if blocks else []
    return replace(document, sections=kept)


def _leave_out(block: Block) -> Block:
    if not isinstance(block, Table):
        return block
    places = [place for place, column in enumerate(block.columns) if not column.is_text]
    cells = [[row[place] for place in places] for row in block.cells]
    return replace(block, columns=[block.columns[place] for place in places], cells=cells)
