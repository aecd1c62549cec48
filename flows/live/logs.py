"""Filter of Prefect's log: an AssaylineError is logged as its message, without a traceback.

Set ASSAYLINE_TRACEBACKS=true to log tracebacks.
"""

import logging

from assayline.errors import AssaylineError
from assayline.settings import Settings, load_settings
from assayline.words import SPACE, make_visible


class SentenceFilter(logging.Filter):
    """Logs an AssaylineError once, as its message, and escapes terminal control characters."""

    said = ""
    """The run's last error: tasks, flows and their states repeat it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AssaylineError):
            if str(error) == self.said:
                return False
            SentenceFilter.said = str(error)
            record.msg, record.args, record.exc_info, record.exc_text = str(error), None, None, None
        message = record.getMessage()
        if message.startswith("Beginning"):
            SentenceFilter.said = ""
        if self.said and message.startswith("Finished in state") and self.said in message:
            message = message.partition("(")[0]
        record.msg, record.args = make_visible(message).replace(SPACE, " "), None
        return True


def load_flow_settings() -> Settings:
    """Load a flow's settings, and log its errors without tracebacks unless ASSAYLINE_TRACEBACKS is set."""
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    return settings


def speak_in_sentences() -> None:
    """Install the filter on the loggers of flow and task runs. Idempotent."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(present, SentenceFilter) for present in logger.filters):
            logger.addFilter(SentenceFilter())
