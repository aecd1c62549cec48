"""The task of a worker: one engine, driven until every request of the run has its row."""

import logging
import re
from collections.abc import Callable

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from assayline.evaluation.drive import Listener, WorkerReport
from tasks.engine_report import EngineReport
from tasks.terminal import ENGINE_MARK, hide_engine_lines

VLLM_LINE = re.compile(r"^(?:\([^)]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] ")


@task(name="generate", task_run_name="generate-{worker}", cache_policy=NO_CACHE, persist_result=False)
def generate(worker: str, drive: Callable[[Listener], WorkerReport], bar: bool = False) -> WorkerReport:
    """Drives a worker; the log lines of its engine go to the task run's log, by level, and not beside a bar."""
    log = get_run_logger()
    if bar:
        hide_engine_lines()
    engines = EngineReport(worker, log)
    try:
        report = drive(Listener(log.info, log.warning, lambda line: log.log(*split_level(line)), engines.add))
    finally:
        engines.close()
    log.info("%s answered %d requests on %s", report.worker, report.answered_requests, report.device)
    return report


def split_level(line: str) -> tuple[int, str]:
    """A log line's level, and its text without what Prefect adds itself. Stray output of libraries is DEBUG."""
    if match := VLLM_LINE.match(line):
        return logging.getLevelNamesMapping()[match["level"]], ENGINE_MARK + line[match.end() :]
    return logging.DEBUG, line
