"""A worker class for vLLM whose second rank runs out of device memory once, at a step; the flag is a file."""

import os
from pathlib import Path
from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class FailingWorker(CPUWorker):
    """Fails where a rank that does not reply would."""

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        failed = Path(os.environ["FAILED_ONCE"])
        if self.rank == 1 and not failed.exists():
            failed.touch()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().execute_model(*args, **kwargs)
