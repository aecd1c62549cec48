"""The task that a worker runs: one engine, all the shards it can claim."""

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from assayline.worker import WorkerReport, WorkOrder, run_worker


@task(name="generate", task_run_name="generate-{order.worker}", cache_policy=NO_CACHE, persist_result=False)
def generate(order: WorkOrder) -> WorkerReport:
    """Runs a worker; the engine's log lines go to the task run's log."""
    log = get_run_logger()
    report = run_worker(order, log.info)
    log.info("%s answered %d requests on %s", report.worker, report.answered_requests, report.device)
    return report
