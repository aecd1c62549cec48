"""An extension of vLLM's worker that runs out of memory once, in a step of many requests.

Loaded by `worker_extension_cls` in the process of the engine core. `ASSAYLINE_OOM_ONCE` names a file that is there
afterwards.
"""

import os
from typing import Any

STREAMS = 128
"""Fewer at once, and the step succeeds."""

WORDS = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free"


class Extension:
    """Adds nothing to the worker: importing this changes what runs its steps."""


def _hurt() -> None:
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    error = torch.OutOfMemoryError(WORDS)
    execute = GPUModelRunner.execute_model

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if len(scheduler_output.num_scheduled_tokens) >= STREAMS:
            try:
                os.close(os.open(os.environ["ASSAYLINE_OOM_ONCE"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise error
        return execute(self, scheduler_output, *args, **kwargs)

    GPUModelRunner.execute_model = execute_model


_hurt()
