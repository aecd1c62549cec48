"""Filters of Prefect's log: an AssaylineError is logged as its message, without a traceback.

Set ASSAYLINE_TRACEBACKS=true to log tracebacks.
"""

import logging

from assayline.errors import AssaylineError
from assayline.settings import Settings, load_settings
from assayline.words import SPACE, make_visible


class _SentenceFilter(logging.Filter):
    said = ""
    """The run's last error: tasks, flows and their states repeat it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AssaylineError):
            is_new, _SentenceFilter.said = str(error) != self.said, str(error)
            record.msg, record.args, record.exc_info, record.exc_text = str(error), None, None, None
            return is_new
        message = record.getMessage()
        if message.startswith("Beginning"):
            _SentenceFilter.said = ""
        if self.said and message.startswith("Finished in state") and self.said in message:
            record.msg, record.args = message.partition("(")[0], None
        return True


class _VisibleFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = make_visible(record.getMessage()).replace(SPACE, " "), None
        return True


def load_flow_settings() -> Settings:
    """Load a flow's settings, and log its errors without tracebacks unless ASSAYLINE_TRACEBACKS is set."""
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    return settings


def speak_in_sentences() -> None:
    """Install the filters on the loggers of flow and task runs. Idempotent.

    Terminal control characters, for example in the name of a model, are escaped.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        _add_once(logging.getLogger(name), _SentenceFilter())
        _add_once(logging.getLogger(name), _VisibleFilter())


def _add_once(logger: logging.Logger, new: logging.Filter) -> None:
    if not any(type(present) is type(new) for present in logger.filters):
        logger.addFilter(new)
