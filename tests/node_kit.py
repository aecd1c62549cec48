"""What tests run on the nodes of a Ray cluster in place of an engine; each node has this folder in its PYTHONPATH."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import ray

from assayline.engines.fake import FakeEngine
from assayline.errors import Death, EngineDiedError
from assayline.evaluation import worker as worker_module
from assayline.evaluation.worker import WorkOrder
from assayline.records import Request
from tasks.ray_cluster import _NodeWorker

STEP_S = 0.005


class NodeEngine(FakeEngine):
    """A request may kill its process; the answer to one with media is the path and the content of each."""

    def _start(self, request: Request) -> Any:
        if "kill" in (request.rendered or ""):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._start(request)


def die(*_: Any, **__: Any) -> Any:
    raise EngineDiedError("The engine died on its node.", Death("run", exception="AssertionError"))


def read_media(request: Request) -> str:
    return "|".join(f"{media['path']}={Path(media['path']).read_text()}" for media in request.media or ())


class NotingNodeWorker(_NodeWorker):
    """A worker whose engine notes what it was asked, for the rounds of fault_kit.py."""

    def __init__(self, order: WorkOrder) -> None:
        from fault_kit import open_noting_engine

        worker_module.open_engine = partial(open_noting_engine, order.log_folder.parents[2])  # type: ignore[assignment]
        super().__init__(order)


class NodeWorker(_NodeWorker):
    """A worker with such an engine, whatever its spec says, and without a device."""

    def __init__(self, order: WorkOrder) -> None:
        worker_module.open_engine = lambda opened, sizes, setup, hooks, **_: NodeEngine(  # type: ignore[assignment]
            opened.clock,
            worker=opened.worker,
            generation=opened.engine_generation,
            window=order.spec.engine.max_concurrency,
            step_s=STEP_S,
            answer=read_media,
            hooks=hooks,
        )
        if "DIES" in order.spec.engine.env:
            worker_module.open_engine = die
        worker_module.claim_device = lambda *_, **__: worker_module.NO_DEVICE  # type: ignore[attr-defined]
        super().__init__(order)
        args = order.spec.engine.args
        self._notes.append(f"GPUs {ray.get_gpu_ids()}, executor {args.get('distributed_executor_backend')}")
