"""A report as Markdown: the same blocks, and in place of a chart what it shows in words."""

from collections.abc import Iterable
from operator import attrgetter

from assayline.report.document import Block, Chart, Document, Paragraph, Quote, Sample, Section
from assayline.report.table import Column, Table, tabulate
from assayline.words import as_block, as_code, escape_markdown

FIGURES = (Column("", attrgetter("label")), Column("value", attrgetter("value")), Column("", attrgetter("detail")))


def render_markdown(document: Document) -> str:
    """The page. Text of prompts, answers and errors is in code, or escaped."""
    parts = [
        f"# {escape_markdown(document.title)}",
        escape_markdown(f"{document.state} · {document.subtitle}"),
        "\n".join(f"**{escape_markdown(sentence)}**  " for sentence in document.headline),
        render_table(tabulate("Key figures", FIGURES, document.figures)),
        *(_render_section(section) for section in document.sections),
    ]
    return "\n\n".join(parts) + "\n"


def _render_section(section: Section) -> str:
    return "\n\n".join([f"## {escape_markdown(section.title)}", *(_render_block(block) for block in section.blocks)])


def _render_block(block: Block) -> str:
    match block:
        case Paragraph(text=text, is_warning=is_warning):
            return f"> {escape_markdown(text)}" if is_warning else escape_markdown(text)
        case Table():
            return f"**{escape_markdown(block.caption)}**\n\n{render_table(block)}"
        case Chart(title=title, description=description):
            return f"*{escape_markdown(title)}*, a chart in the HTML page: {escape_markdown(description)}"
        case Quote():
            return _render_quote(block)
        case Sample(title=title, facts=facts, quotes=quotes, exhibits=exhibits):
            lines = [f"{escape_markdown(name)}: {as_code(value)}" for name, value in facts]
            listed = "\n".join(f"- {line}" for line in [*lines, *(escape_markdown(one.words) for one in exhibits)])
            return "\n\n".join([f"### {escape_markdown(title)}", listed, *map(_render_quote, quotes)])


def render_table(table: Table) -> str:
    """The table without its caption: the one place where Markdown's cells are made."""
    aligned = ("---:" if column.is_number else "---" for column in table.columns)
    headers = _join(escape_markdown(column.header) for column in table.columns)
    return "\n".join([headers, _join(aligned), *(_join(map(escape_markdown, row)) for row in table.cells)])


def _join(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _render_quote(quote: Quote) -> str:
    label = f"{escape_markdown(quote.label)}:" if not quote.note else f"{escape_markdown(quote.label)} ({quote.note}):"
    return f"{label}\n\n{as_block(quote.text)}" if quote.text else label
