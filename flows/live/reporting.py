"""The report at the end of a run: written into the run's folder, and shown on the run's page.

A report that cannot be written is a warning, as the run is stored. What it needs is imported and made ready in threads:
what draws charts while engines load, the rest while the database computes metrics, which leaves Python idle.
"""

import contextlib
import importlib
import logging
import threading

from assayline.errors import SpecError
from assayline.evaluation.begin import Evaluation

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
