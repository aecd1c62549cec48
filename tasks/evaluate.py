"""The tasks of an evaluation: one prepares the prompts, and one per worker generates.

vLLM logs many lines at start. All of them go to the engine's log file and to the run's page; only errors are printed
to the terminal.
"""

import logging
import re
from collections.abc import Callable

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.logging.handlers import PrefectConsoleHandler

from assayline.evaluation.begin import Evaluation
from assayline.evaluation.drive import Listener, WorkerReport
from assayline.runs.manifest import PromptCounts
from assayline.tasks.artifacts import EngineReport

ENGINE_MARK = "vLLM: "
"""Prefix of an engine's line in the log of its task."""


class _EngineFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or not record.getMessage().startswith(ENGINE_MARK)


def hide_engine_lines() -> None:
    """Install the filter in this process. Idempotent."""
    for handler in console_handlers():
        if not any(isinstance(present, _EngineFilter) for present in handler.filters):
            handler.addFilter(_EngineFilter())


def console_handlers() -> list[PrefectConsoleHandler]:
    """Return the handlers of all loggers that write to the terminal."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    found = {handler for logger in loggers for handler in logger.handlers if isinstance(handler, PrefectConsoleHandler)}
    return list(found)


@task(name="prepare-prompts", cache_policy=NO_CACHE, persist_result=False)
def prepare_prompts(evaluation: Evaluation) -> PromptCounts:
    """Write every shard and log the counts."""
    counts = evaluation.prepare()
    log = get_run_logger()
    log.info("Prepared %d prompts in %d shards, %d requests", counts.prompt_rows, counts.shards, counts.requests)
    if counts.expected_requests:
        log.info("Sending longest expected outputs first: estimates for %d requests", counts.expected_requests)
    if counts.duplicate_prompts:
        log.warning(
            "%d of %d prompts are duplicates (same messages and target); all are sent",
            counts.duplicate_prompts,
            counts.prompt_rows,
        )
    if counts.failed_requests:
        log.warning("%d requests are error rows and are not sent; see the table request", counts.failed_requests)
    for name, cut in counts.cut_prompts.items():
        log.warning(
            "%d prompts of task %s were truncated on the left to fit the context. hint: raise "
            "engine.args.max_model_len.",
            cut,
            name,
        )
    return counts


VLLM_LINE = re.compile(r"^(?:\([^)]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] ")


@task(name="generate", task_run_name="generate-{worker}", cache_policy=NO_CACHE, persist_result=False)
def generate(worker: str, drive: Callable[[Listener], WorkerReport], bar: bool = False) -> WorkerReport:
    """Drive a worker. Its engine's log lines go to the task run's log, by level, and not to a terminal with a bar."""
    log = get_run_logger()
    if bar:
        hide_engine_lines()
    engines = EngineReport(worker, log)
    try:
        report = drive(Listener(log.info, log.warning, lambda line: log.log(*split_level(line)), engines.add))
    finally:
        engines.close()
    log.info("Worker %s answered %d requests on %s", report.worker, report.answered_requests, report.device)
    return report


def split_level(line: str) -> tuple[int, str]:
    """Return a log line's level, and its text without the prefix. Lines of other libraries are DEBUG."""
    if match := VLLM_LINE.match(line):
        return logging.getLevelNamesMapping()[match["level"]], ENGINE_MARK + line[match.end() :]
    return logging.DEBUG, line
