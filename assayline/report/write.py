"""From rows to files: report.html and report.md in a folder."""

from dataclasses import dataclass
from pathlib import Path

from assayline.durable import replace_file
from assayline.errors import StoreError
from assayline.report.about import describe_run, list_metrics
from assayline.report.comparison import describe_comparison, say_verdict
from assayline.report.document import Document
from assayline.report.engines import describe_engines
from assayline.report.headline import choose_figures, describe_state, write_headline
from assayline.report.html import render_html
from assayline.report.load import describe_load
from assayline.report.markdown import render_markdown
from assayline.report.quality import describe_accuracy, describe_prompts
from assayline.report.speed import describe_latency, describe_time
from assayline.report.trouble import describe_errors
from assayline.store.report import ReportRows
from assayline.store.report_comparison import ComparisonRows

HTML_NAME = "report.html"
MARKDOWN_NAME = "report.md"


@dataclass(frozen=True, slots=True)
class Written:
    """A report that is on disk."""

    html: Path
    markdown: Path
    text: str
    """The Markdown."""


def compose_report(rows: ReportRows, comparison: ComparisonRows | None = None) -> Document:
    """The report of a run, beside its baseline if there is one, before it has a form."""
    run = rows.run
    headline = write_headline(rows)
    compared = []
    load = describe_load(rows)
    if comparison is not None:
        headline.insert(2, say_verdict(comparison))
        compared.append(describe_comparison(rows, comparison))
    return Document(
        title=run["name"],
        subtitle=f"{run['model']} on {run['prompt_set']}, run {run['run_id']}",
        state=describe_state(rows),
        headline=headline,
        figures=choose_figures(rows),
        sections=[
            describe_accuracy(rows),
            *compared,
            *([load] if load else []),
            describe_latency(rows),
            describe_time(rows),
            describe_engines(rows),
            describe_errors(rows),
            describe_prompts(rows),
            describe_run(rows),
            list_metrics(rows),
        ],
    )


def write_report(document: Document, folder: Path, cache_folder: Path) -> Written:
    """Writes both forms. Raises StoreError where the folder does not take them."""
    html, markdown = render_html(document, cache_folder), render_markdown(document)
    html, markdown = (text.replace("\0", "\ufffd") for text in (html, markdown))  # no form has a sign for it
    try:
        replace_file(folder / HTML_NAME, lambda file: file.write(html.encode("utf-8", "replace")))
        replace_file(folder / MARKDOWN_NAME, lambda file: file.write(markdown.encode("utf-8", "replace")))
    except OSError as error:
        raise StoreError(
            f"The report cannot be written to {folder}: {error}. Give another folder with --out."
        ) from error
    return Written(folder / HTML_NAME, folder / MARKDOWN_NAME, markdown)
