"""What an engine begins with, imported before there is a model to open."""

import contextlib
import gc
import importlib

OPENING = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.entrypoints.launchers.cli_args",
)
"""Modules that vLLM imports as it opens a model on a CPU, with 850 others."""


def import_vllm() -> None:
    """Imports what an engine begins with, which is most of its start.

    An import leaves hardly any garbage, and looking for it all the same takes a fifth of the time. What is imported
    stays, so it is taken out of all later searches: vLLM makes several whole ones as it opens a model. As it closes
    one it would put everything back and search once more, a second or two, in a process that ends.
    """
    gc.disable()
    try:
        from vllm import LLM

        assert LLM
        _import_opening()
    finally:
        gc.freeze()
        gc.unfreeze = lambda: None
        gc.enable()


def _import_opening() -> None:
    """Imports what vLLM would import as it opens a model on a CPU, where no device begins by it.

    Its worker there puts functions in the place of kernels, and looks for these in all modules. Once is enough: what is
    imported later finds the functions.
    """
    from vllm.platforms import current_platform

    if current_platform.device_type != "cpu":
        return
    for name in OPENING:
        with contextlib.suppress(ImportError):  # of another version
            importlib.import_module(name)
    replace_kernels = getattr(current_platform, "register_triton_kernel_overrides", None)
    if replace_kernels is not None:
        replace_kernels()
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
