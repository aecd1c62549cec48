"""A Llama whose forward pass takes at least so long, in real vLLM: a device that reads its weights whatever runs.

    with install_paced_model(folder):          # engines that are started in here know the architecture
        args = {"hf_overrides": pace(25)}      # 25 ms a forward pass, of any model that is a Llama

On a CPU a step costs in proportion to the requests in it. On a GPU a decode step takes nearly the same time however
few there are, and the cores are free meanwhile. So what a forward pass leaves of its time is slept here, which is no
GPU but behaves like one in this. All else is vLLM's own: scheduler, sampler, detokenizer. The architecture comes in by
vLLM's documented way for models that it does not have, an entry point of the group `vllm.general_plugins`.
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
    """Makes `folder` a path of Python's with a package that has nothing but the entry point, for processes to come."""
    info = folder / "assayline_paced_model-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {__name__}:register\n")
    paths = [str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if allowed := os.environ.get("VLLM_PLUGINS"):  # unset, all are
        env["VLLM_PLUGINS"] = f"{allowed},{NAME}"
    with unittest.mock.patch.dict(os.environ, env):
        yield


def pace(step_ms: float) -> dict[str, Any]:
    """vLLM's argument `hf_overrides` for such a model."""
    return {"architectures": [ARCHITECTURE], "least_step_ms": step_ms}


@contextlib.contextmanager
def last_at_least(seconds: float) -> Iterator[None]:
    """Sleeps at the end of a block that took less."""
    begun = time.monotonic()
    yield
    time.sleep(max(begun + seconds - time.monotonic(), 0.0))


def register() -> None:
    """What vLLM calls in each of its processes, before it looks for a model's class."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    class PacedLlamaForCausalLM(LlamaForCausalLM):
        """Its time is in the model's configuration."""

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.least_step_s = vllm_config.model_config.hf_config.least_step_ms / 1000

        def forward(
            self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None
        ) -> Any:
            with last_at_least(self.least_step_s):
                return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)

    ModelRegistry.register_model(ARCHITECTURE, PacedLlamaForCausalLM)
