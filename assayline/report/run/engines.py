"""Report sections about engines, memory reductions and errors."""

import json

from assayline.report.answers import Filters, list_answers, read_whole_answers, show_prompt
from assayline.report.document import Column, Part, Sample, Section, cut_quote, make_section, tabulate, warn
from assayline.report.measures import measured
from assayline.report.run.rows import ENGINES, EVENTS, RunRows
from assayline.store.database import Row
from assayline.store.manifest import IMPORTS
from assayline.words import count, show_changes, show_number, show_seconds, show_share, show_value

MESSAGE_CHARACTERS = 300
ERROR_SAMPLES = 3
ERROR_KINDS = 20
ERROR_CHARACTERS = 200


def describe_engines(run: RunRows) -> Section | None:
    """Build the engines section: one line per engine, and one per notable event; None for an imported run."""
    if run.row["purpose"] in IMPORTS:
        return None
    if not run.engines:
        return make_section("engines", "Engines", "No engine was recorded: the run ended before one opened.")
    happened, obstacle = _say_what_happened(run.summary), run.row["obstacle"]
    drafts = run.query("draft_use", "drafts")
    return make_section(
        "engines",
        "Engines",
        warn(happened) if run.summary["engine_failures"] else happened,
        f"The run's speed does not count among the repeats of its configuration: {obstacle}." if obstacle else None,
        warn(next(filter(None, map(_say_context, run.engines)), "")),
        tabulate("Engines", ENGINE_COLUMNS, run.engines),
        f"Only the first {ENGINES} engines are shown; the table engine has all." * (len(run.engines) == ENGINES),
        _say_drafts(drafts[0]) if drafts else None,
        tabulate("Accepted drafts by position", DRAFT_COLUMNS, drafts),
        [say_forecast(row) for row in run.query("length_forecast", "lengths")[:1]],
        tabulate("Engine events", EVENT_COLUMNS, run.events),
        f"Only the first {EVENTS} events are shown; raw.engine_events has all." * (len(run.events) == EVENTS),
    )


def _say_context(engine: Row) -> str:
    """Report that the context was shortened, before the first answer, to fit into the memory."""
    if change := json.loads(str(engine["reduced_arguments"] or "{}")).get("max_model_len"):
        return (
            f"The context of {engine['worker']} has {change['to']:,} tokens instead of {change['from']:,}, which did "
            "not fit into the memory: longer prompts are refused, and answers may be cut."
        )
    return ""


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
    spent = {"lost_s": "work lost", "recovery_s": "recovery"}
    parts += [f"{show_seconds(summary[key])} of {name}" for key, name in spent.items() if summary[key] is not None]
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


def _cut(text: str | None, characters: int) -> str:
    return " ".join((text or "").split())[:characters]


ENGINE_COLUMNS = (
    Column("worker, engine", _name_engine),
    Column("ending", "ending"),
    Column("max concurrency", "last_max_concurrency", show_value),
    Column("max sequences", "max_num_seqs", show_value),
    *measured("load_s", "warmup_s"),
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
    Column("message", lambda event: _cut(event["message"], MESSAGE_CHARACTERS), is_text=True),
)
ERRORS = (
    Column("kind", "error_kind"),
    Column("worker", "worker"),
    Column("requests", "error_requests", show_value),
    Column("share", "error_share", show_share),
    Column("first error", "first_at_s", show_seconds),
    Column("example", lambda row: _cut(row["example_message"], ERROR_CHARACTERS), is_text=True),
)


def describe_errors(run: RunRows) -> Section | None:
    """Build the errors section: counts by kind, with one example of each; None if every request was answered."""
    unsent, missing = run.summary["unsent_requests"], run.summary["missing_requests"]
    errors = run.read(_ERRORS, ERROR_KINDS) if "errors" in run.facts else []
    said = f"{count(unsent, 'request was', 'requests were')} not sent because the load had ended."
    return make_section(
        "errors",
        "Errors",
        f"{said} They do not count as errors." if unsent else None,
        tabulate("Errors by kind", ERRORS, errors),
        f"Only the {ERROR_KINDS} most frequent kinds are shown; the table request has all errors."
        * (len(errors) == ERROR_KINDS),
        _show_examples(run, sorted({row["error_kind"] for row in errors})[:ERROR_SAMPLES]),
        f"{count(missing, 'request has', 'requests have')} no result at all." if missing else None,
    )


def _show_examples(run: RunRows, kinds: list[str]) -> list[Part]:
    """Show the first answer with each kind of error."""
    listed = [list_answers(run.run_id, None, None, Filters(error=kind)).read_plain(run.connection, 1) for kind in kinds]
    answers = read_whole_answers(run.connection, run.run_id, [rows[0]["request_id"] for rows in listed], ["turns_said"])
    return [_show_example(answers[rows[0]["request_id"]]) for rows in listed]


def _show_example(row: Row) -> Sample:
    of = f": row {row['source_row']:,} of the source" if row["source_row"] is not None else ""
    quotes = [cut_quote("Message", row["error_message"]), show_prompt(row)]
    return Sample(f"Example of {row['error_kind']}{of}", [("request", row["request_id"])], quotes)


_ERRORS = """
    select
        error_kind,
        worker,
        count(*) as error_requests,
        count(*) / (select count(*) from request where run_id = $1) as error_share,
        left(arg_min(error_message, row(coalesce(finished_at_s, arrived_at_s, 'infinity'), request_id)), 300)
            as example_message,
        min(coalesce(finished_at_s, arrived_at_s)) as first_at_s,
        max(coalesce(finished_at_s, arrived_at_s)) as last_at_s
    from request
    where run_id = $1 and status = 'error'
    group by error_kind, worker
    order by error_requests desc, error_kind, worker
    limit $2
"""
