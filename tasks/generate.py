"""The task that a worker runs: one engine, all the shards it can claim."""

import logging
import re

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.worker import WorkerReport, run_worker
from tasks.engine_report import EngineReport
from tasks.terminal import ENGINE_MARK, hide_engine_lines
from tasks.worker_process import run_apart

VLLM_LINE = re.compile(r"^(?:\([^)]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] ")


@task(name="generate", task_run_name="generate-{order.worker}", cache_policy=NO_CACHE, persist_result=False)
def generate(order: WorkOrder, apart: bool = False) -> WorkerReport:
    """Runs a worker, `apart` in a process of its own; its engine's log lines go to the task run's log, by level."""
    log = get_run_logger()
    if order.settings.bar:
        hide_engine_lines()
    engines = EngineReport(order.worker, log)

    def log_engine(line: str) -> None:
        log.log(*split_level(line))

    try:
        if apart:
            report = run_apart(order, log.info, log_engine, engines.add, log.warning)
        else:
            report = run_worker(order, log.info, log_engine, engines.add)
    finally:
        engines.close()
    log.info("%s answered %d requests on %s", report.worker, report.answered_requests, report.device)
    return report


def split_level(line: str) -> tuple[int, str]:
    """A log line's level, and its text without what Prefect adds itself. Stray output of libraries is DEBUG."""
    if match := VLLM_LINE.match(line):
        return logging.getLevelNamesMapping()[match["level"]], ENGINE_MARK + line[match.end() :]
    return logging.DEBUG, line
