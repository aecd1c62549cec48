"""The page of a run that a gate judged and the page of a night: the verdict first.

A page that cannot be written is a warning, as the run is stored and judged.
"""

from collections.abc import Callable
from dataclasses import replace

from prefect import get_run_logger

from assayline.errors import SpecError
from assayline.report.document import Document, Paragraph, Section
from assayline.report.make import Written, make_history_report, make_report, put_on_page
from assayline.settings import Settings
from tasks.publish import publish


def publish_gate(settings: Settings, run_id: str, baseline: str, headline: str) -> None:
    """Writes the report again, with the verdict on top, and shows it on the flow run's page."""
    if report := _try_report(settings, run_id, baseline):
        _publish("gate", report, headline)


def publish_night(settings: Settings, run_id: str, baseline: str | None, headline: str) -> None:
    """Writes the report again and the history, and shows both as one page of the flow run."""
    report, history = _try_report(settings, run_id, baseline), _try_history(settings, run_id, baseline)
    if report and history:
        said = Section("history", "The nights so far", [Paragraph(sentence) for sentence in history.headline])
        first, *rest = report.sections
        _publish("night", replace(report, sections=[first, said, *history.sections, *rest]), headline)
    elif report:
        _publish("night", report, headline)


def _try_report(settings: Settings, run_id: str, baseline: str | None) -> Document | None:
    return _try("report", run_id, lambda name: make_report(settings, run_id, name), baseline)


def _try_history(settings: Settings, run_id: str, baseline: str | None) -> Document | None:
    return _try("history", f"--history {run_id}", lambda name: make_history_report(settings, run_id, name)[1], baseline)


def _try(what: str, command: str, make: Callable[[str | None], Written], baseline: str | None) -> Document | None:
    """Makes a report, without a baseline that is not there: the gate has reported that."""
    log = get_run_logger()
    try:
        try:
            written = make(baseline)
        except SpecError:
            written = make(None)
    except Exception as error:
        log.warning(
            "The %s was not written: %s: %s hint: `assayline report %s` tries again.",
            what,
            type(error).__name__,
            error,
            command,
        )
        return None
    log.info("%s: %s", what.capitalize(), written.html.absolute())
    return written.document


def _publish(kind: str, document: Document, headline: str) -> None:
    try:
        said = " ".join(document.headline[:2]) if document.state == "worse" else headline
        publish(kind, document.title, put_on_page(document), said)
    except Exception as error:
        get_run_logger().error("The flow run has no page: %s: %s", type(error).__name__, error)
