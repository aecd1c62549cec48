"""Where workers run: in this process, in processes of this machine, or on a Ray cluster.

A worker spends its time in its engine's own process, so one worker needs no more than a thread here. Several are
processes of their own (`tasks/worker_process.py`), each with a thread here that hears it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec

MOST_RETRIES = 3
"""Of a worker on Ray whose node or process died. What kills more of them will kill the next one, too."""


def worker_runner(spec: EvalSpec, workers: int, settings: Settings) -> TaskRunner[Any]:
    """The task runner for a spec's workers. Raises SpecError if Ray is asked for and not installed."""
    if spec.runner == "ray" and not settings.launch:
        return _ray_runner(spec, workers)
    return ThreadPoolTaskRunner(max_workers=workers)


def placed(spec: EvalSpec) -> AbstractContextManager[object]:
    """Around what is submitted to Ray: the GPUs that a worker needs, and how often it is started again elsewhere.

    Without it, Ray gives a task one core and no GPU.
    """
    if spec.runner != "ray":
        return nullcontext()
    from prefect_ray.context import remote_options

    gpus = count_devices(spec.engine.args) if spec.engine.device == "cuda" or _has_gpus(spec) else 0
    options: AbstractContextManager[object] = remote_options(num_gpus=gpus, max_retries=MOST_RETRIES)
    return options


def _has_gpus(spec: EvalSpec) -> bool:
    """Whether the cluster has GPUs, where the spec leaves the device to the machine."""
    import ray

    return spec.engine.needs_device and spec.engine.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0


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
