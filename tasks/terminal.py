"""What of Prefect's log goes to the terminal: not the lines that engines print, unless they are errors.

vLLM says a page at each start. All of it is in the engine's log file and on the run's page.
"""

import logging

from prefect.logging.handlers import PrefectConsoleHandler

ENGINE_MARK = "vLLM: "
"""How an engine's line begins in the log of its task."""


class _EngineFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not record.getMessage().startswith(ENGINE_MARK)


def hide_engine_lines() -> None:
    """Installs the filter in this process. Safe to call often."""
    for handler in console_handlers():
        if not any(isinstance(present, _EngineFilter) for present in handler.filters):
            handler.addFilter(_EngineFilter())


def console_handlers() -> list[PrefectConsoleHandler]:
    """Those of all loggers that write to the terminal."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    found = {handler for logger in loggers for handler in logger.handlers if isinstance(handler, PrefectConsoleHandler)}
    return list(found)
