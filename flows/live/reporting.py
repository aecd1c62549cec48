"""Output at the end of a run, a gate and a nightly run: reports, Prefect artifacts with the verdict first, and states.

A report that cannot be written is logged as a warning: the run is stored and judged.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from assayline.comparison.gate import GateFailedError, GateReport, SuspectError
from assayline.digests import digest_json
from assayline.errors import AssaylineError, JudgeNotTrustedError
from assayline.report.document import Document
from assayline.report.make import put_on_page
from assayline.stats.worse import Verdict
from assayline.words import SPACE

T = TypeVar("T")


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


def end(message: str, result: T | AssaylineError, verdict: Verdict = "pass") -> T:
    """Return the state for a verdict. The caller of the flow gets `result`, or it raised if it is an error."""
    message = message.replace(SPACE, " ")
    if isinstance(result, JudgeNotTrustedError):
        return cast(T, Failed(name=NOT_TRUSTED, message=message, data=result))
    make, name = STATES.get(verdict, (Completed, None))
    return cast(T, make(name=name, message=message, data=result))


def end_judged(message: str, report: GateReport, result: T) -> T:
    """Return the state for the verdict of a gate, with a message."""
    errors: dict[Verdict, type[GateFailedError]] = {"fail": GateFailedError, "suspect": SuspectError}
    error = errors.get(report.verdict)
    return end(message, error(report.sentence, report) if error else result, report.verdict)
