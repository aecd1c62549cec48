"""What an opened vLLM says of itself: sizes, versions, device."""

from typing import Any

from assayline.engines.devices import name_cpu
from assayline.engines.wire import Opened


def describe_engine(config: Any) -> Opened:
    """What the engine with this `VllmConfig` resolved."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    details = {
        "vllm_version": vllm.__version__,
        "torch_version": torch.__version__,
        "device": current_platform.device_type,
        "device_name": _device_name(),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "quantization": config.model_config.quantization,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "block_size_tokens": config.cache_config.block_size,
        "kv_cache_tokens": (config.cache_config.num_gpu_blocks or 0) * (config.cache_config.block_size or 0) or None,
        "enforce_eager": config.model_config.enforce_eager,
        "engine_config_hash": config.compute_hash(),
    }
    return Opened(details["max_num_seqs"], details["max_model_len"], details)


def _device_name() -> str:
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        return name_cpu()
    try:
        return str(current_platform.get_device_name())
    except (NotImplementedError, RuntimeError):
        return str(current_platform.device_type)
