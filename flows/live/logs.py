"""Prefect's log, for people: an error that we raise on purpose is its message, without a traceback.

ASSAYLINE_TRACEBACKS=true brings the tracebacks back.
"""

import logging

from assayline.errors import AssaylineError
from assayline.words import make_visible

NOISY_AT_EXIT = ("prefect.server.services", "prefect.server.events", "prefect.events")
"""Loggers of the in-process server that complain when a short flow takes the server down with it."""


class _SentenceFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AssaylineError):
            record.msg, record.args, record.exc_info, record.exc_text = str(error), None, None, None
        return True


class _VisibleFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = make_visible(record.getMessage()), None
        return True


class _LinkFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("View at http")


def speak_in_sentences() -> None:
    """Installs the filters on the loggers of flow and task runs. Safe to call often.

    What a terminal would obey, such as in the name of a model, is written as an escape.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        _add_once(logging.getLogger(name), _SentenceFilter())
        _add_once(logging.getLogger(name), _VisibleFilter())


def quiet_shutdown() -> None:
    """Drops the in-process server's complaints about its own end."""
    for name in NOISY_AT_EXIT:
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL)


def hide_page_links() -> None:
    """Drops the links to runs' pages, for an API that serves none."""
    _add_once(logging.getLogger("prefect.flow_runs"), _LinkFilter())


def _add_once(logger: logging.Logger, new: logging.Filter) -> None:
    if not any(type(present) is type(new) for present in logger.filters):
        logger.addFilter(new)
