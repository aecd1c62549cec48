"""The section about engines: what became of each, and what was reduced when memory ran out."""

import json

from assayline.report.document import Paragraph, Section, Table
from assayline.report.words import count, show_seconds, show_value
from assayline.store.report import ENGINES, EVENTS, ReportRows, Row


def describe_engines(rows: ReportRows) -> Section:
    """One line per engine, and one per event that not every run has."""
    section = Section("engines", "Engines")
    if not rows.engines:
        section.blocks.append(Paragraph("No engine left a trace: the run ended before one opened or answered."))
        return section
    section.blocks.append(Paragraph(_say_what_happened(rows.summary), is_warning=bool(rows.summary["engine_failures"])))
    section.blocks.append(_tabulate_engines(rows.engines))
    if len(rows.engines) == ENGINES:
        section.blocks.append(Paragraph(f"Only the first {ENGINES} are shown; engine_history has all."))
    if rows.events:
        section.blocks.append(_tabulate_events(rows.events))
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


def _tabulate_engines(engines: list[Row]) -> Table:
    rows = [
        (
            f"{engine['worker']}, {engine['engine_generation']}",
            show_value(engine["ending"]),
            show_value(engine["last_window_requests"]),
            show_value(engine["max_num_seqs"]),
            show_seconds(engine["load_s"]),
            show_seconds(engine["warmup_s"]),
            show_seconds(engine["working_s"]),
            show_value(engine["ok_requests"]),
            show_value(engine["error_requests"]),
            " ".join(filter(None, (engine["failure_kind"], _show_changes(engine["reduced_arguments"])))),
        )
        for engine in engines
    ]
    columns = (
        "worker, engine",
        "ending",
        "window",
        "sequences",
        "loading",
        "warm-up",
        "at work",
        "results",
        "errors",
        "failure, and what the next got less of",
    )
    return Table("Engines", columns, rows, frozenset(range(2, 9)))


def _tabulate_events(events: list[Row]) -> Table:
    rows = [
        (
            f"{event['at_s']:.1f} s",
            f"{event['worker']}, {event['engine_generation']}",
            event["event"],
            " ".join((event["message"] or "").split())[:300],
        )
        for event in events
    ]
    return Table("What happened to them", ("at", "worker, engine", "event", "what"), rows, frozenset({0}))


def _show_changes(changes: object) -> str:
    """{"window_requests": {"from": 80, "to": 40}} as window_requests 80 → 40."""
    try:
        found = json.loads(str(changes)) if changes else {}
        return ", ".join(f"{name} {change['from']} → {change['to']}" for name, change in found.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        return str(changes)
