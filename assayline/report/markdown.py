"""Render a report as Markdown: charts as images or as descriptions."""

from collections.abc import Callable, Iterable
from operator import attrgetter

from assayline.report.document import Block, Chart, Column, Document, Paragraph, Quote, Sample, Section, Table, tabulate
from assayline.words import as_block, as_code, escape_markdown

FIELDS = (("figure", "label"), ("value", "value"), ("detail", "detail"))
FIGURES = tuple(Column(name, attrgetter(key)) for name, key in FIELDS)

SHORT_CHARACTERS = 100
"""Maximum length of text that is shown on one line."""
Draw = Callable[[Chart], str | None]
"""Renders a chart to an image URI, or returns None for its description alone."""


def render_markdown(document: Document, draw: Draw = lambda _: None) -> str:
    """Render the page. Text of prompts, answers and errors is in code spans, or escaped."""
    parts = [
        f"# {escape_markdown(document.title)}",
        escape_markdown(f"{document.state} · {document.subtitle}"),
        "\n".join(f"**{escape_markdown(sentence)}**  " for sentence in document.headline),
        render_table(tabulate("Key figures", FIGURES, document.figures)),
        *(_render_section(section, draw) for section in document.sections),
    ]
    return "\n\n".join(parts) + "\n"


def _render_section(section: Section, draw: Draw) -> str:
    blocks = (_render_block(block, draw) for block in section.blocks)
    return "\n\n".join([f"## {escape_markdown(section.title)}", *blocks])


def _render_block(block: Block, draw: Draw) -> str:
    match block:
        case Paragraph(text=text, is_warning=is_warning):
            return f"> {escape_markdown(text)}" if is_warning else escape_markdown(text)
        case Table():
            return f"**{escape_markdown(block.caption)}**\n\n{render_table(block)}"
        case Chart(title=title, description=description):
            words = f"*{escape_markdown(title)}*: {escape_markdown(description)}"
            return f"![{escape_markdown(title)}]({uri})\n\n{words}" if (uri := draw(block)) else words
        case Quote():
            return _render_quote(block)
        case Sample(title=title, facts=facts, quotes=quotes, exhibits=exhibits):
            lines = [f"- {escape_markdown(name)}: {as_code(value)}" for name, value in facts]
            lines += [f"- {escape_markdown(one.words)}" for one in exhibits]
            lines += [_render_short(quote) if _is_short(quote) else f"\n{_render_quote(quote)}\n" for quote in quotes]
            return "\n".join([f"### {escape_markdown(title)}\n", *lines])


def render_table(table: Table) -> str:
    """Render a table without its caption, with its notes below: the only place that builds Markdown cells."""
    columns = list(enumerate(table.columns))
    shown = [i for i, column in columns if not column.is_note]
    aligned = ("---:" if table.columns[i].is_number else "---" for i in shown)
    headers = _join(escape_markdown(table.columns[i].header) for i in shown)
    lines = [headers, _join(aligned), *(_join(escape_markdown(row[i]) for i in shown) for row in table.cells)]
    name = next((i for i, column in columns if column.style == "name"), 0)
    notes = [(row[name], row[i]) for row in table.cells for i, column in columns if column.is_note and row[i]]
    told = [f"- {escape_markdown(note if note.startswith(of) else f'{of}: {note}')}" for of, note in notes]
    return "\n".join([*lines, *(["", *told] if told else [])])


def _join(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _is_short(quote: Quote) -> bool:
    text = quote.text or ""
    return len(text) <= SHORT_CHARACTERS and " ".join(text.split()) == text and not (text and quote.note)


def _render_short(quote: Quote) -> str:
    return f"- {escape_markdown(quote.label)}: {as_code(quote.text) if quote.text else quote.note}"


def _render_quote(quote: Quote) -> str:
    label = f"{escape_markdown(quote.label)}:" if not quote.note else f"{escape_markdown(quote.label)} ({quote.note}):"
    return f"{label}\n\n{as_block(quote.text)}" if quote.text else label
