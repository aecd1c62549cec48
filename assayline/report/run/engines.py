"""The section about engines: what became of each, and what was reduced when memory ran out."""

import json

from assayline.report.document import Paragraph, Section
from assayline.report.run.rows import ENGINES, EVENTS, ReportRows
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import count, show_number, show_seconds, show_value

MESSAGE_CHARACTERS = 300


def describe_engines(rows: ReportRows) -> Section:
    """One line per engine, and one per event that not every run has."""
    section = Section("engines", "Engines")
    if not rows.engines:
        section.blocks.append(Paragraph("No engine left a trace: the run ended before one opened or answered."))
        return section
    section.blocks.append(Paragraph(_say_what_happened(rows.summary), is_warning=bool(rows.summary["engine_failures"])))
    section.blocks.append(tabulate("Engines", ENGINE_COLUMNS, rows.engines))
    if len(rows.engines) == ENGINES:
        section.blocks.append(Paragraph(f"Only the first {ENGINES} are shown; engine_history has all."))
    if rows.forecast:
        section.blocks.append(Paragraph(say_forecast(rows.forecast)))
    if rows.events:
        section.blocks.append(tabulate("What happened to them", EVENT_COLUMNS, rows.events))
        if len(rows.events) == EVENTS:
            section.blocks.append(Paragraph(f"Only the first {EVENTS} events are shown; engine_events has all."))
    return section


def _say_what_happened(summary: Row) -> str:
    if not summary["engine_failures"] and not summary["vanished_engines"]:
        return "No engine failed, and nothing was reduced."
    parts = [f"{count(summary['engine_failures'], 'engine')} failed"]
    if summary["vanished_engines"]:
        parts.append(f"{count(summary['vanished_engines'], 'engine')} vanished with a killed worker")
    parts.append(count(summary["reductions"], "memory reduction"))
    if summary["isolated_requests"]:
        parts.append(f"{count(summary['isolated_requests'], 'request')} set apart because engines died of them")
    if summary["lost_s"] is not None:
        parts.append(f"{show_seconds(summary['lost_s'])} of work lost")
    if summary["recovery_s"] is not None:
        parts.append(f"{show_seconds(summary['recovery_s'])} from failure to ready again")
    return f"{', '.join(parts)}."


def say_forecast(forecast: Row) -> str:
    """How good a guess the order went by."""
    correlation = forecast["rank_correlation"]
    ranks = "" if correlation is None else f", rank correlation {correlation:.2f}"
    return (
        f"{count(forecast['expected_requests'], 'request')} had an expected length, from earlier runs: off by a factor "
        f"of {forecast['median_error_factor']:.2f} in the median{ranks}."
    )


def _name_engine(row: Row) -> str:
    return f"{row['worker']}, {row['engine_generation']}"


def _say_failure(engine: Row) -> str:
    return " ".join(filter(None, (engine["failure_kind"], _show_changes(engine["reduced_arguments"]))))


def _cut_message(event: Row) -> str:
    return " ".join((event["message"] or "").split())[:MESSAGE_CHARACTERS]


def _show_changes(changes: object) -> str:
    """{"window_requests": {"from": 80, "to": 40}} as window_requests 80 → 40."""
    try:
        found = json.loads(str(changes)) if changes else {}
        return ", ".join(f"{name} {change['from']} → {change['to']}" for name, change in found.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        return str(changes)


ENGINE_COLUMNS = (
    Column("worker, engine", _name_engine),
    Column("ending", "ending"),
    Column("window", "last_window_requests", show_value),
    Column("sequences", "max_num_seqs", show_value),
    Column("loading", "load_s", show_seconds),
    Column("warm-up", "warmup_s", show_seconds),
    Column("at work", "working_s", show_seconds),
    Column("results", "ok_requests", show_value),
    Column("errors", "error_requests", show_value),
    Column("failure, and what the next got less of", _say_failure),
)
EVENT_COLUMNS = (
    Column("at", lambda event: f"{event['at_s']:.1f} s", show_number),
    Column("worker, engine", _name_engine),
    Column("event", "event"),
    Column("what", _cut_message),
)
