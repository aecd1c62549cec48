"""The history at the end of a night: written as a page, and shown on the flow run's.

A history that cannot be written is a warning, as the night is stored and judged.
"""

from prefect import get_run_logger

from assayline.errors import SpecError
from assayline.report.make import Written, make_history_report
from assayline.settings import Settings, load_settings
from tasks.publish import publish_history


def write_history(run_id: str, baseline: str | None) -> None:
    """The history that a run belongs to, in the folder of its spec's name, and as Markdown on the flow run's page."""
    log = get_run_logger()
    try:
        name, written = _write(load_settings(), run_id, baseline)
        log.info("History: %s", written.html.absolute())
        publish_history(name, written.put_on_page())
    except Exception as error:
        log.warning(
            "The history was not written: %s: %s `assayline report --history %s` tries again.",
            type(error).__name__,
            error,
            run_id,
        )


def _write(settings: Settings, run_id: str, baseline: str | None) -> tuple[str, Written]:
    """The spec's name, and its page. A baseline that is not there is left out: the gate has said so."""
    try:
        rows, written = make_history_report(settings, run_id, baseline)
    except SpecError:
        if baseline is None:
            raise
        rows, written = make_history_report(settings, run_id)
    return str(rows.newest["name"]), written
