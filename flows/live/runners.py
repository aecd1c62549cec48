"""Where workers run: in this process, in processes of this machine, on a Ray or Dask cluster, in a work pool.

A worker spends its time in its engine's own process, so one worker needs no more than a thread here. Several are
processes of their own (`tasks/worker_process.py`), each with a thread here that hears it.
"""

from collections.abc import Callable
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
    """The task runner for a spec's workers. Raises SpecError if Ray or Dask is asked for and not installed."""
    if spec.runner == "ray" and not settings.launch:
        return _ray_runner(spec, workers)
    if spec.runner == "dask" and not settings.launch:
        return _dask_runner(spec, workers)
    return ThreadPoolTaskRunner(max_workers=workers)


def placed(spec: EvalSpec, runner: TaskRunner[Any]) -> AbstractContextManager[object]:
    """Around what is submitted to Ray or Dask: the GPUs that a worker needs, and how often it may start elsewhere.

    Without it, a task has one core and no GPU.
    """
    if spec.runner == "ray":
        return _placed_on_ray(spec)
    if spec.runner == "dask":
        return _placed_on_dask(spec, runner)
    return nullcontext()


def _placed_on_ray(spec: EvalSpec) -> AbstractContextManager[object]:
    import ray
    from prefect_ray.context import remote_options

    gpus = _count_gpus(spec, lambda: ray.cluster_resources().get("GPU", 0) > 0)
    options: AbstractContextManager[object] = remote_options(num_gpus=gpus, max_retries=MOST_RETRIES)
    return options


def _placed_on_dask(spec: EvalSpec, runner: Any) -> AbstractContextManager[object]:
    """To Dask a GPU is a word: its workers have what `dask worker --resources GPU=8` says."""
    import dask

    def has_gpus() -> bool:
        workers = runner.client.scheduler_info(n_workers=-1)["workers"].values()
        return any(worker["resources"].get("GPU", 0) > 0 for worker in workers)

    gpus = _count_gpus(spec, has_gpus)
    return dask.annotate(resources={"GPU": gpus}) if gpus else nullcontext()


def _count_gpus(spec: EvalSpec, has_gpus: Callable[[], bool]) -> int:
    """The GPUs that one worker needs; where the spec leaves the device to the machine, the cluster is asked."""
    wants = spec.engine.needs_device and spec.engine.device == "auto" and has_gpus()
    return count_devices(spec.engine.args) if spec.engine.device == "cuda" or wants else 0


def are_apart(spec: EvalSpec, workers: int) -> bool:
    """Whether workers are processes of this machine."""
    return spec.runner == "local" and workers > 1


def _ray_runner(spec: EvalSpec, workers: int) -> TaskRunner[Any]:
    try:
        from prefect_ray import RayTaskRunner
    except ImportError:
        raise SpecError("runner: ray needs the extra `ray`: pip install 'assayline[ray]'.") from None
    # The engine's threads are its own host's business: to Ray a local worker is one slot.
    # Without an address Ray would join what RAY_ADDRESS or its temporary folder names, whosever cluster that is.
    local = {"address": "local", "num_cpus": workers, "include_dashboard": False, "log_to_driver": False}
    runner: TaskRunner[Any] = RayTaskRunner(address=spec.ray_address, init_kwargs={} if spec.ray_address else local)
    return runner


def _dask_runner(spec: EvalSpec, workers: int) -> TaskRunner[Any]:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError:
        raise SpecError("runner: dask needs the extra `dask`: pip install 'assayline[dask]'.") from None
    # A worker's memory is its engine's, which lives in another process: nothing that Dask's limit could be about.
    local = {"n_workers": workers, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
    runner: TaskRunner[Any] = DaskTaskRunner(
        address=spec.dask_address, cluster_kwargs=None if spec.dask_address else local
    )
    return runner
