"""Where workers run: in this process, in processes of this machine, or on a Ray cluster.

A worker spends its time in its engine's own process, so one worker needs no more than a thread here. Several are
processes of their own (`tasks/worker_process.py`), each with a thread here that hears it.
"""

from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec


def worker_runner(spec: EvalSpec, workers: int, settings: Settings) -> TaskRunner[Any]:
    """The task runner for a spec's workers. Raises SpecError if Ray is asked for and not installed."""
    if spec.runner == "ray" and not settings.launch:
        return _ray_runner(spec, workers)
    return ThreadPoolTaskRunner(max_workers=workers)


def are_apart(spec: EvalSpec, workers: int) -> bool:
    """Whether workers are processes of this machine."""
    return spec.runner == "local" and workers > 1


def _ray_runner(spec: EvalSpec, workers: int) -> TaskRunner[Any]:
    try:
        from prefect_ray import RayTaskRunner
    except ImportError:
        raise SpecError("runner: ray needs the extra `ray`: pip install 'assayline[ray]'.") from None
    # The engine's threads are its own host's business: to Ray a local worker is one slot.
    local = {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False}
    runner: TaskRunner[Any] = RayTaskRunner(address=spec.ray_address, init_kwargs={} if spec.ray_address else local)
    return runner
