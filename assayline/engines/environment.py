"""The environment of an engine's process: complete before anything is imported there.

vLLM, torch and the hub client read their variables at import, and vLLM's engine core caches them after its start; so
nothing here can be set later.
"""

import os
from collections.abc import Mapping

from assayline.settings import Settings

DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # already a process of its own: docs/design/001-engine-process.md
    "DO_NOT_TRACK": "1",
    "NCCL_DEBUG": "WARN",  # the reason of an "unhandled cuda error" is in its log alone
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the driver's library and nvidia-smi number GPUs, not the fastest first
}
"""Set unless the surrounding environment or the spec says otherwise."""

MEMORY_LIMIT = "ASSAYLINE_ENGINE_MEMORY_LIMIT_BYTES"
"""The setting's own variable tells the host, whether the setting came from there or from a `.env` file."""


def engine_environment(
    settings: Settings, device_env: Mapping[str, str], spec_env: Mapping[str, str]
) -> dict[str, str]:
    """This process's environment with defaults below, the device's binding and the spec's `engine.env` above it."""
    token = {"HF_TOKEN": settings.hf_token.get_secret_value()} if settings.hf_token else {}
    limit = settings.engine_memory_limit_bytes
    limits = {} if limit is None else {MEMORY_LIMIT: str(limit)}
    return {**DEFAULTS, **os.environ, **token, **limits, **device_env, **spec_env}
