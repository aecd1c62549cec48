"""What a run, a gate and a night show at their end: the report, pages in Prefect with the verdict first, and states.

A page that cannot be written is a warning, as the run is stored and judged.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from prefect import get_run_logger
from prefect.states import Completed, Failed

from assayline.comparison.gate import GateFailedError
from assayline.errors import SpecError
from assayline.evaluation.begin import Evaluation
from assayline.report.board import read_board
from assayline.report.document import Document, Paragraph, Section
from assayline.report.make import Written, make_history_report, make_report, open_database, put_on_page, write_board
from assayline.settings import Settings, load_settings
from assayline.tasks.artifacts import publish
from assayline.words import show_rate, show_share

Make = Callable[..., Written | None]
"""Makes a report, held against the run or pinned name `baseline`; None where there is nothing to report."""


def report_run(evaluation: Evaluation) -> Written | None:
    """Writes a run's report. None if that failed, or if no prompt was rendered: the database does not know the run."""
    if evaluation.manifest.template_id is None:
        return None
    make = partial(make_report, evaluation.settings, evaluation.run_id, database=evaluation.database)
    return try_report("report", evaluation.run_id, make, evaluation.spec.gate.baseline)


def try_report(what: str, command: str, make: Make, baseline: str | None = None) -> Written | None:
    """Makes a report, without a baseline that is not there. None if that failed; `command` then tries again."""
    log = get_run_logger()
    try:
        try:
            written = make(baseline=baseline)
        except SpecError as error:
            if baseline is None:
                raise
            log.warning("The %s is without its baseline. %s", what, error)
            written = make(baseline=None)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        log.warning("The %s was not written: %s hint: `assayline report %s` tries again.", what, why, command)
        return None
    if written is not None:
        log.info("%s: %s", what.capitalize(), written.html.absolute())
    return written


def publish_page(kind: str, name: str, page: str | Document, headline: str) -> None:
    """Shows a page, Markdown or a document, on the flow run's page. An API that cannot take it is an error in the log:
    the results are stored."""
    try:
        publish(kind, name, page if isinstance(page, str) else put_on_page(page), headline)
    except Exception as error:
        get_run_logger().error("The flow run has no page: %s: %s", type(error).__name__, error)


def publish_gate(settings: Settings, run_id: str, baseline: str, headline: str) -> None:
    """Writes the report again, with the verdict on top, and shows it on the flow run's page."""
    if report := try_report("report", run_id, partial(make_report, settings, run_id), baseline):
        _publish("gate", report.document, headline)


def publish_night(settings: Settings, run_id: str, baseline: str | None, headline: str) -> None:
    """Writes the report again and the history, and shows both as one page of the flow run."""

    def make_history(baseline: str | None) -> Written:
        return make_history_report(settings, run_id, baseline)[1]

    report = try_report("report", run_id, partial(make_report, settings, run_id), baseline)
    history = try_report("history", f"--history {run_id}", make_history, baseline)
    if report is None:
        return
    first, *rest = report.document.sections
    nights: list[Section] = []
    if history is not None:
        said = Section("history", "The nights so far", [Paragraph(one) for one in history.document.headline])
        nights = [said, *history.document.sections]
    _publish("night", replace(report.document, sections=[first, *nights, *rest]), headline)


def _publish(kind: str, document: Document, headline: str) -> None:
    said = " ".join(document.headline[:2]) if document.state == "worse" else headline
    publish_page(kind, document.title, document, said)


def write_leaderboard(prompt_set: str) -> None:
    """The models of a prompt set, in its folder, and as Markdown on the flow run's page; nothing of one model alone."""

    def make(baseline: None) -> Written | None:
        settings = load_settings()
        rows = open_database(settings).run(lambda connection: read_board(connection, (prompt_set,)))
        return write_board(settings, rows) if rows.pairs else None

    if written := try_report("leaderboard", f"--leaderboard {prompt_set}", make):
        publish_page("leaderboard", prompt_set, written.document, written.document.headline[0])


WORSE = "Worse"
"""Name of the state of a run that breaks its baseline's limits, which is no failure of the run itself."""


def completed(message: str, result: dict[str, Any]) -> dict[str, Any]:
    """A flow's return value: its state has a message, and its caller gets `result`."""
    return cast(dict[str, Any], Completed(message=message, data=result))


def worse(message: str, error: GateFailedError) -> dict[str, Any]:
    """A flow's return value: it fails with the state Worse, and `error` is raised at its caller."""
    return cast(dict[str, Any], Failed(name=WORSE, message=message, data=error))


def describe_figures(metrics: Iterable[Mapping[str, Any]]) -> str:
    """The headline of a run: `98.1% correct, 2,786 tokens/s, 2 of 155 requests are errors`."""
    by_source = {str(row["source"]): row for row in reversed(list(metrics))}  # of two scorers the first
    parts = []
    if (accuracy := by_source.get("accuracy mean")) and accuracy["value"] is not None:
        parts.append(f"{show_share(accuracy['value'])} correct")
    if (tokens := by_source.get("output_tokens_per_s mean")) and tokens["value"] is not None:
        parts.append(show_rate(tokens["value"], "tokens"))
    if (errors := by_source.get("error_requests total")) and errors["value"]:
        parts.append(f"{errors['value']:,.0f} of {errors['n']:,.0f} requests are errors")
    return ", ".join(parts)
