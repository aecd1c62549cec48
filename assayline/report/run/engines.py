"""Report sections about engines, memory reductions and errors."""

import json

from assayline.report.answers import Filters, list_answers, read_answer, show_prompt
from assayline.report.document import Column, Sample, Section, cut_quote, tabulate
from assayline.report.run.rows import ENGINES, ERROR_KINDS, EVENTS, ReportRows
from assayline.store.database import Connection, Row
from assayline.store.manifest import IMPORTS
from assayline.words import count, show_changes, show_number, show_seconds, show_share, show_value

MESSAGE_CHARACTERS = 300
ERROR_SAMPLES = 3


def describe_engines(rows: ReportRows) -> Section | None:
    """Build the engines section: one line per engine, and one per notable event; None for an imported run."""
    section = Section("engines", "Engines")
    if rows.run["purpose"] in IMPORTS:
        return None
    if not rows.engines:
        section.say("No engine was recorded: the run ended before one opened.")
        return section
    section.say(_say_what_happened(rows.summary), is_warning=bool(rows.summary["engine_failures"]))
    if rows.run["obstacle"]:
        section.say(f"The run's speed does not count among the repeats of its configuration: {rows.run['obstacle']}.")
    if shortened := next(filter(None, map(_say_context, rows.engines)), None):
        section.say(shortened, is_warning=True)
    section.add(tabulate("Engines", ENGINE_COLUMNS, rows.engines))
    if len(rows.engines) == ENGINES:
        section.say(f"Only the first {ENGINES} engines are shown; the table engine has all.")
    if rows.drafts:
        section.say(_say_drafts(rows.drafts[0]))
        section.add(tabulate("Accepted drafts by position", DRAFT_COLUMNS, rows.drafts))
    if rows.forecast:
        section.say(say_forecast(rows.forecast))
    if rows.events:
        section.add(tabulate("Engine events", EVENT_COLUMNS, rows.events))
        if len(rows.events) == EVENTS:
            section.say(f"Only the first {EVENTS} events are shown; raw.engine_events has all.")
    return section


def _say_context(engine: Row) -> str | None:
    """Report that the context was shortened, before the first answer, to fit into the memory."""
    if change := json.loads(str(engine["reduced_arguments"] or "{}")).get("max_model_len"):
        return (
            f"The context of {engine['worker']} has {change['to']:,} tokens instead of {change['from']:,}, which did "
            "not fit into the memory: longer prompts are refused, and answers may be cut."
        )
    return None


def _say_drafts(total: Row) -> str:
    return (
        f"Speculative decoding made {show_value(total['acceptance_length'])} tokens per step with a draft, 1 without "
        f"acceptance: the model accepted {show_share(total['draft_acceptance'])} of "
        f"{count(total['draft_tokens'], 'draft token')}."
    )


def _say_what_happened(summary: Row) -> str:
    if not summary["engine_failures"] and not summary["vanished_engines"]:
        return "No engine failed, and no setting was reduced."
    parts = [f"{count(summary['engine_failures'], 'engine')} failed"]
    if summary["vanished_engines"]:
        parts.append(f"{count(summary['vanished_engines'], 'engine')} lost with a killed worker")
    parts.append(count(summary["reductions"], "memory reduction"))
    if summary["isolated_requests"]:
        parts.append(f"{count(summary['isolated_requests'], 'request')} isolated because engines crashed on them")
    if summary["lost_s"] is not None:
        parts.append(f"{show_seconds(summary['lost_s'])} of work lost")
    if summary["recovery_s"] is not None:
        parts.append(f"{show_seconds(summary['recovery_s'])} of recovery")
    return f"{', '.join(parts)}."


def say_forecast(forecast: Row) -> str:
    """Report how accurate the expected output lengths were."""
    correlation = forecast["rank_correlation"]
    ranks = "" if correlation is None else f", rank correlation {correlation:.2f}"
    return (
        f"Expected output lengths from earlier runs for {count(forecast['expected_requests'], 'request')}: median "
        f"error factor {forecast['median_error_factor']:.2f}{ranks}."
    )


def _name_engine(row: Row) -> str:
    return f"{row['worker']}, {row['engine_generation']}"


def _say_failure(engine: Row) -> str:
    return " ".join(filter(None, (engine["failure_kind"], show_changes(engine["reduced_arguments"]))))


def _cut_message(event: Row) -> str:
    return " ".join((event["message"] or "").split())[:MESSAGE_CHARACTERS]


ENGINE_COLUMNS = (
    Column("worker, engine", _name_engine),
    Column("ending", "ending"),
    Column("max concurrency", "last_max_concurrency", show_value),
    Column("max sequences", "max_num_seqs", show_value),
    Column("load time", "load_s", show_seconds),
    Column("warm-up time", "warmup_s", show_seconds),
    Column("active time", "working_s", show_seconds),
    Column("results", "ok_requests", show_value),
    Column("errors", "error_requests", show_value),
    Column("failure → reductions", _say_failure),
)
DRAFT_COLUMNS = (
    Column("position", "position", show_value),
    Column("accepted", "accepted_share", show_share),
)
EVENT_COLUMNS = (
    Column("time", lambda event: f"{event['at_s']:.1f} s", show_number),
    Column("worker, engine", _name_engine),
    Column("event", "event"),
    Column("message", _cut_message),
)


ERROR_CHARACTERS = 200
COLUMNS = (
    Column("kind", "error_kind"),
    Column("worker", "worker"),
    Column("requests", "error_requests", show_value),
    Column("share", "error_share", show_share),
    Column("first error", "first_at_s", show_seconds),
    Column("example", lambda row: " ".join((row["example_message"] or "").split())[:ERROR_CHARACTERS]),
)


def describe_errors(connection: Connection, rows: ReportRows) -> Section | None:
    """Build the errors section: counts by kind, with one example of each; None if every request was answered."""
    section = Section("errors", "Errors")
    unsent, missing = rows.summary["unsent_requests"], rows.summary["missing_requests"]
    if unsent:
        said = f"{count(unsent, 'request was', 'requests were')} not sent because the load had ended."
        section.say(f"{said} They do not count as errors.")
    if rows.errors:
        section.add(tabulate("Errors by kind", COLUMNS, rows.errors))
    if len(rows.errors) == ERROR_KINDS:
        section.say(f"Only the {ERROR_KINDS} most frequent kinds are shown; the table request has all errors.")
    for kind in sorted({row["error_kind"] for row in rows.errors})[:ERROR_SAMPLES]:
        listed = list_answers(rows.run["run_id"], None, None, Filters(error=kind)).read_plain(connection, 1)
        section.add(*(_show_example(connection, row) for row in listed[:1]))
    if missing:
        section.say(f"{count(missing, 'request has', 'requests have')} no result at all.")
    return section if section.blocks else None


def _show_example(connection: Connection, listed: Row) -> Sample:
    row = read_answer(connection, listed["run_id"], listed["request_id"], ["turns_said"])
    assert row is not None
    of = f": row {row['source_row']:,} of the source" if row["source_row"] is not None else ""
    quotes = [cut_quote("Message", row["error_message"]), show_prompt(row)]
    return Sample(f"Example of {row['error_kind']}{of}", [("request", row["request_id"])], quotes)
