"""A Llama in vLLM whose forward pass takes a minimum time, to simulate a device bound by reading weights.

    with install_paced_model(folder):          # engines started in this block know the architecture
        args = {"hf_overrides": pace(25)}      # 25 ms per forward pass, for any Llama

On a CPU, the time of a step is proportional to its requests. On a GPU, a decode step takes nearly the same time for any
small batch, and the CPU cores are free meanwhile. So each forward pass sleeps for the rest of its time, which simulates
a GPU in this respect only. Scheduler, sampler and detokenizer are vLLM's. The architecture is registered by vLLM's
documented plugin mechanism, an entry point of the group `vllm.general_plugins`.
"""

import contextlib
import os
import time
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHITECTURE = "PacedLlamaForCausalLM"
GROUP = "vllm.general_plugins"
NAME = "assayline_paced_model"
METADATA = "Metadata-Version: 2.1\nName: assayline-paced-model\nVersion: 1\n"


@contextlib.contextmanager
def install_paced_model(folder: Path) -> Iterator[None]:
    """Add a package with the entry point to `folder`, and the folder to the Python path of new processes."""
    info = folder / "assayline_paced_model-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {__name__}:register\n")
    paths = [str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if allowed := os.environ.get("VLLM_PLUGINS"):  # all plugins are allowed if unset
        env["VLLM_PLUGINS"] = f"{allowed},{NAME}"
    with unittest.mock.patch.dict(os.environ, env):
        yield


def pace(step_ms: float) -> dict[str, Any]:
    """Return vLLM's argument `hf_overrides` for such a model."""
    return {"architectures": [ARCHITECTURE], "least_step_ms": step_ms}


@contextlib.contextmanager
def last_at_least(seconds: float) -> Iterator[None]:
    """Sleep at the end of the block until the minimum time has passed."""
    begun = time.monotonic()
    yield
    time.sleep(max(begun + seconds - time.monotonic(), 0.0))


def register() -> None:
    """Register the architecture. vLLM calls this in each of its processes before it looks up a model's class."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    class PacedLlamaForCausalLM(LlamaForCausalLM):
        """A Llama that reads the minimum time from the model's configuration."""

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.least_step_s = vllm_config.model_config.hf_config.least_step_ms / 1000

        def forward(
            self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None
        ) -> Any:
            with last_at_least(self.least_step_s):
                return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)

    ModelRegistry.register_model(ARCHITECTURE, PacedLlamaForCausalLM)
