"""vLLM's worker of a CPU with random generators that can go back, which torch offers for GPUs only.

If vLLM reads the prompt of a request with a seed in several steps, it samples after each, and undoes the draw by moving
the generator's offset back. As no output token has been drawn by then, going back is to start at the seed.

A module of its own, since vLLM imports it by name in the process that runs the model, which may be a new one.
"""

from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class RewindingGenerator(torch.Generator):  # type: ignore[misc]
    """A generator whose offset is 0 before and after each step back."""

    def get_offset(self) -> int:
        """Return 0."""
        return 0

    def set_offset(self, offset: int) -> None:
        """Start at the seed."""
        self.manual_seed(self.initial_seed())


class RewindingWorker(CPUWorker):  # type: ignore[misc]
    """A worker whose requests with a seed have such generators."""

    def __init__(self, *given: Any, **named: Any) -> None:
        torch.Generator = RewindingGenerator
        super().__init__(*given, **named)
