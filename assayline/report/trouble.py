"""The section about errors, with one example of each kind."""

from assayline.report.document import Paragraph, Quote, Sample, Section, Table
from assayline.report.words import count, show_seconds, show_share
from assayline.store.report import ERROR_KINDS, ReportRows, Row

MESSAGE_CHARACTERS = 200


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
    cells = [
        (
            row["error_kind"],
            row["worker"],
            f"{row['error_requests']:,}",
            show_share(row["error_share"]),
            show_seconds(row["first_at_s"]),
            " ".join((row["example_message"] or "").split())[:MESSAGE_CHARACTERS],
        )
        for row in rows.errors
    ]
    columns = ("kind", "worker", "requests", "of all", "first at", "example")
    section.blocks.append(Table("Errors by kind", columns, cells, frozenset({2, 3, 4})))
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
        f"Example of {row['error_kind']}",
        [("request", row["request_id"])],
        [
            Quote("Message", row["error_message"], row["error_message_characters"]),
            Quote("Rendered prompt", row["rendered"], row["rendered_characters"]),
        ],
    )
