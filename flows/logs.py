"""Prefect's log, for people: an error that we raise on purpose is its message, without a traceback.

ASSAYLINE_TRACEBACKS=true brings the tracebacks back.
"""

import logging

from assayline.errors import AssaylineError

NOISY_AT_EXIT = ("prefect.server.services", "prefect.server.events", "prefect.events")
"""Loggers of the in-process server that complain when a short flow takes the server down with it."""


class _SentenceFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AssaylineError):
            record.msg, record.args, record.exc_info, record.exc_text = str(error), None, None, None
        return True


def speak_in_sentences() -> None:
    """Installs the filters on the loggers of flow and task runs. Safe to call often."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        _add_once(logging.getLogger(name), _SentenceFilter())


def quiet_shutdown() -> None:
    """Drops the in-process server's complaints about its own end."""
    for name in NOISY_AT_EXIT:
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL)


def _add_once(logger: logging.Logger, new: logging.Filter) -> None:
    if not any(type(present) is type(new) for present in logger.filters):
        logger.addFilter(new)
