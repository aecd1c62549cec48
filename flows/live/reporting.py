"""What a run, a gate and a night show at their end: the report, pages in Prefect with the verdict first, and states.

A page that cannot be written is a warning, as the run is stored and judged. What it needs is imported and made ready in
threads: what draws charts while engines load, the rest while the database computes metrics, which leaves Python idle.
"""

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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
from assayline.words import show_rate, show_share
from tasks.artifacts import publish

AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class Reporting:
    """The report of one run. Make it when the run begins."""

    def __init__(self, evaluation: Evaluation, log: AnyLogger) -> None:
        self._evaluation = evaluation
        self._log = log
        threading.Thread(target=self._get_ready, name="report", daemon=True).start()

    def import_rest(self) -> None:
        """Begins to import what `write` needs."""
        threading.Thread(target=self._import_rest, name="report-imports", daemon=True).start()

    def write(self) -> tuple[str | None, str | None]:
        """Writes the report. Returns its path, and the Markdown for the flow run's page; None if that failed."""
        evaluation = self._evaluation
        if evaluation.manifest.template_id is None:
            return None, None  # no prompt was rendered: the database knows nothing of this run
        try:
            from assayline.report.make import make_report, put_on_page

            baseline = evaluation.spec.gate.baseline
            try:
                written = make_report(evaluation.settings, evaluation.run_id, baseline, database=evaluation.database)
            except SpecError as error:
                if baseline is None:
                    raise
                self._log.warning("The report is without its baseline. %s", error)
                written = make_report(evaluation.settings, evaluation.run_id, database=evaluation.database)
        except Exception as error:
            self._log.warning(
                "The report was not written: %s: %s `assayline report %s` tries again.",
                type(error).__name__,
                error,
                evaluation.run_id,
            )
            return None, None
        path = written.html.absolute()
        self._log.info("Report: %s", path)
        return str(path), put_on_page(written.document)

    def _get_ready(self) -> None:
        try:
            from assayline.report.html import bundle_charts

            bundle_charts(self._evaluation.settings.data_dir / "cache")
        except Exception as error:  # `write` meets the same, and says it
            self._log.debug("Charts are not ready: %s", error)

    def _import_rest(self) -> None:
        with contextlib.suppress(Exception):  # `write` meets the same, and says it
            importlib.import_module("assayline.report.make")


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


def write_leaderboard(prompt_set: str) -> None:
    """The models of a prompt set, in its folder, and as Markdown on the flow run's page; nothing of one model alone."""
    log = get_run_logger()
    try:
        settings = load_settings()
        rows = open_database(settings).run(lambda connection: read_board(connection, (prompt_set,)))
        if not rows.pairs:
            return
        written = write_board(settings, rows)
        log.info("Leaderboard: %s", written.html.absolute())
        publish("leaderboard", prompt_set, put_on_page(written.document), written.document.headline[0])
    except Exception as error:
        log.warning(
            "The leaderboard was not written: %s: %s `assayline report --leaderboard %s` tries again.",
            type(error).__name__,
            error,
            prompt_set,
        )


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
    by_source = {str(row["source"]): row for row in metrics}
    parts = []
    if (accuracy := by_source.get("run_summary.accuracy")) and accuracy["value"] is not None:
        parts.append(f"{show_share(accuracy['value'])} correct")
    if (tokens := by_source.get("run_summary.output_tokens_per_s")) and tokens["value"] is not None:
        parts.append(show_rate(tokens["value"], "tokens"))
    if (errors := by_source.get("run_summary.error_requests")) and errors["value"]:
        parts.append(f"{errors['value']:,.0f} of {errors['n']:,.0f} requests are errors")
    return ", ".join(parts)
