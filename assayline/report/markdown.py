"""A report as Markdown: the same blocks, and in place of a chart what it shows in words."""

from collections.abc import Sequence

from assayline.report.document import Block, Chart, Document, Paragraph, Quote, Sample, Section, Table
from assayline.report.words import as_block, as_code, escape_markdown


def render_markdown(document: Document) -> str:
    """The page. Text of prompts, answers and errors is in code, or escaped."""
    figures = Table(
        "Key figures", ("", "value", ""), [(figure.label, figure.value, figure.detail) for figure in document.figures]
    )
    parts = [
        f"# {escape_markdown(document.title)}",
        escape_markdown(f"{document.state} · {document.subtitle}"),
        "\n".join(f"**{escape_markdown(sentence)}**  " for sentence in document.headline),
        _render_table(figures, with_caption=False),
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
            return _render_table(block)
        case Chart(title=title, description=description):
            return f"*{escape_markdown(title)}*, a chart in the HTML page: {escape_markdown(description)}"
        case Quote():
            return _render_quote(block)
        case Sample(title=title, facts=facts, quotes=quotes):
            listed = "\n".join(f"- {escape_markdown(name)}: {as_code(value)}" for name, value in facts)
            return "\n\n".join([f"### {escape_markdown(title)}", listed, *map(_render_quote, quotes)])


def _render_table(table: Table, with_caption: bool = True) -> str:
    aligned = ["---:" if index in table.numbers else "---" for index in range(len(table.columns))]
    lines = [_join(table.columns), f"| {' | '.join(aligned)} |", *map(_join, table.rows)]
    return "\n".join([f"**{escape_markdown(table.caption)}**\n", *lines] if with_caption else lines)


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape_markdown, cells))} |"


def _render_quote(quote: Quote) -> str:
    label = f"{escape_markdown(quote.label)}:" if not quote.note else f"{escape_markdown(quote.label)} ({quote.note}):"
    return f"{label}\n\n{as_block(quote.text)}" if quote.text else label
