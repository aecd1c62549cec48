"""The task that a worker runs: one engine, all the shards it can claim."""

import logging
import multiprocessing
import os
import re
import signal
import threading

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from assayline.evaluation.worker import WorkerReport, WorkOrder, run_worker
from tasks.engine_report import EngineReport
from tasks.terminal import ENGINE_MARK, hide_engine_lines

VLLM_LINE = re.compile(r"^(?:\([^)]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] ")


@task(name="generate", task_run_name="generate-{order.worker}", cache_policy=NO_CACHE, persist_result=False)
def generate(order: WorkOrder) -> WorkerReport:
    """Runs a worker; its engine's log lines go to the task run's log, each with its own level."""
    if multiprocessing.parent_process() is not None:
        end_with_parent()
        if threading.current_thread() is threading.main_thread():
            # A terminal sends Ctrl-C to all of a command's processes: a worker stops when the flow says so.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = get_run_logger()
    if order.settings.bar:
        hide_engine_lines()
    engines = EngineReport(order.worker, log)
    try:
        report = run_worker(order, log.info, lambda line: log.log(*split_level(line)), engines.add)
    finally:
        engines.close()
    log.info("%s answered %d requests on %s", report.worker, report.answered_requests, report.device)
    return report


def end_with_parent() -> None:
    """Ends this process when the flow's is gone: a worker that nobody waits for must not keep a device."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)  # its engine's host sees the closed socket and goes, too

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def split_level(line: str) -> tuple[int, str]:
    """A log line's level, and its text without what Prefect adds itself. Stray output of libraries is DEBUG."""
    if match := VLLM_LINE.match(line):
        return logging.getLevelNamesMapping()[match["level"]], ENGINE_MARK + line[match.end() :]
    return logging.DEBUG, line
