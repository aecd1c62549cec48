"""Check that a vLLM wheel or folder has the APIs that assayline uses, without running it.

    python scripts/check_vllm.py vllm-0.33.0-….whl …

`NEEDS` lists names, methods with the parameters that are passed, and fields. Exit code 1 if any is missing. A test
checks the installed version.
"""

import ast
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

NEEDS = {
    "entrypoints/llm.py:LLM": "llm_engine renderer __init__(model)",
    "v1/engine/llm_engine.py:LLMEngine": "vllm_config engine_core logger_manager "
    "add_request(request_id,prompt,params) abort_request(request_ids) step() has_unfinished_requests() "
    "reset_prefix_cache(reset_connector) reset_encoder_cache() reset_mm_cache()",
    "v1/engine/core_client.py:EngineCoreClient": "shutdown()",
    "v1/engine/core_client.py:InprocClient": "engine_core",
    "v1/engine/core.py:EngineCore": "batch_queue",
    "v1/engine/async_llm.py:AsyncLLM": "from_vllm_config(vllm_config,usage_context) vllm_config renderer "
    "add_request(request_id,prompt,params) abort(request_id) errored shutdown() logger_manager "
    "reset_prefix_cache(reset_connector) reset_encoder_cache() reset_mm_cache()",
    "v1/engine/output_processor.py:RequestOutputCollector": "output put(output)",
    "v1/engine/exceptions.py:EngineDeadError": "",
    "v1/metrics/loggers.py:StatLoggerManager": "record(scheduler_stats,iteration_stats)",
    "v1/metrics/stats.py:SchedulerStats": "kv_cache_usage num_running_reqs",
    "v1/metrics/stats.py:IterationStats": "num_generation_tokens",
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
    "device_config compilation_config use_v2_model_runner compute_hash()",
    "config/compilation.py:CompilationConfig": "mode",
    "utils/flashinfer.py:has_flashinfer": "",
    "config/model.py:ModelConfig": "dtype quantization max_model_len enforce_eager use_mla model "
    "get_num_kv_heads(parallel_config) get_head_size() get_num_layers(parallel_config)",
    "config/scheduler.py:SchedulerConfig": "max_num_seqs max_num_batched_tokens enable_chunked_prefill",
    "config/cache.py:CacheConfig": "gpu_memory_utilization kv_cache_memory_bytes enable_prefix_caching block_size "
    "num_gpu_blocks cache_dtype",
    "config/parallel.py:ParallelConfig": "tensor_parallel_size world_size",
    "config/device.py:DeviceConfig": "device_type",
    "entrypoints/openai/api_server.py:": "",
}
"""Members used of each class or function, by file, with the parameters that are passed to them."""


def find_missing(package: Path) -> list[str]:
    """Return the members of `NEEDS` that the source of a vLLM in this folder lacks, formatted for printing."""
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
    """Return the members of a class and of its bases, with the parameters of methods; None if there is no such class.

    A member with unknown parameters (`**kwargs`, a field) has None.
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
    """Return the members of a base class in the same file, or imported from the package by name."""
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
    """Return the names that the class body assigns or annotates."""
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


def check(source: Path) -> list[str]:
    """Return the missing members of a wheel, or of a folder that contains `vllm/`."""
    if source.is_dir():
        return find_missing(source / "vllm")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(source) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("vllm/") and name[-3:] == ".py"])
        return find_missing(Path(folder) / "vllm")


def main(sources: list[str]) -> int:
    """Check the sources. Return the exit code."""
    members = sum(len(needed.split()) for needed in NEEDS.values())
    code = 0
    for source in sources:
        missing = check(Path(source))
        found = (
            f"missing: {', '.join(missing)}"
            if missing
            else f"has all {len(NEEDS)} classes and files, {members} members"
        )
        print(f"{Path(source).name}: {found}")
        code = code or int(bool(missing))
    return code


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
