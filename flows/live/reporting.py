"""Output at the end of a run, a gate and a nightly run: reports, Prefect artifacts with the verdict first, and states.

A report that cannot be written is logged as a warning: the run is stored and judged.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from assayline.comparison.gate import GateFailedError, GateReport, SuspectError
from assayline.digests import digest_json
from assayline.errors import AssaylineError, JudgeNotTrustedError
from assayline.report.board import read_board
from assayline.report.document import Document, Paragraph, Section
from assayline.report.make import Written, make_history_report, make_report, open_database, put_on_page, write_board
from assayline.run.stages import try_report
from assayline.settings import Settings, load_settings
from assayline.stats.worse import Verdict
from assayline.words import SPACE


def publish_page(kind: str, name: str, page: str | Document, headline: str) -> None:
    """Attach a page, Markdown or a document, to the flow run. If the API rejects it, log an error:
    the results are stored. Prefect shows a timeline per key, so each kind and name has its own key."""
    try:
        markdown = page if isinstance(page, str) else put_on_page(page)
        description = headline.replace(SPACE, " ")
        create_markdown_artifact(key=make_key(kind, name), markdown=markdown, description=description)
    except Exception as error:
        get_run_logger().error("Failed to attach the page to the flow run: %s: %s", type(error).__name__, error)


def make_key(kind: str, name: str) -> str:
    """Make a key of lower-case letters, digits and dashes. A name with other characters gets a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return "-".join(filter(None, [kind, plain, "" if plain == name else digest_json(name)[:8]]))


def publish_gate(settings: Settings, run_id: str, baseline: str, headline: str) -> None:
    """Rewrite the report with the verdict on top, and attach it to the flow run."""
    if report := try_report(get_run_logger(), "report", run_id, partial(make_report, settings, run_id), baseline):
        _publish("gate", report.document, headline)


def publish_night(settings: Settings, run_id: str, baseline: str | None, headline: str) -> None:
    """Rewrite the report, update the history, and attach both to the flow run as one page."""

    def make_history(baseline: str | None) -> Written:
        return make_history_report(settings, run_id, baseline)[1]

    report = try_report(get_run_logger(), "report", run_id, partial(make_report, settings, run_id), baseline)
    history = try_report(get_run_logger(), "history", f"--history {run_id}", make_history, baseline)
    if report is None:
        return
    first, *rest = report.document.sections
    nights: list[Section] = []
    if history is not None:
        said = Section("history", "History", [Paragraph(one) for one in history.document.headline])
        nights = [said, *history.document.sections]
    _publish("night", replace(report.document, sections=[first, *nights, *rest]), headline)


def _publish(kind: str, document: Document, headline: str) -> None:
    said = " ".join(document.headline[:2]) if document.state == "worse" else headline
    publish_page(kind, document.title, document, said)


def write_leaderboard(prompt_set: str) -> None:
    """Write the leaderboard of a prompt set and attach it to the flow run. Nothing happens for a single model."""

    def make(baseline: None) -> Written | None:
        settings = load_settings()
        rows = open_database(settings).run(lambda connection: read_board(connection, (prompt_set,)))
        return write_board(settings, rows) if rows.pairs else None

    if written := try_report(get_run_logger(), "leaderboard", f"--leaderboard {prompt_set}", make):
        publish_page("leaderboard", prompt_set, written.document, written.document.headline[0])


WORSE = "Worse"
"""Name of the failed state of a run that fails a limit of its gate."""
NOT_TRUSTED = "Judge not trusted"
"""Name of the failed state of a run whose judge agrees too little with the labels."""
SUSPECT = "Suspect"
"""Name of the state of a nightly run that one comparison alone would fail. Its type is that of crashed runs, since
Prefect draws a state by its type: orange, neither green nor the red of failures."""
INCONCLUSIVE = "Inconclusive"
"""Name of the completed state of a run that fails no limit and is not shown to be within all of them."""


STATES: dict[Verdict, tuple[Callable[..., State[Any]], str]] = {
    "fail": (Failed, WORSE),
    "suspect": (Crashed, SUSPECT),
    "inconclusive": (Completed, INCONCLUSIVE),
}


def end(message: str, result: dict[str, Any] | AssaylineError, verdict: Verdict = "pass") -> dict[str, Any]:
    """Return the state for a verdict. The caller of the flow gets `result`, or it raised if it is an error."""
    make, name = STATES.get(verdict, (Completed, None))
    return cast(dict[str, Any], make(name=name, message=message.replace(SPACE, " "), data=result))


def end_judged(message: str, report: GateReport, result: dict[str, Any]) -> dict[str, Any]:
    """Return the state for the verdict of a gate, with a message."""
    errors: dict[Verdict, type[GateFailedError]] = {"fail": GateFailedError, "suspect": SuspectError}
    error = errors.get(report.verdict)
    return end(message, error(report.sentence, report) if error else result, report.verdict)


def not_trusted(error: JudgeNotTrustedError) -> dict[str, Any]:
    """Return the failed state Judge not trusted. The caller of the flow gets `error` raised."""
    return cast(dict[str, Any], Failed(name=NOT_TRUSTED, message=str(error).replace(SPACE, " "), data=error))
