"""The section about errors, with one example of each kind."""

from assayline.report.document import Paragraph, Quote, Sample, Section
from assayline.report.run.rows import ERROR_KINDS, ReportRows
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import count, show_seconds, show_share, show_value

MESSAGE_CHARACTERS = 200
COLUMNS = (
    Column("kind", "error_kind"),
    Column("worker", "worker"),
    Column("requests", "error_requests", show_value),
    Column("of all", "error_share", show_share),
    Column("first at", "first_at_s", show_seconds),
    Column("example", lambda row: " ".join((row["example_message"] or "").split())[:MESSAGE_CHARACTERS]),
)


def describe_errors(rows: ReportRows) -> Section:
    """How many of which kind, and what a request that failed looked like."""
    section = Section("errors", "Errors")
    unsent = rows.summary["unsent_requests"]
    if unsent:
        said = f"{count(unsent, 'request was', 'requests were')} not sent, as the load had ended. That is no error."
        section.blocks.append(Paragraph(said))
    if not rows.errors:
        section.blocks.append(Paragraph("No request ended in an error."))
        return section
    section.blocks.append(tabulate("Errors by kind", COLUMNS, rows.errors))
    if len(rows.errors) == ERROR_KINDS:
        section.blocks.append(Paragraph(f"Only the {ERROR_KINDS} most frequent are shown; error_breakdown has all."))
    section.blocks.extend(_show_example(row) for row in rows.error_samples)
    missing = rows.summary["missing_requests"]
    if missing:
        section.blocks.append(
            Paragraph(f"{count(missing, 'more request has', 'more requests have')} no answer at all.")
        )
    return section


def _show_example(row: Row) -> Sample:
    return Sample(
        f"Example of {row['error_kind']}"
        + (f": row {row['source_row']:,} of the source" if row["source_row"] is not None else ""),
        [("request", row["request_id"])],
        [
            Quote("Message", row["error_message"], row["error_message_characters"]),
            Quote("Rendered prompt", row["rendered"], row["rendered_characters"]),
        ],
    )
